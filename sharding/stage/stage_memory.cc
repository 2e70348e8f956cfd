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
      nodes_(nodes),
      values_(values),
      options_(options),
      position_(training.graph.nodes.size(), -1),
      gradient_(training.graph.values.size()),
      intervals_(training.graph.values.size()) {
  for (size_t node = 0; node < training.graph.nodes.size(); ++node) {
    const Phase phase = training.node_phase[node];
    if (isForward(phase) || phase == Phase::kUpdate) continue;
    for (ValueId output : training.graph.nodes[node].outputs) {
      if (output.valid()) gradient_[output.index()] = true;
    }
  }
  for (size_t position = 0; position < nodes.size(); ++position) {
    position_[nodes[position].index()] = position;
    if (training.node_phase[nodes[position].index()] != Phase::kUpdate) passes_end_ = position + 1;
  }
  for (size_t position = 0; position < nodes.size() && !options_.recomputed_layers.empty(); ++position) {
    const Phase phase = training.node_phase[nodes[position].index()];
    const auto [found, is_new] =
        recomputed_.try_emplace(options_.recomputed_layers[nodes[position].index()], 0, passes_end_);
    if (isForward(phase)) found->second.first = position + 1;
    if (!isForward(phase) && phase != Phase::kUpdate)
      found->second.second = std::min<int64_t>(found->second.second, position);
  }
  for (size_t index = 0; index < values.size(); ++index) {
    if (values[index].held && !values[index].constant) intervals_[index] = intervalOf(ValueId(index));
  }
  placeGradients();
}

LiveInterval StageMemory::intervalOf(ValueId id) const {
  const StageValue& value = values_[id.index()];
  if (value.persistent) return {0, nodeCount(), false};
  int64_t made = value.producer.valid() ? position_[value.producer.index()] : 0;
  if (!value.producer.valid() && gradient_[id.index()] && !value.readers.empty())
    made = position_[value.readers.front().node.index()];
  int64_t last = made;
  bool waits = false;
  for (const ValueReader& reader : value.readers) {
    last = std::max(last, position_[reader.node.index()]);
    const Phase phase = training_.node_phase[reader.node.index()];
    waits = waits || (!gradient_[id.index()] && !isForward(phase) && phase != Phase::kUpdate);
  }
  LiveInterval live{made, last + 1, waits};
  if (waits && value.producer.valid() && !recomputed_.empty()) recompute(id, live);
  return live;
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
  live = {std::min(backward_begin, live.to - 1), live.to, false, live.from,
          std::max(forward_end, live.from + 1)};
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
      const bool apart = made != kept || live.from == live.to || (live.from < at && !value.readers.empty());
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

std::string describePeak(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                         const MemoryPeak& peak, int64_t limit) {
  std::vector<std::string> largest;
  for (size_t index = 0; index < std::min(kNamedValues, peak.uses.size()); ++index) {
    largest.push_back(
        fmt::format("'{}' {}", training.graph.value(peak.uses[index].value).name, peak.uses[index].bytes));
  }
  return fmt::format("at {} a device holds {} bytes, {} more than the {} that fit; the largest: {}",
                     describeNode(training.graph.node(nodes[peak.time])), peak.bytes, peak.bytes - limit,
                     limit, fmt::join(largest, ", "));
}

}  // namespace pipeshard
