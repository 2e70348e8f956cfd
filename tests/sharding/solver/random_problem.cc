#include "tests/sharding/solver/random_problem.h"

#include <algorithm>

#include "sharding/solver/evaluate.h"

namespace pipeshard {

namespace {

SolverProblem::Edge randomEdge(const SolverProblem& problem, const RandomProblemOptions& options,
                               solver::Random& random) {
  const int64_t count = problem.nodes.size();
  SolverProblem::Edge edge;
  size_t arity = 2;
  if (random.unit() < options.wide_edges) arity = 1 + static_cast<size_t>(random.below(4));
  while (edge.nodes.size() < arity) edge.nodes.push_back(random.below(count));
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
    choice.push_back(at - node.usages.begin());
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
    const int64_t least = peak(problem, false), most = peak(problem, true);
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
    while (at < choice.size() && ++choice[at] == std::ssize(problem.nodes[at].costs)) choice[at++] = 0;
    if (at == choice.size()) return best;
  }
}

namespace {

// A strategy is a layout of the value and a way to compute it; layouts differ in bytes, and going from one to
// another costs.
class LadderBuilder {
 public:
  LadderBuilder(int strategies, solver::Random& random) : strategies_(strategies), random_(random) {}

  int32_t addNode(int64_t from, int64_t to) {
    SolverProblem::Node node{.from = from, .to = to};
    const int64_t count = strategies_ * 3 / 4 + random_.below(strategies_ / 2 + 1),
                  bytes = 1000 + random_.below(10000);
    std::vector<int64_t> layouts;
    for (int64_t s = 0; s < count; ++s) {
      layouts.push_back(random_.below(kLayouts));
      const int64_t shift = layouts.back() % 4;
      node.costs.push_back(shift * bytes / 8 + random_.below(5000));
      node.usages.push_back(bytes >> shift);
    }
    problem_.nodes.push_back(std::move(node));
    layouts_.push_back(std::move(layouts));
    return problem_.nodes.size() - 1;
  }

  void join(int32_t a, int32_t b) {
    SolverProblem::Edge edge{.nodes = {a, b}};
    const int64_t bytes = 1000 + random_.below(10000);
    for (const int64_t x : layouts_[a]) {
      for (const int64_t y : layouts_[b])
        edge.costs.push_back(x == y ? 0 : bytes * (1 + (3 * x + 5 * y) % 7) / 4);
    }
    problem_.edges.push_back(std::move(edge));
  }

  SolverProblem take() { return std::move(problem_); }

 private:
  static constexpr int64_t kLayouts = 7;

  int strategies_;
  solver::Random& random_;
  SolverProblem problem_;
  std::vector<std::vector<int64_t>> layouts_;
};

}  // namespace

SolverProblem ladder(int layers, int strategies, bool memory, solver::Random& random) {
  LadderBuilder builder(strategies, random);
  std::vector<int32_t> forward, weight;
  for (int i = 0; i < layers; ++i) {
    weight.push_back(builder.addNode(0, 2 * layers + 1));
    forward.push_back(builder.addNode(i, 2 * layers - i));
    builder.join(weight[i], forward[i]);
    if (i > 0) builder.join(forward[i - 1], forward[i]);
    if (i > 2 && i % 3 == 0) builder.join(forward[i - 3], forward[i]);
  }
  int32_t later = -1;
  for (int i = layers; i-- > 0;) {
    const int32_t gradient = builder.addNode(2 * layers - i - 1, 2 * layers - i + 1);
    const int32_t weight_gradient = builder.addNode(2 * layers - i - 1, 2 * layers + 1);
    builder.join(forward[i], gradient);
    builder.join(weight[i], gradient);
    if (later >= 0) builder.join(later, gradient);
    builder.join(gradient, weight_gradient);
    builder.join(weight_gradient, weight[i]);
    later = gradient;
  }
  SolverProblem problem = builder.take();
  if (memory) {
    const int64_t least = peak(problem, false), most = peak(problem, true);
    problem.usage_limit = least + (most - least) / 3;
  }
  return problem;
}

}  // namespace pipeshard
