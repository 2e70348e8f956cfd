// Choices with costs over pairs (or more) of them, and the exact elimination of variables by min-plus
// products. Internal to shard_stage.
//
// Tables are immutable and stored once: equal tables have equal ids. A product of the same tables is computed
// once, so that the repeated blocks of a model cost as much as one of them: wherever a block's inside is
// eliminated, the second time is a look-up.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace pipeshard {

using TableId = int32_t;

// Row-major over the sizes of its variables; costs of kForbiddenCost (solver/solver.h) or more are forbidden.
struct CostTable {
  std::vector<int> sizes;
  std::vector<int64_t> costs;
};

class TablePool {
 public:
  TableId add(CostTable table);
  const CostTable& at(TableId id) const { return *tables_[id]; }

  // min over the last of `scope`'s variables of the sum of tables. Each factor says for its axes which
  // variable of the scope (by position) they are; `sizes` are those of the scope. The second table holds the
  // position of the minimum (the first one, if several).
  struct Factor {
    TableId table;
    std::vector<int> axes;
    friend auto operator<=>(const Factor&, const Factor&) = default;
  };
  struct Product {
    TableId minimum;
    std::shared_ptr<const std::vector<uint16_t>> argument;
  };
  Product eliminate(const std::vector<Factor>& factors, const std::vector<int>& sizes);
  // The options of a variable (by position) that are worth to be chosen, whatever the others choose: option b
  // dominates a when b costs at most as much as a in every case (of equal ones the first stays). Factors:
  // tables with the variable, and its axis in each.
  const std::vector<int>& undominated(const std::vector<std::pair<TableId, int>>& factors, int size);
  // The table without the other options along an axis.
  TableId slice(TableId table, int axis, const std::vector<int>& options);
  // The table without axes of one option.
  TableId squeeze(TableId table);
  int64_t work() const { return work_; }  // table entries computed so far

 private:
  std::vector<std::shared_ptr<const CostTable>> tables_;
  std::unordered_multimap<size_t, TableId> by_hash_;
  std::map<std::pair<std::vector<Factor>, std::vector<int>>, Product> products_;
  std::map<std::vector<std::pair<TableId, int>>, std::vector<int>> undominated_;
  std::map<std::tuple<TableId, int, std::vector<int>>, TableId> slices_;
  std::unordered_map<TableId, TableId> squeezed_;
  int64_t work_ = 0;
};

struct NetworkTable {
  std::vector<int> variables;  // ascending
  TableId table;
};

struct CostNetwork {
  std::shared_ptr<TablePool> pool = std::make_shared<TablePool>();
  std::vector<int> sizes;  // by variable
  std::vector<NetworkTable> tables;

  int64_t cost(const std::vector<int>& choice) const;  // sum over the tables
};

// What is left when variables have been eliminated exactly.
class Elimination {
 public:
  // Drops dominated options, leaves out variables of one option, then eliminates every variable whose product
  // has at most `limit` entries (its own axis included), cheapest first; ties by number.
  Elimination(CostNetwork network, int64_t limit);

  // The variables that are left, and their network (numbered by position in `left`, with the options that are
  // left).
  const std::vector<int>& left() const { return left_; }
  CostNetwork remainder() const;
  // A best choice of all variables, given those that are left (by position in `left`).
  std::vector<int> complete(const std::vector<int>& choice) const;

 private:
  struct Step {
    int variable;
    std::vector<int> scope;  // without the variable
    std::shared_ptr<const std::vector<uint16_t>> argument;
  };
  void dropDominated(std::set<int> variables);
  std::set<int> neighbors(int variable) const;
  void eliminate(int variable);
  void leaveDecidedOut();           // variables of one option, from all tables
  int64_t entriesOf(int variable);  // more than the limit: limit + 1
  void refresh(int variable);
  void attach(NetworkTable table);

  CostNetwork network_;
  std::vector<std::vector<int>> options_;    // by variable: of the given network's
  std::vector<bool> gone_;                   // by table
  std::vector<std::vector<int>> tables_of_;  // by variable: live tables
  std::vector<int64_t> entries_;             // by variable, of its product; -1: eliminated
  std::set<std::pair<int64_t, int>> queue_;  // (entries, variable)
  int64_t limit_ = 0;
  std::vector<int64_t> met_;  // by variable: in which question of entriesOf
  int64_t asked_ = 0;
  std::vector<Step> steps_;
  std::vector<int> left_;
};

}  // namespace pipeshard
