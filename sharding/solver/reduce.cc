#include "sharding/solver/reduce.h"

#include <algorithm>
#include <deque>

#include "sharding/solver/rows.h"

namespace pipeshard::solver {

namespace {

constexpr size_t kMostEntries = size_t{1} << 16;  // of a table made by elimination
constexpr int32_t kMostDominanceLabels = 2000;    // all pairs are compared
constexpr int64_t kDominanceWork = 200'000'000;

// Applies reductions to one node at a time until none applies anywhere. A queue holds the nodes to look at;
// whatever changes a node's labels, costs or edges queues those that may profit: the node, its neighbours, or
// both. Every reduction keeps an optimum of the model:
//   unsupported   a label that is forbidden, or to which some neighbour has no allowed answer, goes
//   constant      a node of one label becomes costs of its neighbours and less capacity of its rows
//   plain         a table that is f(row) + g(column) becomes costs of its two ends
//   eliminated    a node without memory and with at most two neighbours becomes the minimum over its labels:
//                 a constant, costs of the one neighbour, or a table between the two
//   folded        a node whose label another one determines moves into that one, with costs, memory and edges
//   dominated     a label that costs and needs no less than another, whatever the neighbours choose, goes
// A node that is gone has no costs and no edges, and keeps its number. Each step is written to Model::undo,
// from which Model::expand finds the labels of what is gone.
//
// `labels_`, if given, stays a choice of the living nodes: labels that are renumbered are renumbered there.
//
//   eliminated: costs {1, 0}, table by the neighbour's label {0, 5} and {5, 0}:
//               the neighbour's labels get min(1 + 0, 0 + 5) = 1 and min(1 + 5, 0 + 0) = 0
//   dominated:  costs {3, 1}, one table with the rows {0, 4} and {1, 5}: label 1 costs at most 1 more in the
//               table and 2 less itself; label 0 goes, if it does not need less memory
class Reducer {
 public:
  Reducer(Model& model, std::vector<int32_t>* labels)
      : model_(model), labels_(labels), queued_(model.nodes.size(), true) {
    for (size_t i = 0; i < model.nodes.size(); ++i) queue_.push_back(i);
  }

  bool run() {
    while (!queue_.empty() && !model_.infeasible) {
      const int32_t node = queue_.front();
      queue_.pop_front();
      queued_[node] = false;
      if (alive(node)) visit(node);
    }
    return changed_;
  }

 private:
  bool alive(int32_t node) const { return model_.nodes[node].size() > 0; }
  size_t size(int32_t node) const { return model_.nodes[node].costs.size(); }

  void push(int32_t node) {
    if (queued_[node]) return;
    queued_[node] = true;
    queue_.push_back(node);
  }
  void pushNeighbours(int32_t node) {
    for (const int32_t edge : model_.nodes[node].edges) push(model_.edges[edge].other(node));
  }

  double entry(const ModelEdge& edge, int32_t node, size_t label, size_t other_label) const {
    return edge.a == node ? edge.table[label * size(edge.b) + other_label]
                          : edge.table[other_label * size(edge.b) + label];
  }

  void visit(int32_t node) {
    if (!dropUnsupported(node)) return;
    if (size(node) == 1) return foldConstant(node);
    dropPlainEdges(node);
    if (model_.nodes[node].items.empty() && model_.nodes[node].edges.size() <= 2 && eliminate(node)) return;
    if (foldFunctional(node)) return;
    dropDominated(node);
  }

  // Labels that are forbidden, or that some neighbour has no answer to. False: none is left.
  bool dropUnsupported(int32_t node) {
    const ModelNode& self = model_.nodes[node];
    std::vector<bool> keep(size(node));
    size_t kept = 0;
    for (size_t i = 0; i < keep.size(); ++i) {
      keep[i] = self.costs[i] < model_.big;
      for (size_t e = 0; e < self.edges.size() && keep[i]; ++e) {
        const ModelEdge& edge = model_.edges[self.edges[e]];
        const size_t others = size(edge.other(node));
        bool supported = false;
        for (size_t j = 0; j < others && !supported; ++j) supported = entry(edge, node, i, j) < model_.big;
        keep[i] = supported;
      }
      kept += keep[i] ? 1 : 0;
    }
    if (kept == 0) {
      model_.infeasible = true;
      model_.culprit = node;
      return false;
    }
    if (kept < keep.size()) restrict(node, keep);
    return true;
  }

