#include "sharding/solver/rows.h"

#include <algorithm>

namespace pipeshard::solver {

namespace {

template <typename Visit>
void forItems(Model& model, Visit visit) {
  for (ModelNode& node : model.nodes) {
    for (MemoryItem& item : node.items) visit(node, item);
  }
}

void takeOutConstants(Model& model) {
  std::vector<int64_t> change(model.rows.size() + 1);
  for (ModelNode& node : model.nodes) {
    for (MemoryItem& item : node.items) {
      const int64_t least = *std::min_element(item.usages.begin(), item.usages.end());
      for (int64_t& usage : item.usages) usage -= least;
      change[item.from] += least;
      change[item.to] -= least;
    }
    std::erase_if(node.items, [](const MemoryItem& item) {
      return item.from >= item.to ||
             std::all_of(item.usages.begin(), item.usages.end(), [](int64_t usage) { return usage == 0; });
    });
  }
  int64_t sum = 0;
  for (size_t i = 0; i < model.rows.size(); ++i) model.rows[i].capacity -= sum += change[i];
}

// Least capacity of any range of rows.
class LeastCapacity {
 public:
  explicit LeastCapacity(const std::vector<ModelRow>& rows) {
    levels_.emplace_back();
    for (const ModelRow& row : rows) levels_[0].push_back(row.capacity);
    for (size_t width = 1; 2 * width <= rows.size(); width *= 2) {
      const std::vector<int64_t>& below = levels_.back();
      std::vector<int64_t> level(rows.size() - 2 * width + 1);
      for (size_t i = 0; i < level.size(); ++i) level[i] = std::min(below[i], below[i + width]);
      levels_.push_back(std::move(level));
    }
  }
  int64_t of(int32_t from, int32_t to) const {
    size_t level = 0;
    while ((2 << level) <= to - from) ++level;
    return std::min(levels_[level][from], levels_[level][to - (1 << level)]);
  }

 private:
  std::vector<std::vector<int64_t>> levels_;
};

void forbidWhatDoesNotFit(Model& model) {
  const LeastCapacity least(model.rows);
  forItems(model, [&](ModelNode& node, MemoryItem& item) {
    const int64_t capacity = least.of(item.from, item.to);
    for (size_t i = 0; i < item.usages.size(); ++i) {
      if (item.usages[i] > capacity) node.costs[i] = std::max(node.costs[i], model.big);
    }
  });
}

// Most that each row can hold: of each node the largest sum of its items there would be exact; the sum of
// largest items is not less.
std::vector<int64_t> mostUsage(Model& model) {
  std::vector<int64_t> usage(model.rows.size() + 1);
  forItems(model, [&](ModelNode&, MemoryItem& item) {
    const int64_t most = *std::max_element(item.usages.begin(), item.usages.end());
    usage[item.from] += most;
    usage[item.to] -= most;
  });
  for (size_t i = 1; i < usage.size(); ++i) usage[i] += usage[i - 1];
  return usage;
}

void keepRows(Model& model, const std::vector<bool>& keep) {
  std::vector<int32_t> before(model.rows.size() + 1);
  for (size_t i = 0; i < model.rows.size(); ++i) before[i + 1] = before[i] + (keep[i] ? 1 : 0);
  for (size_t i = 0; i < model.rows.size(); ++i) {
    if (keep[i]) model.rows[before[i]] = model.rows[i];
  }
  model.rows.resize(before.back());
  forItems(model, [&](ModelNode&, MemoryItem& item) {
    item.from = before[item.from];
    item.to = before[item.to];
  });
  for (ModelNode& node : model.nodes)
    std::erase_if(node.items, [](const MemoryItem& item) { return item.from >= item.to; });
}

// A row whose items are all in the next (or previous) living row, which has no more capacity, says nothing.
std::vector<bool> rowsNotImplied(Model& model) {
  const size_t count = model.rows.size();
  std::vector<int32_t> starts(count + 1), ends(count + 1);
  forItems(model, [&](ModelNode&, MemoryItem& item) {
    ++starts[item.from];
    ++ends[item.to];
  });
  struct Kept {
    size_t row;
    int32_t starts, ends;  // items that start in it; items that ended since the row before
  };
  std::vector<Kept> kept;
  for (size_t i = 0; i < count; ++i) {
    Kept next{i, starts[i], ends[i]};
    bool implied = false;
    while (!kept.empty()) {
      const Kept& last = kept.back();
      const int64_t last_capacity = model.rows[last.row].capacity, capacity = model.rows[next.row].capacity;
      if (next.ends == 0 && capacity <= last_capacity) {
        next.starts += last.starts;
        next.ends += last.ends;
        model.rows[next.row].price += model.rows[last.row].price;
        kept.pop_back();
      } else if (next.starts == 0 && last_capacity <= capacity) {
        implied = true;
        model.rows[last.row].price += model.rows[next.row].price;
        break;
      } else {
        break;
      }
    }
    if (!implied) {
      kept.push_back(next);
    } else if (i + 1 < count) {
      ends[i + 1] += next.ends;
    }
  }
  std::vector<bool> keep(count);
  for (const Kept& row : kept) keep[row.row] = true;
  return keep;
}

}  // namespace

void reduceRows(Model& model) {
  if (model.rows.empty()) return;
  takeOutConstants(model);
  for (size_t i = 0; i < model.rows.size(); ++i) {
    if (model.rows[i].capacity >= 0) continue;
    if (!model.infeasible || model.rows[i].capacity < model.rows[model.culprit_row].capacity)
      model.culprit_row = i;
    model.infeasible = true;
  }
  if (model.infeasible) return;
  forbidWhatDoesNotFit(model);
  const std::vector<int64_t> usage = mostUsage(model);
  std::vector<bool> keep(model.rows.size());
  for (size_t i = 0; i < keep.size(); ++i) keep[i] = usage[i] > model.rows[i].capacity;
  keepRows(model, keep);
  if (!model.rows.empty()) keepRows(model, rowsNotImplied(model));
}

}  // namespace pipeshard::solver
