#include "partition/layers/layer_kinds.h"

#include <map>
#include <unordered_map>

#include "sharding/stage/repeats.h"

namespace pipeshard {
namespace {

enum class Source : uint8_t {
  kInside,
  kEarlierLayer,
  kGraphInput,
  kTrained,
  kUntrained,
  kSharedParameter,
  kWeight,
  kConstant,
  kOther
};

class KindReader {
 public:
  KindReader(const TrainingGraph& training, const std::vector<NodeId>& order, const LayerEnds& ends)
      : training_(training),
        graph_(training.graph),
        uses_(computeUseDef(graph_)),
        layer_(graph_.nodes.size()) {
    int64_t first = 0;
    for (const LayerId l : ends.ids()) {
      members_.emplace_back(order.begin() + first, order.begin() + ends[l] + 1);
      for (NodeId node : members_.back()) layer_[node.index()] = l;
      first = ends[l] + 1;
    }
    followers_.resize(members_.size());
    std::vector<NodeId> counted = order;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const NodeId forward = training.forward_node[n];
      if (!forward.valid()) continue;
      counted.emplace_back(n);
      followers_[layer_[forward.index()]].emplace_back(n);
    }
    const std::vector<int> numbers = structuralNumbers(graph_, counted);
    keys_.resize(graph_.nodes.size());
    for (size_t i = 0; i < counted.size(); ++i) keys_[counted[i].index()] = numbers[i];
    classify();
  }

  std::vector<int64_t> signature(LayerId layer) const {
    std::vector<int64_t> text;
    std::unordered_map<ValueId, int64_t> inside, outside;
    for (NodeId id : members_[layer]) {
      const Node& node = graph_.node(id);
      text.push_back(keys_[id.index()]);
      for (ValueId input : node.inputs) {
        const auto made = inside.find(input);
        const bool is_inside = made != inside.end();
        const int64_t place =
            is_inside ? made->second : outside.try_emplace(input, std::ssize(outside)).first->second;
        text.push_back(static_cast<int64_t>(is_inside       ? Source::kInside
                                            : input.valid() ? source_[input.index()]
                                                            : Source::kOther));
        text.push_back(place);
      }
      for (ValueId output : node.outputs) {
        inside.emplace(output, std::ssize(inside));
        text.push_back(output.valid() ? readers(output, layer) : 0);
      }
    }
    for (NodeId id : followers_[layer])
      text.insert(text.end(),
                  {-1, static_cast<int64_t>(training_.node_phase[id.index()]), keys_[id.index()]});
    return text;
  }

 private:
  void classify() {
    source_.assign(graph_.values.size(), Source::kOther);
    for (ValueId input : graph_.inputs) source_[input.index()] = Source::kGraphInput;
    for (const auto& [id, initializer] : graph_.initializers) {
      source_[id.index()] =
          std::holds_alternative<Constant>(initializer) ? Source::kConstant : Source::kWeight;
    }
    for (const Parameter& parameter : training_.parameters) {
      const bool trained = isTrained(parameter);
      LayerId first;
      bool shared = false;
      for (NodeId reader : uses_.consumers[parameter.value.index()]) {
        const LayerId layer = layer_[reader.index()];
        if (!layer.valid()) continue;
        shared = shared || (first.valid() && layer != first);
        first = layer;
      }
      source_[parameter.value.index()] = shared    ? Source::kSharedParameter
                                         : trained ? Source::kTrained
                                                   : Source::kUntrained;
    }
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!layer_[n].valid()) continue;
      for (ValueId output : graph_.nodes[n].outputs) {
        if (output.valid()) source_[output.index()] = Source::kEarlierLayer;
      }
    }
  }

  // Bit 0: a forward node of a later layer reads it; bit 1: of one behind the next layer; bit 2: it is the
  // loss.
  int64_t readers(ValueId value, LayerId layer) const {
    int64_t bits = value == training_.loss ? 4 : 0;
    for (NodeId reader : uses_.consumers[value.index()]) {
      const LayerId reading = layer_[reader.index()];
      if (!reading.valid()) continue;
      if (reading > layer) bits |= 1;
      if (reading > layer.next()) bits |= 2;
    }
    return bits;
  }

  const TrainingGraph& training_;
  const Graph& graph_;
  UseDef uses_;
  std::vector<LayerId> layer_;  // by node; invalid: no forward node
  IdVector<LayerId, std::vector<NodeId>> members_;
  IdVector<LayerId, std::vector<NodeId>> followers_;  // backward nodes
  std::vector<int> keys_;                             // by node
  std::vector<Source> source_;                        // by value: what it is to a layer that does not make it
};

}  // namespace

IdVector<LayerId, int> layerKinds(const TrainingGraph& training, const std::vector<NodeId>& order,
                                  const LayerEnds& ends) {
  const KindReader reader(training, order, ends);
  std::map<std::vector<int64_t>, int> known;
  IdVector<LayerId, int> kinds;
  for (const LayerId l : ends.ids()) {
    kinds.push_back(known.try_emplace(reader.signature(l), static_cast<int>(known.size())).first->second);
  }
  return kinds;
}

}  // namespace pipeshard
