#include "sharding/stage/cost_network.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ir/base/error.h"
#include "sharding/solver/solver.h"

namespace pipeshard {

namespace {

size_t hashOf(const CostTable& table) {
  uint64_t hash = 1469598103934665603ULL;
  const auto mix = [&hash](uint64_t word) { hash = (hash ^ word) * 1099511628211ULL + (hash >> 29); };
  for (int size : table.sizes) mix(size);
  for (int64_t cost : table.costs) mix(cost);
  return hash;
}

int64_t productOf(const std::vector<int>& sizes) {
  int64_t product = 1;
  for (int size : sizes) {
    if (product > INT64_MAX / 65536) return INT64_MAX;
    product *= size;
  }
  return product;
}

// A factor walked in step with the scope: how far one step along each variable of the scope moves in its
// table.
struct Walk {
  const int64_t* costs;
  std::vector<int64_t> strides;
  int64_t offset = 0;
};

Walk walkOf(const CostTable& table, const std::vector<int>& axes, size_t rank) {
  Walk walk{table.costs.data(), std::vector<int64_t>(rank, 0)};
  int64_t stride = 1;
  for (size_t axis = axes.size(); axis-- > 0;) {
    walk.strides[axes[axis]] += stride;
    stride *= table.sizes[axis];
  }
  return walk;
}

void addRow(const Walk& walk, int64_t stride, std::vector<int64_t>& row) {
  const int64_t* from = walk.costs + walk.offset;
  for (int64_t k = 0; k < std::ssize(row); ++k) row[k] = std::min(row[k] + from[k * stride], kForbiddenCost);
}

// Advances the scope's odometer (without the last variable).
void advance(std::vector<int>& position, const std::vector<int>& sizes, std::vector<Walk>& walks) {
  for (size_t axis = position.size(); axis-- > 0;) {
    ++position[axis];
    for (Walk& walk : walks) walk.offset += walk.strides[axis];
    if (position[axis] < sizes[axis]) return;
    position[axis] = 0;
    for (Walk& walk : walks) walk.offset -= walk.strides[axis] * sizes[axis];
  }
}

}  // namespace

// A min-plus product: the tables around a variable are added and minimised over it. With the costs {0, 3} of
// the variable and a table {0, 2, 4, 0} over (variable, neighbour), of two options each:
//   minimum {min(0 + 0, 3 + 4), min(0 + 2, 3 + 0)} = {0, 2}, argument {0, 0}
// Sums stop at kForbiddenCost: what is forbidden stays forbidden, and costs no more than that. What is
// remembered is keyed by table ids; since equal tables have equal ids, that is by content.
TableId TablePool::add(CostTable table) {
  const size_t hash = hashOf(table);
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto entry = begin; entry != end; ++entry) {
    const CostTable& other = at(entry->second);
    if (other.sizes == table.sizes && other.costs == table.costs) return entry->second;
  }
  tables_.push_back(std::make_shared<const CostTable>(std::move(table)));
  const auto id = static_cast<TableId>(tables_.size() - 1);
  by_hash_.emplace(hash, id);
  return id;
}

TablePool::Product TablePool::eliminate(const std::vector<Factor>& factors, const std::vector<int>& sizes) {
  const auto known = products_.find({factors, sizes});
  if (known != products_.end()) return known->second;
  std::vector<Walk> walks;
  for (const Factor& factor : factors) walks.push_back(walkOf(at(factor.table), factor.axes, sizes.size()));
  CostTable minimum{{sizes.begin(), sizes.end() - 1}, {}};
  const size_t count = productOf(minimum.sizes);
  minimum.costs.resize(count);
  auto argument = std::make_shared<std::vector<uint16_t>>(count);
  std::vector<int> position(minimum.sizes.size(), 0);
  std::vector<int64_t> row(sizes.back());
  for (size_t entry = 0; entry < count; ++entry) {
    std::fill(row.begin(), row.end(), 0);
    for (const Walk& walk : walks) addRow(walk, walk.strides.back(), row);
    const auto best = std::min_element(row.begin(), row.end());
    minimum.costs[entry] = *best;
    (*argument)[entry] = best - row.begin();
    advance(position, minimum.sizes, walks);
  }
  work_ += count * sizes.back();
  const Product product{add(std::move(minimum)), std::move(argument)};
  products_.emplace(std::pair{factors, sizes}, product);
  return product;
}

