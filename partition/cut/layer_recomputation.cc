#include "partition/cut/layer_recomputation.h"

#include <algorithm>

#include "ir/graph/graph.h"
#include "ir/operators/operator_facts.h"

namespace pipeshard {
namespace {

bool isDear(const Node& node) {
  const WorkClass work = operatorFacts(node).work;
  return work == WorkClass::kContraction || work == WorkClass::kConvolution;
}

// Goes through the forward nodes from the last one on: whether a node runs again is known before the nodes
// that it reads. A value is needed by backward nodes, and by those that run again. If another layer needs it,
// it is handed on; else its node runs again, or is dear and its output kept.
class Selector {
 public:
  Selector(const TrainingGraph& training, const std::vector<LayerId>& layers, bool keeps_dear)
      : training_(training), layers_(layers), keeps_dear_(keeps_dear), uses_(computeUseDef(training.graph)) {
    result_.kept.resize(training.graph.values.size());
    result_.again.resize(training.graph.nodes.size());
  }

  LayerRecomputation run() {
    for (size_t n = training_.graph.nodes.size(); n-- > 0;) {
      const NodeId id(n);
      if (training_.node_phase[n] != Phase::kForward) continue;
      const Node& node = training_.graph.node(id);
      for (const ValueId output : node.outputs) {
        if (!output.valid() || !isNeededHere(output, layers_[n])) continue;
        if (keeps_dear_ && isDear(node)) {
          result_.kept[output.index()] = true;
        } else {
          result_.again[n] = true;
        }
      }
    }
    return std::move(result_);
  }

 private:
  // By its own layer, and by no other one.
  bool isNeededHere(ValueId value, LayerId layer) const {
    bool here = false;
    for (const NodeId reader : uses_.consumers[value.index()]) {
      const size_t r = reader.index();
      if (!isBackward(training_.node_phase[r]) && !result_.again[r]) continue;
      if (layers_[r] != layer) return false;
      here = true;
    }
    return here;
  }

  const TrainingGraph& training_;
  const std::vector<LayerId>& layers_;
  const bool keeps_dear_;
  const UseDef uses_;
  LayerRecomputation result_;
};

}  // namespace

LayerRecomputation recomputationByLayers(const TrainingGraph& training, const std::vector<LayerId>& layers) {
  return Selector(training, layers, false).run();
}

LayerRecomputation selectiveRecomputation(const TrainingGraph& training, const std::vector<LayerId>& layers) {
  return Selector(training, layers, true).run();
}

}  // namespace pipeshard
