#include "sharding/stage/stage_memory.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace pipeshard {

namespace {

constexpr size_t kNamedValues = 5;  // in a message

bool isForward(Phase phase) { return phase == Phase::kForward || phase == Phase::kPrologue; }

}  // namespace

StageMemory::StageMemory(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                         const std::vector<StageValue>& values, const MemoryOptions& options)
    : training_(training),
      values_(values),
      options_(options),
      position_(training.graph.nodes.size(), -1),
      gradient_(training.graph.values.size()),
      intervals_(training.graph.values.size()) {
  for (size_t node = 0; node < training.graph.nodes.size(); ++node) {
    if (!isBackward(training.node_phase[node])) continue;
    for (ValueId output : training.graph.nodes[node].outputs) {
      if (output.valid()) gradient_[output.index()] = true;
    }
  }
  orderNodes(nodes);
  findRecomputedLayers();
  for (size_t index = 0; index < values.size(); ++index) {
    if (values[index].held && !values[index].constant) intervals_[index] = intervalOf(ValueId(index));
  }
  placeGradients();
}

// Forward passes by layers, backward passes by layers from the last one on, each whole or in two halves,
// updates.
StageMemory::PieceKey StageMemory::pieceKey(NodeId node) const {
  const Phase phase = training_.node_phase[node.index()];
  const int64_t layer =
      options_.recomputed_layers.empty() ? 0 : options_.recomputed_layers[node.index()].index();
  if (isForward(phase)) return {0, layer, 0};
  const bool second_half = phase == Phase::kBackwardWeight && !options_.whole_backward;
  if (isBackward(phase)) return {1, -layer, second_half ? 1 : 0};
  return {2, 0, 0};
}

void StageMemory::orderNodes(const std::vector<NodeId>& nodes) {
  order_ = nodes;
  if (options_.in_pieces) {
    std::stable_sort(order_.begin(), order_.end(),
                     [&](NodeId a, NodeId b) { return pieceKey(a) < pieceKey(b); });
  }
  pieces_.resize(order_.size());
  int64_t begin = 0;
  for (int64_t position = 0; position < nodeCount(); ++position) {
    const NodeId node = order_[position];
    position_[node.index()] = position;
    const bool is_pass = training_.node_phase[node.index()] != Phase::kUpdate;
    if (is_pass) passes_end_ = position + 1;
    const bool goes_on = position + 1 < nodeCount() && options_.in_pieces && is_pass &&
                         pieceKey(node) == pieceKey(order_[position + 1]);
    if (goes_on) continue;
    for (int64_t member = begin; member <= position; ++member) pieces_[member] = {begin, position + 1};
    begin = position + 1;
  }
}

void StageMemory::findRecomputedLayers() {
  for (int64_t position = 0; position < nodeCount() && !options_.recomputed_layers.empty(); ++position) {
    const NodeId node = order_[position];
    const Phase phase = training_.node_phase[node.index()];
    const auto [found, is_new] =
        recomputed_.try_emplace(options_.recomputed_layers[node.index()], 0, passes_end_);
    if (isForward(phase)) found->second.first = position + 1;
    if (isBackward(phase)) found->second.second = std::min(found->second.second, position);
  }
}

LiveInterval StageMemory::intervalOf(ValueId id) const {
  const StageValue& value = values_[id.index()];
  if (value.persistent) return {0, nodeCount(), false};
  int64_t made = value.producer.valid() ? position_[value.producer.index()] : 0;
  int64_t last = made;
  bool waits = false;
  if (!value.readers.empty() && !value.producer.valid() && gradient_[id.index()]) {
    made = nodeCount();
    for (const ValueReader& reader : value.readers) made = std::min(made, position_[reader.node.index()]);
  }
  for (const ValueReader& reader : value.readers) {
    last = std::max(last, position_[reader.node.index()]);
    const Phase phase = training_.node_phase[reader.node.index()];
    waits = waits || (!gradient_[id.index()] && !isForward(phase) && phase != Phase::kUpdate);
  }
  LiveInterval live{made, last + 1, waits};
  const bool inside = value.producer.valid() && last < pieces_[made].end;  // of one piece
  if (!inside) live = {value.producer.valid() ? made : pieces_[made].begin, lastEnd(last), waits};
  if (!value.producer.valid() || recomputed_.empty()) return live;
  if (!options_.kept_anyway.empty() && options_.kept_anyway[id.index()]) {
    keepAnyway(id, live);
  } else if (waits) {
    recompute(id, live);
  }
  return live;
}

int64_t StageMemory::lastEnd(int64_t last) const {
  if (!isBackward(training_.node_phase[order_[last].index()])) return pieces_[last].end;
  return behindElementwise(training_.graph, order_, last,
                           [&](int64_t position) { return pieces_[position].begin == pieces_[last].begin; });
}

// At least until its layer has made again what is made of it.
void StageMemory::keepAnyway(ValueId id, LiveInterval& live) const {
  const LayerId layer = options_.recomputed_layers[values_[id.index()].producer.index()];
  const int64_t backward_begin = recomputed_.at(layer).second;
  if (backward_begin < passes_end_) live.to = std::max(live.to, pieces_[backward_begin].end);
  live.from = std::min(live.from, pieces_[position_[values_[id.index()].producer.index()]].begin);
  live.waits = true;
}