namespace {

// A table as rows by option of one variable.
std::vector<int64_t> rowsOf(const CostTable& table, int axis) {
  int64_t inner = 1;
  for (int later = axis + 1; later < std::ssize(table.sizes); ++later) inner *= table.sizes[later];
  const int64_t size = table.sizes[axis];
  const int64_t outer = std::ssize(table.costs) / (inner * size);
  std::vector<int64_t> rows(table.costs.size());
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t option = 0; option < size; ++option) {
      const auto from = table.costs.begin() + (o * size + option) * inner;
      std::copy(from, from + inner, rows.begin() + (option * outer + o) * inner);
    }
  }
  return rows;
}

// The least that row `a` costs more than row `b`, over all columns.
int64_t leastExcess(const std::vector<int64_t>& rows, size_t width, size_t a, size_t b) {
  int64_t least = INT64_MAX;
  const int64_t* of_a = rows.data() + a * width;
  const int64_t* of_b = rows.data() + b * width;
  for (size_t column = 0; column < width; ++column) least = std::min(least, of_a[column] - of_b[column]);
  return least;
}

}  // namespace

const std::vector<int>& TablePool::undominated(const std::vector<std::pair<TableId, int>>& factors,
                                               int size) {
  const auto [place, is_new] = undominated_.try_emplace(factors);
  if (!is_new) return place->second;
  const size_t count = size;
  std::vector<std::vector<int64_t>> tables;
  for (const auto& [table, axis] : factors) tables.push_back(rowsOf(at(table), axis));
  std::vector<bool> dropped(count, false);
  const auto dominates = [&](size_t b, size_t a) {
    Int128 excess = 0;  // ten tables that forbid an option are more than an int64 holds
    for (const std::vector<int64_t>& rows : tables) {
      excess += leastExcess(rows, rows.size() / count, a, b);
      work_ += rows.size() / count;
    }
    return excess >= 0;
  };
  for (size_t a = count; a-- > 0;) {
    for (size_t b = 0; b < count && !dropped[a]; ++b) dropped[a] = a != b && !dropped[b] && dominates(b, a);
  }
  for (size_t option = 0; option < count; ++option) {
    if (!dropped[option]) place->second.push_back(option);
  }
  return place->second;
}

TableId TablePool::slice(TableId id, int axis, const std::vector<int>& options) {
  const auto known = slices_.find({id, axis, options});
  if (known != slices_.end()) return known->second;
  const CostTable& table = at(id);
  int64_t inner = 1;
  for (int later = axis + 1; later < std::ssize(table.sizes); ++later) inner *= table.sizes[later];
  const int64_t size = table.sizes[axis];
  CostTable result{table.sizes, {}};
  result.sizes[axis] = options.size();
  for (int64_t begin = 0; begin < std::ssize(table.costs); begin += size * inner) {
    for (int option : options) {
      const auto from = table.costs.begin() + begin + option * inner;
      result.costs.insert(result.costs.end(), from, from + inner);
    }
  }
  const TableId sliced = add(std::move(result));
  slices_.emplace(std::tuple{id, axis, options}, sliced);
  return sliced;
}

TableId TablePool::squeeze(TableId id) {
  const auto known = squeezed_.find(id);
  if (known != squeezed_.end()) return known->second;
  CostTable result = at(id);
  std::erase(result.sizes, 1);
  const TableId squeezed = add(std::move(result));
  squeezed_.emplace(id, squeezed);
  return squeezed;
}