  void restrict(int32_t node, const std::vector<bool>& keep) {
    changed_ = true;
    ModelNode& self = model_.nodes[node];
    ModelUndo step{.kind = ModelUndo::Kind::kRestrict,
                   .node = node,
                   .labels = {},
                   .costs = {},
                   .table = {},
                   .second_table = {}};
    for (size_t i = 0; i < keep.size(); ++i) {
      if (keep[i]) step.labels.push_back(i);
    }
    const std::vector<int32_t>& labels = step.labels;
    if (labels_ != nullptr) {
      int32_t& label = (*labels_)[node];
      label = std::lower_bound(labels.begin(), labels.end(), label) - labels.begin();
    }
    for (const int32_t id : self.edges) {
      ModelEdge& edge = model_.edges[id];
      const size_t old_columns = size(edge.b);
      std::vector<double> table;
      if (edge.a == node) {
        for (const int32_t label : labels)
          table.insert(table.end(), &edge.table[label * old_columns],
                       &edge.table[label * old_columns] + old_columns);
      } else {
        for (size_t i = 0; i < size(edge.a); ++i) {
          for (const int32_t label : labels) table.push_back(edge.table[i * old_columns + label]);
        }
      }
      edge.table = std::move(table);
    }
    for (size_t i = 0; i < labels.size(); ++i) self.costs[i] = self.costs[labels[i]];
    self.costs.resize(labels.size());
    if (!self.origins.empty()) {
      for (size_t i = 0; i < labels.size(); ++i) self.origins[i] = self.origins[labels[i]];
      self.origins.resize(labels.size());
    }
    for (MemoryItem& item : self.items) {
      for (size_t i = 0; i < labels.size(); ++i) item.usages[i] = item.usages[labels[i]];
      item.usages.resize(labels.size());
    }
    model_.undo.push_back(std::move(step));
    pushNeighbours(node);
    push(node);
  }

  void detach(int32_t edge, int32_t node) { std::erase(model_.nodes[node].edges, edge); }
  void removeEdge(int32_t id) {
    ModelEdge& edge = model_.edges[id];
    detach(id, edge.a);
    detach(id, edge.b);
    edge.a = -1;
    edge.table = {};
  }
  void removeNode(int32_t node) {
    changed_ = true;
    while (!model_.nodes[node].edges.empty()) removeEdge(model_.nodes[node].edges.back());
    model_.nodes[node].costs = {};
    model_.nodes[node].items = {};
  }

  // The only label's usage is a constant of the rows; it stays with a neighbourless item until the rows are
  // reduced.
  void foldConstant(int32_t node) {
    const ModelNode& self = model_.nodes[node];
    model_.constant += self.costs[0];
    for (const int32_t id : self.edges) {
      const ModelEdge& edge = model_.edges[id];
      ModelNode& other = model_.nodes[edge.other(node)];
      for (size_t j = 0; j < other.costs.size(); ++j) other.costs[j] += edge.table[j];
      push(edge.other(node));
    }
    model_.undo.push_back({.kind = ModelUndo::Kind::kEliminate,
                           .node = node,
                           .labels = {},
                           .costs = {0},
                           .table = {},
                           .second_table = {}});
    keepUsage(self.items);
    removeNode(node);
  }

  void keepUsage(const std::vector<MemoryItem>& items) {
    for (const MemoryItem& item : items) {
      for (int32_t row = item.from; row < item.to && item.usages[0] != 0; ++row)
        model_.rows[row].capacity -= item.usages[0];
    }
  }

  // Tables that are a sum of a row and a column.
  void dropPlainEdges(int32_t node) {
    const std::vector<int32_t> edges = model_.nodes[node].edges;
    for (const int32_t id : edges) {
      const ModelEdge& edge = model_.edges[id];
      const size_t rows = size(edge.a), columns = size(edge.b);
      const std::vector<double>& table = edge.table;
      if (table[0] >= model_.big) continue;
      bool plain = true;
      for (size_t i = 0; i < rows && plain; ++i) {
        for (size_t j = 0; j < columns && plain; ++j) {
          plain = table[i * columns + j] < model_.big &&
                  table[i * columns + j] - table[j] == table[i * columns] - table[0];
        }
      }
      if (!plain) continue;
      changed_ = true;
      for (size_t i = 0; i < rows; ++i) model_.nodes[edge.a].costs[i] += table[i * columns] - table[0];
      for (size_t j = 0; j < columns; ++j) model_.nodes[edge.b].costs[j] += table[j];
      push(edge.other(node));
      removeEdge(id);
    }
  }

  std::vector<double> rowsByOther(const ModelEdge& edge, int32_t node) const {
    const size_t others = size(edge.other(node)), own = size(node);
    if (edge.b == node) return edge.table;
    std::vector<double> result(others * own);
    for (size_t i = 0; i < own; ++i) {
      for (size_t j = 0; j < others; ++j) result[j * own + i] = edge.table[i * others + j];
    }
    return result;
  }

