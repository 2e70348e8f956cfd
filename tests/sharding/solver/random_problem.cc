#include "tests/sharding/solver/random_problem.h"

#include <algorithm>

namespace pipeshard {

namespace {

SolverProblem::Edge randomEdge(const SolverProblem& problem, const RandomProblemOptions& options, solver::Random& random) {
  const auto count = static_cast<int64_t>(problem.nodes.size());
  SolverProblem::Edge edge;
  size_t arity = 2;
  if (random.unit() < options.wide_edges) arity = 1 + static_cast<size_t>(random.below(4));
  while (edge.nodes.size() < arity) edge.nodes.push_back(static_cast<int32_t>(random.below(count)));
  size_t entries = 1;
  for (const int32_t node : edge.nodes) entries *= problem.nodes[node].costs.size();
  const bool equal = arity == 2 && random.unit() < options.equal_labels;
  for (size_t i = 0; i < entries; ++i) {
    const size_t columns = problem.nodes[edge.nodes.back()].costs.size();
    const bool forbidden = equal ? i / columns % columns != i % columns : random.unit() < options.forbidden;
    edge.costs.push_back(forbidden ? kForbiddenCost + random.below(5) : random.below(options.most_cost + 1));
  }
  return edge;
}

Int128 peak(const SolverProblem& problem, bool most) {
  std::vector<int32_t> choice;
  for (const SolverProblem::Node& node : problem.nodes) {
    const auto at = node.usages.empty() ? node.usages.begin()
                    : most              ? std::max_element(node.usages.begin(), node.usages.end())
                                        : std::min_element(node.usages.begin(), node.usages.end());
    choice.push_back(static_cast<int32_t>(at - node.usages.begin()));
  }
  return evaluate(problem, choice).peak_usage;
}

}  // namespace

SolverProblem randomProblem(const RandomProblemOptions& options, solver::Random& random) {
  SolverProblem problem;
  for (int i = 0; i < options.nodes; ++i) {
    SolverProblem::Node node;
    node.from = random.below(options.nodes);
    node.to = node.from + random.below(6);
    const int64_t strategies = 1 + random.below(options.most_strategies);
    for (int64_t s = 0; s < strategies; ++s) {
      const bool forbidden = random.unit() < options.forbidden / 2;
      node.costs.push_back(forbidden ? kForbiddenCost : random.below(options.most_cost + 1));
      node.usages.push_back(random.below(10));
    }
    if (random.below(8) == 0) node.usages.clear();
    problem.nodes.push_back(std::move(node));
  }
  for (int i = 0; i < options.edges; ++i) problem.edges.push_back(randomEdge(problem, options, random));
  if (options.memory) {
    const auto least = static_cast<int64_t>(peak(problem, false)), most = static_cast<int64_t>(peak(problem, true));
    problem.usage_limit = least + static_cast<int64_t>(options.tightness * static_cast<double>(most - least));
  }
  return problem;
}

std::optional<Int128> bruteForce(const SolverProblem& problem) {
  std::optional<Int128> best;
  std::vector<int32_t> choice(problem.nodes.size(), 0);
  for (;;) {
    const SolverEvaluation evaluation = evaluate(problem, choice);
    if (evaluation.feasible && (!best || evaluation.cost < *best)) best = evaluation.cost;
    size_t at = 0;
    while (at < choice.size() && ++choice[at] == static_cast<int32_t>(problem.nodes[at].costs.size())) choice[at++] = 0;
    if (at == choice.size()) return best;
  }
}

SolverProblem ladder(int layers, int strategies, bool memory, solver::Random& random) {
  SolverProblem problem;
  const auto addNode = [&](int64_t from, int64_t to) {
    SolverProblem::Node node{.from = from, .to = to, .costs = {}, .usages = {}};
    const int64_t count = strategies * 3 / 4 + random.below(strategies / 2 + 1);
    const int64_t bytes = 1000 + random.below(10000);
    for (int64_t s = 0; s < count; ++s) {
      node.costs.push_back(random.below(5) == 0 ? random.below(10000) : 0);
      node.usages.push_back(bytes >> random.below(4));
    }
    problem.nodes.push_back(std::move(node));
    return static_cast<int32_t>(problem.nodes.size() - 1);
  };
  const auto join = [&](int32_t a, int32_t b) {
    SolverProblem::Edge edge{.nodes = {a, b}, .costs = {}};
    const int64_t bytes = 100 + random.below(5000);
    for (size_t i = 0; i < problem.nodes[a].costs.size() * problem.nodes[b].costs.size(); ++i) {
      edge.costs.push_back(random.below(4) == 0 ? 0 : bytes * (1 + random.below(8)) / 8);
    }
    problem.edges.push_back(std::move(edge));
  };
  std::vector<int32_t> forward, weight;
  for (int i = 0; i < layers; ++i) {
    weight.push_back(addNode(0, 2 * layers));
    forward.push_back(addNode(i, 2 * layers - i));
    join(weight[i], forward[i]);
    if (i > 0) join(forward[i - 1], forward[i]);
  }
  int32_t later = -1;
  for (int i = layers; i-- > 0;) {
    const int32_t gradient = addNode(2 * layers - i - 1, 2 * layers - i + 1);
    const int32_t weight_gradient = addNode(2 * layers - i - 1, 2 * layers + 1);
    join(forward[i], gradient);
    if (later >= 0) join(later, gradient);
    join(gradient, weight_gradient);
    join(weight_gradient, weight[i]);
    later = gradient;
  }
  if (memory) {
    const auto least = static_cast<int64_t>(peak(problem, false)), most = static_cast<int64_t>(peak(problem, true));
    problem.usage_limit = least + (most - least) / 3;
  }
  return problem;
}

}  // namespace pipeshard