int64_t CostNetwork::cost(const std::vector<int>& choice) const {
  int64_t total = 0;
  for (const NetworkTable& entry : tables) {
    const CostTable& table = pool->at(entry.table);
    int64_t index = 0;
    for (size_t axis = 0; axis < entry.variables.size(); ++axis) {
      index = index * table.sizes[axis] + choice[entry.variables[axis]];
    }
    total = std::min(total + table.costs[index], kForbiddenCost);
  }
  return total;
}

// Variables are numbered as in the given network throughout; their options are renumbered once, when the
// dominated ones have gone (options_). Then
//   * tables_of_[v] lists exactly the live tables (not gone_) that have v;
//   * a variable of one option is in no table any more, and in no queue;
//   * queue_ has every variable that is left, by the entries that its product would have now; eliminating a
//     variable changes these for the variables of its scope only (refresh).
// steps_ remembers for each eliminated variable its best option by the options of its scope, all of which are
// eliminated later or never. So complete() decides them from the last step to the first.
Elimination::Elimination(CostNetwork network, int64_t limit) : network_(std::move(network)) {
  const size_t count = network_.sizes.size();
  tables_of_.resize(count);
  entries_.assign(count, 0);
  gone_.assign(network_.tables.size(), false);
  for (size_t table = 0; table < network_.tables.size(); ++table) {
    for (int variable : network_.tables[table].variables) tables_of_[variable].push_back(table);
  }
  options_.resize(count);
  std::set<int> all;
  for (size_t variable = 0; variable < count; ++variable) {
    options_[variable].resize(network_.sizes[variable]);
    std::iota(options_[variable].begin(), options_[variable].end(), 0);
    all.insert(variable);
  }
  dropDominated(std::move(all));
  leaveDecidedOut();
  limit_ = limit;
  met_.assign(count, 0);
  for (size_t variable = 0; variable < count; ++variable) {
    if (network_.sizes[variable] == 1) continue;
    entries_[variable] = entriesOf(variable);
    queue_.emplace(entries_[variable], variable);
  }
  while (!queue_.empty() && queue_.begin()->first <= limit) {
    const int variable = queue_.begin()->second;
    queue_.erase(queue_.begin());
    eliminate(variable);
  }
  for (const auto& [entries, variable] : queue_) left_.push_back(variable);
  std::sort(left_.begin(), left_.end());
}

void Elimination::leaveDecidedOut() {
  const auto isDecided = [this](int variable) { return network_.sizes[variable] == 1; };
  for (NetworkTable& entry : network_.tables) {
    if (std::erase_if(entry.variables, isDecided) > 0) entry.table = network_.pool->squeeze(entry.table);
  }
  for (size_t variable = 0; variable < tables_of_.size(); ++variable) {
    if (isDecided(variable)) tables_of_[variable].clear();
  }
}

int64_t Elimination::entriesOf(int variable) {
  ++asked_;
  int64_t entries = 1;
  for (int table : tables_of_[variable]) {
    for (int member : network_.tables[table].variables) {
      if (std::exchange(met_[member], asked_) == asked_) continue;
      entries *= network_.sizes[member];
      if (entries > limit_) return limit_ + 1;
    }
  }
  return std::max<int64_t>(entries, network_.sizes[variable]);
}

void Elimination::refresh(int variable) {
  const size_t index = variable;
  queue_.erase({entries_[index], variable});
  entries_[index] = entriesOf(variable);
  queue_.insert({entries_[index], variable});
}

void Elimination::attach(NetworkTable table) {
  for (int variable : table.variables) tables_of_[variable].push_back(network_.tables.size());
  network_.tables.push_back(std::move(table));
  gone_.push_back(false);
}

std::set<int> Elimination::neighbors(int variable) const {
  std::set<int> result;
  for (int table : tables_of_[variable]) {
    const std::vector<int>& members = network_.tables[table].variables;
    result.insert(members.begin(), members.end());
  }
  result.erase(variable);
  return result;
}

