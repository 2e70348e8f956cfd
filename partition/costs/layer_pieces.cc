#include "partition/costs/layer_pieces.h"

#include <algorithm>
#include <map>
#include <set>

#include "ir/base/error.h"
#include "partition/cut/cut_training.h"
#include "partition/cut/stage_shardings.h"

namespace pipeshard {

int CrossingValue::first() const {
  const int earliest = readers.empty() ? made : readers.front();
  return made < 0 ? earliest : std::min(made, earliest);
}

int CrossingValue::last() const { return readers.empty() ? made : std::max(made, readers.back()); }

namespace {

// One stage of one device per layer.
Plan planOfLayers(const Clustering& clustering) {
  Plan plan;
  int64_t first = 0;
  for (const LayerId layer : clustering.ends.ids()) {
    LayerPlan& of = plan.layers.emplace_back();
    of.first = first;
    of.last = clustering.ends[layer];
    first = of.last + 1;
    StagePlan& stage = plan.stages.emplace_back();
    stage.first_layer = stage.last_layer = layer;
    stage.devices = {RankId(layer.index())};
  }
  return plan;
}

void addLayer(int layer, std::vector<int>& layers) {
  if (layers.empty() || layers.back() != layer) layers.push_back(layer);
}

// Cuts the graph by a plan in which every layer is a stage on a device of its own. cutTraining then says
// which nodes each layer runs, and in which phase; the rest follows from who makes and who reads each value:
//
//   h, made by layer 0, read by layers 1 and 2 forward and backward: made 0, readers {1, 2}, forward {1, 2},
//   waits {1, 2}; it crosses the cuts behind the layers 0 and 1
//
// Layers are visited in ascending order and crossings found in the order of their values, so all lists of
// layers and of crossings are ascending without being sorted. Kinds compare the nodes of two layers with the
// values numbered as they come: equal blocks are of one kind, whatever their values are called.
class Pieces {
 public:
  Pieces(const TrainingGraph& training, const Clustering& clustering, const std::vector<int>& batch_axes)
      : training_(training),
        graph_(training.graph),
        batch_axes_(batch_axes),
        layers_(clustering.ends.size()),
        cut_(cutTraining(training, planOfLayers(clustering))) {
    PIPESHARD_CHECK(clustering.kinds.size() == clustering.ends.size(), "{} kinds for {} layers",
                    clustering.kinds.size(), clustering.ends.size());
    findNodes();
    findUses();
    findCrossings();
    findShared();
    findKinds(clustering);
  }

  LayerPieces take() { return std::move(result_); }

 private:
  // By value: who uses it.
  struct Uses {
    int made = -1;
    bool made_in_pass = false;
    bool gradient = false;
    std::vector<int> reads, forward, backward;  // layers, ascending
  };

  void findNodes() {
    result_.phases = training_.node_phase;
    for (int layer = 0; layer < layers_; ++layer) {
      for (Phase phase : kPassPhases) {
        for (NodeId node : cut_.piece(StageId(layer), phase).nodes) result_.phases[node.index()] = phase;
      }
      result_.nodes.push_back(shardedNodes(cut_, StageId(layer)));
    }
  }

  void findUses() {
    uses_.resize(graph_.values.size());
    for (int layer = 0; layer < layers_; ++layer) {
      for (NodeId id : result_.nodes[layer]) {
        const Phase phase = training_.node_phase[id.index()];
        for (ValueId input : graph_.node(id).inputs) {
          if (!input.valid()) continue;
          Uses& uses = uses_[input.index()];
          addLayer(layer, uses.reads);
          if (phase == Phase::kForward) addLayer(layer, uses.forward);
          if (isBackward(phase)) addLayer(layer, uses.backward);
        }
        for (ValueId output : graph_.node(id).outputs) {
          if (!output.valid()) continue;
          uses_[output.index()].made = layer;
          // what layers read of one weight each copies for itself
          uses_[output.index()].made_in_pass =
              phase != Phase::kUpdate && cut_.place(output).role != ValueRole::kWeightCopy;
          uses_[output.index()].gradient = isBackward(phase);
        }
      }
    }
  }

  bool isBatchInput(ValueId value) const { return cut_.place(value).role == ValueRole::kBatchInput; }

  void findCrossings() {
    result_.of_layer.resize(layers_);
    result_.at_cut.resize(layers_);
    for (size_t v = 0; v < uses_.size(); ++v) {
      const Uses& uses = uses_[v];
      const bool is_input = uses.made < 0 && isBatchInput(ValueId(v)) && uses.reads.size() > 1;
      if (!is_input && !uses.made_in_pass) continue;
      CrossingValue crossing{ValueId(v), uses.made, uses.gradient, batch_axes_[v], {}, {}, {}};
      for (int layer : uses.reads) {
        if (layer != uses.made) crossing.readers.push_back(layer);
      }
      if (crossing.readers.empty()) continue;
      for (int layer : uses.forward) {
        if (layer != uses.made) crossing.forward.push_back(layer);
      }
      if (!uses.gradient) crossing.waits = uses.backward;
      addCrossing(std::move(crossing));
    }
  }

