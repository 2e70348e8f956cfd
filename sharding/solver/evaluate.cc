#include "sharding/solver/evaluate.h"

#include <algorithm>
#include <tuple>

#include "ir/base/error.h"

namespace pipeshard {

namespace {

void checkNodes(const SolverProblem& problem) {
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    const SolverProblem::Node& node = problem.nodes[i];
    if (node.costs.empty()) fail(ErrorCode::kConfiguration, "node {} has no strategy", i);
    if (!node.usages.empty() && node.usages.size() != node.costs.size()) {
      fail(ErrorCode::kConfiguration,
           "node {} has {} costs and {} usages; there must be one usage per strategy, or none", i,
           node.costs.size(), node.usages.size());
    }
    const auto negative = [](int64_t value) { return value < 0; };
    if (std::any_of(node.costs.begin(), node.costs.end(), negative))
      fail(ErrorCode::kConfiguration, "node {} has a negative cost", i);
    if (std::any_of(node.usages.begin(), node.usages.end(), negative))
      fail(ErrorCode::kConfiguration, "node {} has a negative usage", i);
  }
}

void checkEdge(const SolverProblem& problem, size_t index) {
  constexpr size_t kMaxEntries = size_t{1} << 16;
  const SolverProblem::Edge& edge = problem.edges[index];
  if (edge.nodes.empty()) fail(ErrorCode::kConfiguration, "edge {} joins no node", index);
  size_t entries = 1;
  for (const int32_t node : edge.nodes) {
    if (node < 0 || node >= std::ssize(problem.nodes)) {
      fail(ErrorCode::kConfiguration, "edge {} joins node {}, but there are {} nodes", index, node,
           problem.nodes.size());
    }
    entries *= problem.nodes[node].costs.size();
    if (entries > kMaxEntries && edge.nodes.size() > 2) {
      fail(ErrorCode::kConfiguration, "edge {} joins {} nodes with more than {} combinations", index,
           edge.nodes.size(), kMaxEntries);
    }
  }
  if (edge.costs.size() != entries) {
    fail(ErrorCode::kConfiguration, "edge {} has {} costs; its nodes have {} combinations", index,
         edge.costs.size(), entries);
  }
  if (std::any_of(edge.costs.begin(), edge.costs.end(), [](int64_t value) { return value < 0; })) {
    fail(ErrorCode::kConfiguration, "edge {} has a negative cost", index);
  }
}

// (peak, its first time); no node: (0, 0).
std::pair<Int128, int64_t> peakUsage(const SolverProblem& problem, const std::vector<int32_t>& choice) {
  std::vector<std::pair<int64_t, Int128>> changes;
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    const SolverProblem::Node& node = problem.nodes[i];
    if (node.usages.empty() || node.from >= node.to) continue;
    changes.emplace_back(node.from, node.usages[choice[i]]);
    changes.emplace_back(node.to, -Int128{node.usages[choice[i]]});
  }
  std::sort(changes.begin(), changes.end());
  std::pair<Int128, int64_t> peak{0, changes.empty() ? 0 : changes.front().first};
  Int128 usage = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    usage += changes[i].second;
    const bool last_of_time = i + 1 == changes.size() || changes[i + 1].first != changes[i].first;
    if (last_of_time && usage > peak.first) peak = {usage, changes[i].first};
  }
  return peak;
}

}  // namespace

void checkProblem(const SolverProblem& problem) {
  checkNodes(problem);
  for (size_t i = 0; i < problem.edges.size(); ++i) checkEdge(problem, i);
  if (problem.usage_limit && *problem.usage_limit < 0) {
    fail(ErrorCode::kConfiguration, "the usage limit is {}; it must not be negative", *problem.usage_limit);
  }
}

SolverEvaluation evaluate(const SolverProblem& problem, const std::vector<int32_t>& choice) {
  checkProblem(problem);
  if (choice.size() != problem.nodes.size()) {
    fail(ErrorCode::kConfiguration, "the choice has {} entries; there are {} nodes", choice.size(),
         problem.nodes.size());
  }
  SolverEvaluation evaluation;
  const auto add = [&](int64_t cost) {
    evaluation.cost += cost;
    evaluation.forbidden |= cost >= kForbiddenCost;
  };
  for (size_t i = 0; i < choice.size(); ++i) {
    const int64_t strategies = problem.nodes[i].costs.size();
    if (choice[i] < 0 || choice[i] >= strategies) {
      fail(ErrorCode::kConfiguration, "node {} has {} strategies; strategy {} was chosen", i, strategies,
           choice[i]);
    }
    add(problem.nodes[i].costs[choice[i]]);
  }
  for (const SolverProblem::Edge& edge : problem.edges) {
    size_t index = 0;
    for (const int32_t node : edge.nodes) index = index * problem.nodes[node].costs.size() + choice[node];
    add(edge.costs[index]);
  }
  std::tie(evaluation.peak_usage, evaluation.peak_time) = peakUsage(problem, choice);
  evaluation.feasible =
      !evaluation.forbidden && (!problem.usage_limit || evaluation.peak_usage <= *problem.usage_limit);
  return evaluation;
}

}  // namespace pipeshard