  bool eliminate(int32_t node) {
    const ModelNode& self = model_.nodes[node];
    const size_t own = size(node);
    ModelUndo step{.kind = ModelUndo::Kind::kEliminate,
                   .node = node,
                   .labels = {},
                   .costs = self.costs,
                   .table = {},
                   .second_table = {}};
    if (self.edges.size() == 2) {
      const size_t first = size(model_.edges[self.edges[0]].other(node)),
                   second = size(model_.edges[self.edges[1]].other(node));
      if (first * second > std::min(kMostEntries, 4 * own * (first + second))) return false;
    }
    if (!self.edges.empty()) {
      const ModelEdge& edge = model_.edges[self.edges[0]];
      step.parent = edge.other(node);
      step.table = rowsByOther(edge, node);
    }
    if (self.edges.size() == 2) {
      const ModelEdge& edge = model_.edges[self.edges[1]];
      step.second_parent = edge.other(node);
      step.second_table = rowsByOther(edge, node);
    }
    removeNode(node);
    if (step.parent < 0) {
      model_.constant += *std::min_element(step.costs.begin(), step.costs.end());
    } else if (step.second_parent < 0) {
      for (size_t j = 0; j < size(step.parent); ++j) {
        double best = step.costs[0] + step.table[j * own];
        for (size_t i = 1; i < own; ++i) best = std::min(best, step.costs[i] + step.table[j * own + i]);
        model_.nodes[step.parent].costs[j] += best;
      }
      push(step.parent);
    } else {
      joinParents(step);
    }
    model_.undo.push_back(std::move(step));
    return true;
  }

  void joinParents(const ModelUndo& step) {
    const size_t own = step.costs.size(), rows = size(step.parent), columns = size(step.second_parent);
    std::vector<double> table(rows * columns);
    for (size_t i = 0; i < rows; ++i) {
      for (size_t j = 0; j < columns; ++j) {
        const double* first = &step.table[i * own];
        const double* second = &step.second_table[j * own];
        double best = step.costs[0] + first[0] + second[0];
        for (size_t x = 1; x < own; ++x) best = std::min(best, step.costs[x] + first[x] + second[x]);
        table[i * columns + j] = best >= model_.big ? model_.big : best;
      }
    }
    addTable(step.parent, step.second_parent, std::move(table));
    push(step.parent);
    push(step.second_parent);
  }

  void addTable(int32_t a, int32_t b, std::vector<double> table) {
    const int32_t fewer = model_.nodes[a].edges.size() <= model_.nodes[b].edges.size() ? a : b;
    for (const int32_t id : model_.nodes[fewer].edges) {
      ModelEdge& edge = model_.edges[id];
      if (edge.other(fewer) != (fewer == a ? b : a)) continue;
      for (size_t i = 0; i < size(a); ++i) {
        for (size_t j = 0; j < size(b); ++j) {
          double& cost = edge.a == a ? edge.table[i * size(b) + j] : edge.table[j * size(a) + i];
          cost = std::min(model_.big, cost + table[i * size(b) + j]);
        }
      }
      return;
    }
    const int32_t id = model_.edges.size();
    model_.edges.push_back({.a = a, .b = b, .table = std::move(table), .transposed = {}});
    model_.nodes[a].edges.push_back(id);
    model_.nodes[b].edges.push_back(id);
  }

  // The one label of the other end that each label allows; empty if some label allows several.
  std::vector<int32_t> answers(const ModelEdge& edge, int32_t node) const {
    const size_t others = size(edge.other(node));
    std::vector<int32_t> result(size(node), -1);
    for (size_t i = 0; i < result.size(); ++i) {
      for (size_t j = 0; j < others; ++j) {
        if (entry(edge, node, i, j) >= model_.big) continue;
        if (result[i] >= 0) return {};
        result[i] = j;
      }
      if (result[i] < 0) return {};
    }
    return result;
  }

  // Entries of tables that folding `folded` into `into` adds.
  int64_t growth(int32_t folded, int32_t into, int32_t between) const {
    const int64_t before = size(folded), after = size(into);
    int64_t sum = 0;
    for (const int32_t id : model_.nodes[folded].edges) {
      const int64_t others = size(model_.edges[id].other(folded));
      if (id == between) {
        sum -= others * before;
      } else {
        sum += others * (after - before);
      }
    }
    return sum;
  }