// What one layer alone makes and reads.
void StageMemory::recompute(ValueId id, LiveInterval& live) const {
  const StageValue& value = values_[id.index()];
  const LayerId layer = options_.recomputed_layers[value.producer.index()];
  const auto elsewhere = [&](const ValueReader& reader) {
    return options_.recomputed_layers[reader.node.index()] != layer;
  };
  if (std::any_of(value.readers.begin(), value.readers.end(), elsewhere)) return;
  const auto [forward_end, backward_begin] = recomputed_.at(layer);
  const int64_t made = position_[value.producer.index()];
  live = {std::min(backward_begin, live.to - 1), live.to, false, made, std::max(forward_end, made + 1)};
}

// The parts of a gradient are one accumulator, from the first microbatch until the update.
void StageMemory::placeGradients() {
  for (const Parameter& parameter : training_.parameters) {
    if (parameter.gradient_parts.empty()) continue;
    LiveInterval all{nodeCount(), 0, false};
    ValueId holder;
    for (ValueId part : parameter.gradient_parts) {
      if (!values_[part.index()].held) continue;
      if (!holder.valid()) holder = part;
      all.from = std::min(all.from, intervals_[part.index()].from);
      all.to = std::max(all.to, intervals_[part.index()].to);
      intervals_[part.index()] = {};
    }
    if (!holder.valid()) continue;
    if (options_.microbatches > 1) all.from = 0;
    all.to = std::max(all.to, passes_end_);
    if (parameter.gradient.valid() && values_[parameter.gradient.index()].held) {
      LiveInterval& gradient = intervals_[parameter.gradient.index()];
      all.to = std::max(all.to, gradient.to);
      gradient.from = gradient.to - 1;
    }
    intervals_[holder.index()] = all;
  }
}

int64_t StageMemory::bytes(ValueId value, const ShardingSpec& spec, const LogicalMesh& mesh) const {
  return largestShard(spec, training_.graph.shape(value), mesh) *
         static_cast<int64_t>(dataTypeSize(training_.graph.dataType(value)));
}

std::vector<MemoryUse> StageMemory::uses(const StageSharding& sharding) const {
  std::map<ValueId, ShardingSpec> accumulated;  // by gradient
  for (const Parameter& parameter : training_.parameters) {
    if (parameter.gradient_parts.empty()) continue;
    accumulated[parameter.gradient] =
        sharding.kept[values_[parameter.gradient_parts.front().index()].shares.index()];
  }
  std::vector<MemoryUse> result;
  for (size_t index = 0; index < values_.size(); ++index) {
    const StageValue& value = values_[index];
    const ValueId id(index);
    if (!value.held || value.constant) continue;
    const ShardingSpec& kept = sharding.kept[index];
    const LiveInterval& live = intervals_[index];
    const auto gradient = accumulated.find(id);
    const bool in_accumulator = gradient != accumulated.end() && gradient->second == kept;
    if (live.from < live.to && !in_accumulator)
      result.push_back({id, bytes(id, kept, sharding.mesh), live.from, live.to});
    if (live.first_from < live.first_to)
      result.push_back({id, bytes(id, kept, sharding.mesh), live.first_from, live.first_to});
    if (live.waits && options_.in_flight > 1) {
      result.push_back({id, (options_.in_flight - 1) * bytes(id, kept, sharding.mesh), 0, passes_end_});
    }
    if (value.producer.valid()) {
      const ShardingSpec& made = sharding.strategies[value.producer.index()].outputs[value.output];
      const int64_t at = position_[value.producer.index()];
      const bool accumulated = live.from < pieces_[at].begin && !value.readers.empty();
      const bool apart = made != kept || live.from == live.to || accumulated;
      if (apart) result.push_back({id, bytes(id, made, sharding.mesh), at, at + 1});
    }
    for (const ValueReader& reader : value.readers) {
      std::set<ShardingSpec> wanted;
      for (size_t position : reader.positions)
        wanted.insert(sharding.strategies[reader.node.index()].inputs[position]);
      wanted.erase(kept);
      const int64_t at = position_[reader.node.index()];
      for (const ShardingSpec& spec : wanted)
        result.push_back({id, bytes(id, spec, sharding.mesh), at, at + 1});
    }
  }
  return result;
}

MemoryPeak peakOf(const std::vector<MemoryUse>& uses, int64_t node_count) {
  std::vector<int64_t> change(node_count + 1, 0);
  for (const MemoryUse& use : uses) {
    change[use.from] += use.bytes;
    change[use.to] -= use.bytes;
  }
  MemoryPeak peak;
  int64_t now = 0;
  for (int64_t time = 0; time < node_count; ++time) {
    now += change[time];
    if (now > peak.bytes) peak = {now, time, {}};
  }
  for (const MemoryUse& use : uses) {
    if (use.from <= peak.time && peak.time < use.to && use.bytes > 0) peak.uses.push_back(use);
  }
  std::stable_sort(peak.uses.begin(), peak.uses.end(),
                   [](const MemoryUse& a, const MemoryUse& b) { return a.bytes > b.bytes; });
  return peak;
}

std::string describePeak(const TrainingGraph& training, const std::vector<NodeId>& order,
                         const MemoryPeak& peak, int64_t limit) {
  std::vector<std::string> largest;
  for (size_t index = 0; index < std::min(kNamedValues, peak.uses.size()); ++index) {
    largest.push_back(
        fmt::format("'{}' {}", training.graph.value(peak.uses[index].value).name, peak.uses[index].bytes));
  }
  return fmt::format("at {} a device holds {} bytes, {} more than the {} that fit; the largest: {}",
                     describeNode(training.graph.node(order[peak.time])), peak.bytes, peak.bytes - limit,
                     limit, fmt::join(largest, ", "));
}

}  // namespace pipeshard