  void addCrossing(CrossingValue crossing) {
    const int number = result_.crossings.size();
    std::vector<int> held = crossing.readers;
    if (crossing.made >= 0) held.push_back(crossing.made);
    for (int layer : held) result_.of_layer[layer].push_back(number);
    for (int cut = crossing.first(); crossing.made >= 0 && cut < crossing.last(); ++cut) {
      result_.at_cut[cut].push_back(number);
    }
    result_.crossings.push_back(std::move(crossing));
  }

  void findShared() {
    std::vector<bool> is_parameter(graph_.values.size());
    for (size_t p = 0; p < training_.parameters.size(); ++p) {
      const Parameter& parameter = training_.parameters[p];
      is_parameter[parameter.value.index()] = true;
      std::set<int> layers(uses_[parameter.value.index()].reads.begin(),
                           uses_[parameter.value.index()].reads.end());
      std::set<int> gradients;
      std::vector<std::pair<ValueId, int>> parts;
      for (ValueId part : parameter.gradient_parts) {
        const int made = uses_[part.index()].made;
        if (made < 0) continue;
        gradients.insert(made);
        parts.emplace_back(part, made);
      }
      std::set<int> all = layers;
      all.insert(gradients.begin(), gradients.end());
      if (all.size() < 2) continue;
      result_.shared.push_back({parameter.value,
                                {layers.begin(), layers.end()},
                                {gradients.begin(), gradients.end()},
                                std::move(parts)});
    }
    for (const auto& [id, initializer] : graph_.initializers) {
      const bool weight = !std::holds_alternative<Constant>(initializer) && !is_parameter[id.index()];
      if (weight && uses_[id.index()].reads.size() > 1) result_.replicated.push_back(id);
    }
  }

  static void mix(uint64_t& hash, uint64_t word) { hash = (hash ^ word) * 1099511628211ULL + (hash >> 29); }
  static void mix(uint64_t& hash, const std::string& text) {
    for (char c : text) mix(hash, static_cast<unsigned char>(c));
  }
  void mixType(uint64_t& hash, ValueId value) const {
    mix(hash, static_cast<uint64_t>(graph_.dataType(value)));
    for (int64_t size : graph_.shape(value)) mix(hash, size);
    mix(hash, ~uint64_t{0});
  }

  // What a layer's sharding depends on, but for attributes and constants, which Clustering::kinds has
  // compared.
  uint64_t signatureOf(int layer) const {
    uint64_t hash = 1469598103934665603ULL;
    std::map<ValueId, uint64_t> numbers;
    const auto mixValue = [&](ValueId value) {
      if (!value.valid()) return mix(hash, uint64_t{7});
      const auto [place, is_new] = numbers.try_emplace(value, numbers.size());
      mix(hash, place->second + 16);
      if (is_new) mixType(hash, value);
      if (is_new) mix(hash, static_cast<uint64_t>(cut_.place(value).role));
    };
    for (NodeId id : result_.nodes[layer]) {
      const Node& node = graph_.node(id);
      mix(hash, node.op_type);
      mix(hash, static_cast<uint64_t>(result_.phases[id.index()]));
      for (ValueId input : node.inputs) mixValue(input);
      mix(hash, uint64_t{11});
      for (ValueId output : node.outputs) mixValue(output);
    }
    for (int number : result_.of_layer[layer]) {
      const CrossingValue& crossing = result_.crossings[number];
      mixValue(crossing.value);
      mix(hash, crossing.axis + 1);
      mix(hash, (crossing.made == layer ? 2U : 0U) + (crossing.gradient ? 1U : 0U));
    }
    const auto mixShared = [&](ValueId value) {
      if (numbers.contains(value)) mix(hash, numbers[value]);
    };
    for (const SharedParameter& shared : result_.shared) {
      mixShared(shared.value);
      for (const auto& [part, made] : shared.parts) mixShared(part);
    }
    for (ValueId value : result_.replicated) mixShared(value);
    if (numbers.contains(training_.loss)) mix(hash, numbers[training_.loss]);
    return hash;
  }

  uint64_t signatureOfCut(int cut) const {
    uint64_t hash = 1469598103934665603ULL;
    for (int number : result_.at_cut[cut]) {
      const CrossingValue& crossing = result_.crossings[number];
      mixType(hash, crossing.value);
      mix(hash, crossing.axis + 1);
      mix(hash, crossing.gradient ? 1U : 0U);
    }
    return hash;
  }

  void findKinds(const Clustering& clustering) {
    std::map<std::pair<int, uint64_t>, int> kinds;
    std::map<uint64_t, int> cut_kinds;
    for (int layer = 0; layer < layers_; ++layer) {
      const std::pair key(clustering.kinds[LayerId(layer)], signatureOf(layer));
      result_.kinds.push_back(kinds.try_emplace(key, static_cast<int>(kinds.size())).first->second);
      result_.cut_kinds.push_back(
          cut_kinds.try_emplace(signatureOfCut(layer), static_cast<int>(cut_kinds.size())).first->second);
    }
    result_.kind_count = kinds.size();
  }

  const TrainingGraph& training_;
  const Graph& graph_;
  const std::vector<int>& batch_axes_;
  const int layers_;
  const Cut cut_;
  std::vector<Uses> uses_;  // by value
  LayerPieces result_;
};

}  // namespace

LayerPieces layerPieces(const TrainingGraph& training, const Clustering& clustering,
                        const std::vector<int>& batch_axes) {
  return Pieces(training, clustering, batch_axes).take();
}

}  // namespace pipeshard
