#include "sharding/solver/model.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "ir/base/error.h"

namespace pipeshard::solver {

namespace {

// A cost above all sums of others, for what is forbidden.
double forbiddenCost(const SolverProblem& problem) {
  double sum = 1;
  const auto largest = [](const std::vector<int64_t>& costs) {
    int64_t most = 0;
    for (const int64_t cost : costs) most = cost < kForbiddenCost ? std::max(most, cost) : most;
    return static_cast<double>(most);
  };
  for (const SolverProblem::Node& node : problem.nodes) sum += largest(node.costs);
  for (const SolverProblem::Edge& edge : problem.edges) sum += largest(edge.costs);
  return 4 * sum;  // half of it is more than any sum, however rounded
}

std::vector<double> toCosts(const std::vector<int64_t>& costs, double big) {
  std::vector<double> result(costs.size());
  for (size_t i = 0; i < costs.size(); ++i)
    result[i] = costs[i] >= kForbiddenCost ? big : static_cast<double>(costs[i]);
  return result;
}

class Builder {
 public:
  explicit Builder(const SolverProblem& problem) : problem_(problem) {}

  Model build() {
    model_.big = forbiddenCost(problem_);
    for (const SolverProblem::Node& node : problem_.nodes)
      model_.nodes.push_back(
          {.costs = toCosts(node.costs, model_.big), .items = {}, .edges = {}, .origins = {}});
    addItems();
    for (const SolverProblem::Edge& edge : problem_.edges) addEdge(edge);
    return std::move(model_);
  }

 private:
  bool usesMemory(const SolverProblem::Node& node) const {
    return !node.usages.empty() && node.from < node.to;
  }

  // One row per interval between two events.
  void addItems() {
    if (!problem_.usage_limit) return;
    std::vector<int64_t> times;
    Int128 total = 0;
    for (const SolverProblem::Node& node : problem_.nodes) {
      if (!usesMemory(node)) continue;
      times.push_back(node.from);
      times.push_back(node.to);
      total += *std::max_element(node.usages.begin(), node.usages.end());
    }
    if (total >> 62 != 0)
      fail(ErrorCode::kConfiguration,
           "the usages of all nodes together exceed 2^62 bytes; choose a larger unit");
    std::sort(times.begin(), times.end());
    times.erase(std::unique(times.begin(), times.end()), times.end());
    if (times.empty()) return;
    for (size_t i = 0; i + 1 < times.size(); ++i) model_.rows.push_back({*problem_.usage_limit, times[i], 0});
    const auto rowOf = [&](int64_t time) -> int32_t {
      return std::lower_bound(times.begin(), times.end(), time) - times.begin();
    };
    for (size_t i = 0; i < problem_.nodes.size(); ++i) {
      const SolverProblem::Node& node = problem_.nodes[i];
      if (usesMemory(node)) model_.nodes[i].items.push_back({rowOf(node.from), rowOf(node.to), node.usages});
    }
  }

  void addEdge(const SolverProblem::Edge& edge) {
    std::vector<int32_t> distinct = edge.nodes;
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    std::vector<double> costs = toCosts(edge.costs, model_.big);
    if (distinct.size() < edge.nodes.size()) costs = withoutRepeats(edge.nodes, distinct, costs);
    const std::vector<int32_t>& nodes = distinct.size() < edge.nodes.size() ? distinct : edge.nodes;
    if (nodes.size() == 1) {
      for (size_t i = 0; i < costs.size(); ++i) model_.nodes[nodes[0]].costs[i] += costs[i];
    } else if (nodes.size() == 2) {
      addPair(nodes[0], nodes[1], std::move(costs));
    } else {
      addCombination(nodes, costs);
    }
  }

  // The table over distinct nodes of an edge that names a node more than once.
  std::vector<double> withoutRepeats(const std::vector<int32_t>& nodes, const std::vector<int32_t>& distinct,
                                     const std::vector<double>& costs) {
    size_t entries = 1;
    for (const int32_t node : distinct) entries *= model_.nodes[node].costs.size();
    std::vector<double> result(entries);
    std::unordered_map<int32_t, size_t> label;
    for (size_t entry = 0; entry < entries; ++entry) {
      size_t rest = entry;
      for (size_t i = distinct.size(); i-- > 0;) {
        label[distinct[i]] = rest % model_.nodes[distinct[i]].costs.size();
        rest /= model_.nodes[distinct[i]].costs.size();
      }
      size_t index = 0;
      for (const int32_t node : nodes) index = index * model_.nodes[node].costs.size() + label[node];
      result[entry] = costs[index];
    }
    return result;
  }