  bool foldFunctional(int32_t node) {
    const std::vector<int32_t> edges = model_.nodes[node].edges;
    for (const int32_t id : edges) {
      const int32_t other = model_.edges[id].other(node);
      for (const auto& [into, folded] : {std::pair{node, other}, std::pair{other, node}}) {
        const std::vector<int32_t> labels = answers(model_.edges[id], into);
        if (labels.empty() || growth(folded, into, id) > 0) continue;
        if (size(into) == size(folded) &&
            model_.nodes[into].items.size() < model_.nodes[folded].items.size() &&
            !answers(model_.edges[id], folded).empty()) {
          continue;  // the other way round moves less
        }
        fold(folded, into, id, labels);
        return true;
      }
    }
    return false;
  }

  void fold(int32_t folded, int32_t into, int32_t between, const std::vector<int32_t>& labels) {
    ModelNode& from = model_.nodes[folded];
    ModelNode& to = model_.nodes[into];
    for (size_t i = 0; i < labels.size(); ++i)
      to.costs[i] += from.costs[labels[i]] + entry(model_.edges[between], into, i, labels[i]);
    for (MemoryItem& item : from.items) {
      MemoryItem moved{item.from, item.to, {}};
      for (const int32_t label : labels) moved.usages.push_back(item.usages[label]);
      to.items.push_back(std::move(moved));
    }
    const std::vector<int32_t> edges = from.edges;
    for (const int32_t id : edges) {
      if (id == between) continue;
      const int32_t other = model_.edges[id].other(folded);
      std::vector<double> table;
      for (const int32_t label : labels) {
        for (size_t j = 0; j < size(other); ++j) table.push_back(entry(model_.edges[id], folded, label, j));
      }
      addTable(into, other, std::move(table));
      push(other);
    }
    model_.undo.push_back({.kind = ModelUndo::Kind::kFold,
                           .node = folded,
                           .parent = into,
                           .labels = labels,
                           .costs = {},
                           .table = {},
                           .second_table = {}});
    removeNode(folded);
    push(into);
    pushNeighbours(into);
  }

  // Whether `better` never costs or needs more than `worse`, whatever the neighbours choose.
  bool dominates(int32_t node, size_t better, size_t worse) {
    const ModelNode& self = model_.nodes[node];
    for (const MemoryItem& item : self.items) {
      if (item.usages[better] > item.usages[worse]) return false;
    }
    double margin = self.costs[worse] - self.costs[better];
    for (const int32_t id : self.edges) {
      if (margin < 0) return false;
      const ModelEdge& edge = model_.edges[id];
      const size_t others = size(edge.other(node));
      double most = -model_.big;
      for (size_t j = 0; j < others; ++j) {
        const double cost = entry(edge, node, worse, j);
        if (cost < model_.big) most = std::max(most, entry(edge, node, better, j) - cost);
      }
      work_ += others;
      margin -= most;
    }
    return margin >= 0;
  }

  void dropDominated(int32_t node) {
    const int32_t own = size(node);
    if (work_ > kDominanceWork || own > kMostDominanceLabels) return;
    std::vector<bool> keep(own, true);
    size_t dropped = 0;
    for (int32_t worse = 0; worse < own; ++worse) {
      for (int32_t better = 0; better < own && keep[worse]; ++better) {
        if (better == worse || !keep[better] || !dominates(node, better, worse)) continue;
        keep[worse] = false;
        ++dropped;
        if (labels_ != nullptr && (*labels_)[node] == worse) (*labels_)[node] = better;
      }
    }
    if (dropped > 0) restrict(node, keep);
  }

  Model& model_;
  std::vector<int32_t>* labels_;
  std::deque<int32_t> queue_;
  std::vector<bool> queued_;
  bool changed_ = false;
  int64_t work_ = 0;
};

// Items of the same rows are one item.
void mergeItems(Model& model) {
  for (ModelNode& node : model.nodes) {
    if (node.items.size() < 2) continue;
    std::stable_sort(node.items.begin(), node.items.end(), [](const MemoryItem& x, const MemoryItem& y) {
      return std::pair(x.from, x.to) < std::pair(y.from, y.to);
    });
    size_t last = 0;
    for (size_t i = 1; i < node.items.size(); ++i) {
      MemoryItem& kept = node.items[last];
      MemoryItem& item = node.items[i];
      if (kept.from == item.from && kept.to == item.to) {
        for (size_t j = 0; j < item.usages.size(); ++j) kept.usages[j] += item.usages[j];
      } else if (++last != i) {
        node.items[last] = std::move(item);
      }
    }
    node.items.resize(last + 1);
  }
}

}  // namespace

void reduceModel(Model& model, std::vector<int32_t>* labels) {
  for (bool changed = true; changed && !model.infeasible;) {
    mergeItems(model);
    reduceRows(model);
    if (model.infeasible) return;
    changed = Reducer(model, labels).run();
  }
}

}  // namespace pipeshard::solver
