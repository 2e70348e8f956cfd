#include "tools/profile_samples.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "ir/base/error.h"
#include "runtime/execute/subgraph.h"
#include "sharding/spmd/operator_work.h"
#include "transport/shared/memory_available.h"

namespace pipeshard {
namespace {

// Of the memory that is available, for all workers together.
constexpr double kMostMemory = 0.6;

// The node alone; its inputs are the graph's, but for constants.
GraphPass aloneOf(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  std::vector<ValueId> inputs, outputs;
  for (const ValueId input : node.inputs) {
    const bool listed = std::find(inputs.begin(), inputs.end(), input) != inputs.end();
    if (input.valid() && graph.constant(input) == nullptr && !listed) inputs.push_back(input);
  }
  for (const ValueId output : node.outputs) {
    if (output.valid()) outputs.push_back(output);
  }
  return {extractSubgraph(graph, "sample", {id}, inputs, outputs)};
}

// Nothing: the device has no kernel for one of its operators.
std::optional<int64_t> bytesOf(const PassSample& pass, const ProfilingOptions& options) {
  try {
    return passBytes(pass, options);
  } catch (const Error& error) {
    if (options.device == nullptr || error.code() != ErrorCode::kBadModel) throw;
    return std::nullopt;
  }
}

}  // namespace

RankImage imageOf(const GraphPass& pass) {
  RankImage image;
  Program& program = image.program;
  Instruction run;
  run.kind = InstructionKind::kUpdate;
  run.subgraph = SubgraphId(0);
  std::map<ValueId, BufferId> buffers;
  const auto addBuffer = [&](ValueId id, BufferKind kind) {
    const Value& value = pass.graph.value(id);
    Buffer& buffer = program.buffers.emplace_back();
    buffer.name = buffer.value = value.name;
    buffer.kind = kind;
    buffer.data_type = value.data_type;
    buffer.shape = *value.shape;
    return buffers[id] = BufferId(program.buffers.size() - 1);
  };
  for (const ValueId input : pass.graph.inputs) {
    const Value& value = pass.graph.value(input);
    const bool counts = value.data_type == DataType::kInt64 && value.shape->empty();
    const bool zero = pass.states.count(input) > 0;
    run.inputs.push_back(addBuffer(input, counts ? BufferKind::kStep
                                          : zero ? BufferKind::kOptimizerState
                                                 : BufferKind::kParameter));
    const auto below = pass.below.find(input);
    if (below != pass.below.end())
      program.inputs.push_back({value.name, value.data_type, *value.shape, -1, 0, below->second, {}});
  }
  for (const ValueId output : pass.graph.outputs) {
    const auto place = pass.in_place.find(output);
    run.outputs.push_back(place != pass.in_place.end() ? buffers.at(place->second)
                                                       : addBuffer(output, BufferKind::kParameter));
  }
  Subgraph subgraph;
  subgraph.name = "sample";
  program.subgraphs = {subgraph};
  program.instructions = {run};
  image.subgraphs = {pass.graph};
  return image;
}

std::vector<int> ProfileSamples::addWorks(const Graph& graph, size_t& added) {
  std::vector<int> numbers;
  for (const Node& node : graph.nodes) {
    numbers.push_back(-1);
    if (collectiveKind(node)) continue;
    const auto rule = factorRule(graph, node);
    if (rule && rule->flops == 0) continue;
    const NodeWork node_work = nodeWork(graph, node, rule);
    const auto [place, is_new] = known_.emplace(operatorWork(graph, node, rule, node_work), works_.size());
    numbers.back() = place->second;
    if (!is_new) continue;
    works_.push_back(place->first);
    classes_.push_back(node_work.work_class);
    ++added;
  }
  return numbers;
}

void ProfileSamples::add(RankImage image) {
  PassSample pass;
  size_t added = 0;
  const auto isRun = [&](size_t subgraph) {
    return std::any_of(image.program.instructions.begin(), image.program.instructions.end(),
                       [&](const Instruction& instruction) {
                         return instruction.subgraph.valid() && instruction.subgraph.index() == subgraph;
                       });
  };
  for (size_t s = 0; s < image.subgraphs.size(); ++s) {
    pass.work.push_back(isRun(s) ? addWorks(runnableGraph(image.subgraphs[s], kernels_), added)
                                 : std::vector<int>());
  }
  if (added == 0) return;
  pass.image = std::move(image);
  passes_.push_back(std::move(pass));
}

std::vector<PassSample> ProfileSamples::apart(const PassSample& pass) const {
  std::vector<PassSample> samples;
  std::set<int> taken;
  for (size_t s = 0; s < pass.work.size(); ++s) {
    const Graph graph = runnableGraph(pass.image.subgraphs[s], kernels_);
    for (size_t n = 0; n < pass.work[s].size(); ++n) {
      const int work = pass.work[s][n];
      if (work >= 0 && taken.insert(work).second)
        samples.push_back({imageOf(aloneOf(graph, NodeId(n))), {{work}}});
    }
  }
  return samples;
}

int64_t ProfileSamples::shareOfMemory(int workers) {
  return static_cast<int64_t>(kMostMemory *
                              static_cast<double>(std::min(availableMemory(), size_t{1} << 50))) /
         std::max(1, workers);
}

std::vector<OperatorTime> ProfileSamples::measure(const ProfilingOptions& options,
                                                  const ProfilingProgress& progress,
                                                  int64_t most_bytes) const {
  std::vector<PassSample> samples;
  for (const PassSample& pass : passes_) {
    const std::optional<int64_t> bytes = bytesOf(pass, options);
    if (bytes && *bytes <= most_bytes) {
      samples.push_back(pass);
      continue;
    }
    for (PassSample& sample : apart(pass)) {
      if (bytes || bytesOf(sample, options)) samples.push_back(std::move(sample));
    }
  }
  return measurePasses(samples, works_.size(), options, progress);
}

std::vector<WorkRate> ProfileSamples::rates(const std::vector<OperatorTime>& times) const {
  std::vector<WorkRate> rates;
  for (int c = 0; c < kWorkClassCount; ++c) {
    const auto work_class = static_cast<WorkClass>(c);
    const bool by_flops = work_class == WorkClass::kContraction || work_class == WorkClass::kConvolution;
    std::map<int, std::vector<double>> by_amount;  // by log4: nanoseconds of one
    for (size_t i = 0; i < works_.size(); ++i) {
      const int64_t amount = by_flops ? works_[i].flops : works_[i].bytes;
      if (classes_[i] != work_class || works_[i].type != DataType::kFloat32 || amount < 16 ||
          times[i].ns == 0)
        continue;
      by_amount[(std::bit_width(static_cast<uint64_t>(amount)) - 1) / 2].push_back(
          static_cast<double>(times[i].ns) / static_cast<double>(amount));
    }
    CostCurve curve;
    for (auto& [log4, costs] : by_amount) {
      std::nth_element(costs.begin(), costs.begin() + static_cast<ptrdiff_t>(costs.size() / 2), costs.end());
      const int64_t amount = int64_t{2} << (2 * log4);
      const int64_t ns = std::llround(costs[costs.size() / 2] * static_cast<double>(amount));
      curve.points.push_back({amount, std::max(ns, curve.points.empty() ? 1 : curve.points.back().ns)});
    }
    if (curve.points.empty()) continue;
    rates.push_back(
        {work_class, DataType::kFloat32, by_flops ? curve : CostCurve{}, by_flops ? CostCurve{} : curve});
  }
  return rates;
}

std::set<std::string> ProfileSamples::leftOut(const std::vector<OperatorTime>& times) const {
  std::set<std::string> names;
  for (size_t i = 0; i < times.size(); ++i) {
    if (times[i].ns == 0) names.insert(works_[i].op);
  }
  return names;
}

std::vector<ProfilePoint> ProfileSamples::points(const std::vector<OperatorTime>& times) const {
  PIPESHARD_CHECK(times.size() == works_.size(), "{} times of {} samples", times.size(), works_.size());
  std::vector<ProfilePoint> points;
  for (size_t i = 0; i < times.size(); ++i) {
    if (times[i].ns > 0) points.push_back({works_[i], times[i].ns, times[i].busy_ns});
  }
  return points;
}

}  // namespace pipeshard