  void addPair(int32_t a, int32_t b, std::vector<double> table) {
    if (a > b) {
      std::vector<double> turned(table.size());
      const size_t rows = model_.nodes[a].costs.size(), columns = model_.nodes[b].costs.size();
      for (size_t i = 0; i < rows; ++i) {
        for (size_t j = 0; j < columns; ++j) turned[j * rows + i] = table[i * columns + j];
      }
      table = std::move(turned);
      std::swap(a, b);
    }
    const auto [at, added] = edge_of_.try_emplace((int64_t{a} << 32) | b, model_.edges.size());
    if (!added) {
      std::vector<double>& present = model_.edges[at->second].table;
      for (size_t i = 0; i < table.size(); ++i) present[i] += table[i];
      return;
    }
    model_.nodes[a].edges.push_back(at->second);
    model_.nodes[b].edges.push_back(at->second);
    model_.edges.push_back({.a = a, .b = b, .table = std::move(table), .transposed = {}});
  }

  void addCombination(const std::vector<int32_t>& nodes, const std::vector<double>& costs) {
    std::vector<size_t> allowed;
    for (size_t i = 0; i < costs.size(); ++i) {
      if (costs[i] < model_.big) allowed.push_back(i);
    }
    if (allowed.empty()) allowed.push_back(0);
    const int32_t combination = model_.nodes.size();
    model_.nodes.emplace_back();
    for (const size_t entry : allowed) model_.nodes.back().costs.push_back(costs[entry]);
    size_t stride = costs.size();
    for (const int32_t node : nodes) {
      const size_t size = model_.nodes[node].costs.size();
      stride /= size;
      std::vector<double> table(size * allowed.size(), model_.big);
      for (size_t i = 0; i < allowed.size(); ++i) table[allowed[i] / stride % size * allowed.size() + i] = 0;
      addPair(node, combination, std::move(table));
    }
  }

  const SolverProblem& problem_;
  Model model_;
  std::unordered_map<int64_t, int32_t> edge_of_;
};

int32_t bestLabel(const ModelUndo& undo, const std::vector<int32_t>& labels) {
  const size_t size = undo.costs.size();
  const double* first = undo.parent < 0 ? nullptr : &undo.table[labels[undo.parent] * size];
  const double* second =
      undo.second_parent < 0 ? nullptr : &undo.second_table[labels[undo.second_parent] * size];
  size_t best = 0;
  double best_cost = 0;
  for (size_t i = 0; i < size; ++i) {
    const double cost =
        undo.costs[i] + (first == nullptr ? 0 : first[i]) + (second == nullptr ? 0 : second[i]);
    if (i == 0 || cost < best_cost) {
      best = i;
      best_cost = cost;
    }
  }
  return best;
}

}  // namespace

Model buildModel(const SolverProblem& problem) { return Builder(problem).build(); }

double Model::cost(const std::vector<int32_t>& labels) const {
  double sum = constant;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].size() > 0) sum += nodes[i].costs[labels[i]];
  }
  for (const ModelEdge& edge : edges) {
    if (edge.a >= 0) sum += edge.table[labels[edge.a] * nodes[edge.b].costs.size() + labels[edge.b]];
  }
  return sum;
}

void Model::expand(std::vector<int32_t>& labels) const {
  for (size_t i = undo.size(); i-- > 0;) {
    const ModelUndo& step = undo[i];
    switch (step.kind) {
      case ModelUndo::Kind::kFold: labels[step.node] = step.labels[labels[step.parent]]; break;
      case ModelUndo::Kind::kRestrict: labels[step.node] = step.labels[labels[step.node]]; break;
      case ModelUndo::Kind::kEliminate: labels[step.node] = bestLabel(step, labels); break;
    }
  }
}

void trackOrigins(Model& model) {
  model.undo.clear();
  for (ModelNode& node : model.nodes) {
    node.origins.resize(node.costs.size());
    std::iota(node.origins.begin(), node.origins.end(), 0);
  }
}

void finishModel(Model& model) {
  for (ModelEdge& edge : model.edges) {
    if (edge.a < 0) {
      edge.table = {};
      edge.transposed = {};
      continue;
    }
    const size_t rows = model.nodes[edge.a].costs.size(), columns = model.nodes[edge.b].costs.size();
    edge.transposed.resize(rows * columns);
    for (size_t i = 0; i < rows; ++i) {
      for (size_t j = 0; j < columns; ++j) edge.transposed[j * rows + i] = edge.table[i * columns + j];
    }
  }
}

}  // namespace pipeshard::solver