void Elimination::dropDominated(std::set<int> variables) {
  while (!variables.empty()) {
    const int variable = *variables.begin();
    variables.erase(variables.begin());
    const size_t index = variable;
    if (network_.sizes[index] == 1) continue;
    std::vector<std::pair<TableId, int>> factors;
    for (int table : tables_of_[index]) {
      const NetworkTable& entry = network_.tables[table];
      const auto axis =
          std::find(entry.variables.begin(), entry.variables.end(), variable) - entry.variables.begin();
      factors.emplace_back(entry.table, axis);
    }
    std::sort(factors.begin(), factors.end());
    const std::vector<int> kept = network_.pool->undominated(factors, network_.sizes[index]);
    if (std::ssize(kept) == network_.sizes[index]) continue;
    std::vector<int> options;
    for (int position : kept) options.push_back(options_[index][position]);
    options_[index] = std::move(options);
    network_.sizes[index] = kept.size();
    for (int table : tables_of_[index]) {
      NetworkTable& entry = network_.tables[table];
      const auto axis =
          std::find(entry.variables.begin(), entry.variables.end(), variable) - entry.variables.begin();
      entry.table = network_.pool->slice(entry.table, axis, kept);
    }
    const std::set<int> around = neighbors(variable);
    variables.insert(around.begin(), around.end());
  }
}

void Elimination::eliminate(int variable) {
  const size_t index = variable;
  const std::set<int> around = neighbors(variable);
  std::vector<int> scope(around.begin(), around.end());
  std::map<int, int> place;
  std::vector<int> sizes;
  for (int member : scope) {
    place[member] = sizes.size();
    sizes.push_back(network_.sizes[member]);
  }
  place[variable] = sizes.size();
  sizes.push_back(network_.sizes[index]);
  std::vector<TablePool::Factor> factors;
  for (int table : tables_of_[index]) {
    const NetworkTable& entry = network_.tables[table];
    TablePool::Factor factor{entry.table, {}};
    for (int member : entry.variables) factor.axes.push_back(place[member]);
    factors.push_back(std::move(factor));
    gone_[table] = true;
  }
  std::sort(factors.begin(), factors.end());
  const TablePool::Product product = network_.pool->eliminate(factors, sizes);
  for (int member : scope) std::erase_if(tables_of_[member], [this](int table) { return gone_[table]; });
  tables_of_[index].clear();
  steps_.push_back({variable, scope, product.argument});
  attach({scope, product.minimum});
  for (int member : scope) refresh(member);
}

CostNetwork Elimination::remainder() const {
  CostNetwork rest;
  rest.pool = network_.pool;
  std::map<int, int> place;
  for (int variable : left_) {
    place[variable] = rest.sizes.size();
    rest.sizes.push_back(network_.sizes[variable]);
  }
  for (size_t table = 0; table < network_.tables.size(); ++table) {
    if (gone_[table]) continue;
    NetworkTable entry{{}, network_.tables[table].table};
    for (int variable : network_.tables[table].variables) entry.variables.push_back(place.at(variable));
    rest.tables.push_back(std::move(entry));
  }
  return rest;
}

std::vector<int> Elimination::complete(const std::vector<int>& choice) const {
  std::vector<int> full(network_.sizes.size(), 0);
  for (size_t position = 0; position < left_.size(); ++position) full[left_[position]] = choice[position];
  for (size_t step = steps_.size(); step-- > 0;) {
    int64_t index = 0;
    for (int member : steps_[step].scope) index = index * network_.sizes[member] + full[member];
    full[steps_[step].variable] = (*steps_[step].argument)[index];
  }
  for (size_t variable = 0; variable < full.size(); ++variable)
    full[variable] = options_[variable][full[variable]];
  return full;
}

}  // namespace pipeshard
