#include "tools/profile_samples.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "ir/error.h"
#include "runtime/subgraph.h"
#include "sharding/operator_work.h"

namespace pipeshard {
namespace {

constexpr int64_t kMostFootprint = int64_t{64} << 20;

// The node alone; its inputs are the graph's, but for constants.
OperatorSample sampleOf(const Graph& graph, NodeId id, const std::map<ValueId, ValueId>& in_place) {
  const Node& node = graph.node(id);
  std::vector<ValueId> inputs, outputs;
  for (const ValueId input : node.inputs) {
    const bool listed = std::find(inputs.begin(), inputs.end(), input) != inputs.end();
    if (input.valid() && graph.constant(input) == nullptr && !listed) inputs.push_back(input);
  }
  OperatorSample sample;
  for (const ValueId output : node.outputs) {
    if (!output.valid()) continue;
    outputs.push_back(output);
    const auto shared = in_place.find(output);
    const auto input = shared == in_place.end() ? inputs.end() : std::find(inputs.begin(), inputs.end(), shared->second);
    sample.in_place.push_back(input == inputs.end() ? -1 : static_cast<int>(input - inputs.begin()));
  }
  sample.graph = extractSubgraph(graph, "sample", {id}, inputs, outputs);
  return sample;
}

}  // namespace

void ProfileSamples::add(const Graph& graph, const std::map<ValueId, ValueId>& in_place, int64_t update_bytes) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (collectiveKind(node) || isPlacing(node)) continue;
    const auto rule = factorRule(graph, node);
    if (rule && rule->flops == 0) continue;
    const NodeWork node_work = nodeWork(graph, node, rule);
    const OperatorWork work = operatorWork(graph, node, rule, node_work);
    if (!known_.emplace(work, works_.size()).second) continue;
    works_.push_back(work);
    classes_.push_back(node_work.work_class);
    samples_.push_back(sampleOf(graph, NodeId(n), in_place));
    const std::vector<int>& shared = samples_.back().in_place;
    const bool updates = std::any_of(shared.begin(), shared.end(), [](int input) { return input >= 0; });
    if (updates) samples_.back().footprint_bytes = std::clamp(update_bytes, kDefaultFootprint, kMostFootprint);
  }
}

void ProfileSamples::add(const Program& program, const std::vector<Graph>& subgraphs) {
  int64_t persistent = 0;
  for (const Buffer& buffer : program.buffers) {
    if (isPersistent(buffer.kind)) persistent += byteCount(buffer.data_type, buffer.shape);
  }
  for (size_t s = 0; s < subgraphs.size(); ++s) {
    const Graph graph = runnableGraph(subgraphs[s], cpuKernels());
    std::map<ValueId, ValueId> in_place;
    const auto runs = [&](const Instruction& instruction) { return instruction.subgraph.valid() && instruction.subgraph.index() == s; };
    const auto found = std::find_if(program.instructions.begin(), program.instructions.end(), runs);
    if (found == program.instructions.end()) continue;
    for (size_t o = 0; o < found->outputs.size(); ++o) {
      const auto input = std::find(found->inputs.begin(), found->inputs.end(), found->outputs[o]);
      if (input != found->inputs.end()) in_place[graph.outputs[o]] = graph.inputs[static_cast<size_t>(input - found->inputs.begin())];
    }
    add(graph, in_place, persistent);
  }
}

std::vector<WorkRate> ProfileSamples::rates(const std::vector<OperatorTime>& times) const {
  std::vector<WorkRate> rates;
  for (int c = 0; c < kWorkClassCount; ++c) {
    const auto work_class = static_cast<WorkClass>(c);
    const bool by_flops = work_class == WorkClass::kContraction || work_class == WorkClass::kConvolution;
    std::map<int, std::vector<double>> by_amount;  // by log4: nanoseconds of one
    for (size_t i = 0; i < works_.size(); ++i) {
      const int64_t amount = by_flops ? works_[i].flops : works_[i].bytes;
      if (classes_[i] != work_class || works_[i].type != DataType::kFloat32 || amount < 16) continue;
      by_amount[(std::bit_width(static_cast<uint64_t>(amount)) - 1) / 2].push_back(static_cast<double>(times[i].ns) /
                                                                                   static_cast<double>(amount));
    }
    CostCurve curve;
    for (auto& [log4, costs] : by_amount) {
      std::nth_element(costs.begin(), costs.begin() + static_cast<ptrdiff_t>(costs.size() / 2), costs.end());
      const int64_t amount = int64_t{2} << (2 * log4);
      const int64_t ns = std::llround(costs[costs.size() / 2] * static_cast<double>(amount));
      curve.points.push_back({amount, std::max(ns, curve.points.empty() ? 1 : curve.points.back().ns)});
    }
    if (curve.points.empty()) continue;
    rates.push_back({work_class, DataType::kFloat32, by_flops ? curve : CostCurve{}, by_flops ? CostCurve{} : curve});
  }
  return rates;
}

std::vector<ProfilePoint> ProfileSamples::points(const std::vector<OperatorTime>& times) const {
  PIPESHARD_CHECK(times.size() == works_.size(), "{} times of {} samples", times.size(), works_.size());
  std::vector<ProfilePoint> points;
  for (size_t i = 0; i < times.size(); ++i) points.push_back({works_[i], times[i].ns, times[i].busy_ns});
  return points;
}

}  // namespace pipeshard
