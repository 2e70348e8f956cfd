#include "sharding/solver/local_search.h"

#include <algorithm>

#include "ir/base/parallel.h"
#include "sharding/solver/elimination.h"
#include "sharding/solver/ordering.h"

namespace pipeshard::solver {

namespace {

constexpr int32_t kMovesPerRound = 4;
constexpr int32_t kPriceSteps = 8;

}  // namespace

LocalSearch::LocalSearch(const Model& model, const Memory& memory, const std::vector<double>& prices,
                         std::vector<int32_t> labels, uint64_t seed)
    : model_(model), memory_(memory), prices_(prices), state_(model, memory, std::move(labels)), seed_(seed) {
  for (size_t i = 0; i < model.nodes.size(); ++i) {
    if (model.nodes[i].size() > 0) alive_.push_back(i);
  }
}

bool LocalSearch::round(int threads, const std::function<bool()>& stop) {
  if (alive_.empty()) return false;
  std::vector<Move> moves(kMovesPerRound);
  Random seeds(seed_ * 1000003 + rounds_++);
  std::vector<uint64_t> seed(kMovesPerRound);
  for (uint64_t& each : seed) each = seeds.next();
  parallelFor(threads, kMovesPerRound, [&](int32_t i) { moves[i] = tryMove(seed[i], stop); });
  bool improved = false;
  for (Move& move : moves) {
    work_ += move.work;
    std::erase_if(move.changes,
                  [&](const Change& change) { return state_.labels()[change.first] == change.second; });
    if (move.changes.empty()) continue;
    const Score after = state_.scoreAfter(move.changes);
    if (state_.score().betterThan(after)) continue;
    improved |= after.betterThan(state_.score());
    state_.apply(move.changes);
  }
  return improved;
}

// Nodes close to each other, by edges or (as nodes are numbered along the program) by number; or all.
std::vector<int32_t> LocalSearch::chooseRegion(Random& random) const {
  const int64_t count = alive_.size();
  const int64_t kind = random.below(8);
  const int64_t size = int64_t{16} << random.below(7);
  if (size >= count || (kind == 0 && (count < 1000 || random.below(4) == 0))) return alive_;
  const int64_t centre = random.below(count);
  if (kind <= 2) {
    const int64_t from = std::min(std::max<int64_t>(0, centre - size / 2), count - size);
    return {alive_.begin() + from, alive_.begin() + from + size};
  }
  return ball(alive_[centre], size, random);
}

std::vector<int32_t> LocalSearch::ball(int32_t centre, size_t size, Random& random) const {
  std::vector<bool> seen(model_.nodes.size());
  std::vector<int32_t> region{centre};
  seen[centre] = true;
  for (size_t next = 0; next < region.size() && region.size() < size; ++next) {
    std::swap(region[next], region[next + random.below(std::min<int64_t>(8, region.size() - next))]);
    for (const int32_t id : model_.nodes[region[next]].edges) {
      const int32_t other = model_.edges[id].other(region[next]);
      if (seen[other]) continue;
      seen[other] = true;
      region.push_back(other);
    }
  }
  return region;
}

LocalSearch::Move LocalSearch::tryMove(uint64_t seed, const std::function<bool()>& stop) const {
  Random random(seed);
  Move move;
  const std::vector<int32_t> region = chooseRegion(random);
  const OrderingLimits limits{
      .joint_entries = int64_t{1} << (10 + random.below(region.size() > 1000 ? 6 : 9)),
      .fill = false,
      .random = &random};
  const Ordering ordering = orderNodes(model_, region, limits);
  move.work += ordering.work / 4 + 200 * region.size();
  if (ordering.order.empty() || stop()) return move;
  // Half of the time the prices are taken as they are, else up to half more or less.
  const double factor = random.below(2) == 0 ? 1 : 0.5 + random.unit();
  optimise(ordering.order, factor, stop, move);
  return move;
}

std::vector<int32_t> LocalSearch::kicked(uint64_t seed) const {
  Random random(seed);
  std::vector<int32_t> labels = state_.labels();
  const int32_t node = alive_[random.below(std::ssize(alive_))];
  const int32_t size = model_.nodes[node].size();
  labels[node] = (labels[node] + 1 + random.below(std::max(1, size - 1))) % size;
  std::vector<int32_t> region = ball(node, size_t{16} << random.below(4), random);
  std::erase(region, node);
  const OrderingLimits limits{.joint_entries = int64_t{1} << 14, .fill = false, .random = &random};
  const Ordering ordering = orderNodes(model_, region, limits);
  Elimination elimination(model_, ordering.order);
  elimination.condition(labels);
  std::vector<double> costs(elimination.costCount());
  setCosts(elimination, memory_.prefix(prices_), costs);
  elimination.run(costs);
  elimination.assign(labels);
  return labels;
}

void LocalSearch::setCosts(const Elimination& elimination, const std::vector<double>& prefix,
                           std::vector<double>& costs) const {
  const std::vector<int32_t>& order = elimination.order();
  for (size_t i = 0; i < order.size(); ++i) {
    const std::vector<double>& own = model_.nodes[order[i]].costs;
    std::copy(own.begin(), own.end(), costs.begin() + elimination.offset(i));
    memory_.addPrices(order[i], prefix, &costs[elimination.offset(i)]);
  }
}

// What the changes gain when bytes are paid for.
double LocalSearch::pricedGain(const std::vector<Change>& changes, const Score& after,
                               const std::vector<double>& prefix) const {
  double gain = state_.score().cost - after.cost;
  std::vector<double> costs;
  for (const auto& [node, label] : changes) {
    costs.assign(model_.nodes[node].costs.size(), 0);
    memory_.addPrices(node, prefix, costs.data());
    gain += costs[state_.labels()[node]] - costs[label];
  }
  return gain;
}

void LocalSearch::optimise(const std::vector<int32_t>& order, double price_factor,
                           const std::function<bool()>& stop, Move& move) const {
  Elimination elimination(model_, order);
  elimination.condition(state_.labels());
  std::vector<double> prices = prices_;
  for (double& price : prices) price *= price_factor;
  std::vector<int32_t> labels = state_.labels();
  std::vector<double> costs(elimination.costCount());
  std::vector<int64_t> usage;
  Score best = state_.score();
  for (int32_t step = 0; step < kPriceSteps && !stop(); ++step) {
    const std::vector<double> prefix = memory_.prefix(prices);
    setCosts(elimination, prefix, costs);
    elimination.run(costs);
    elimination.assign(labels);
    move.work += elimination.work() / 4 + 8 * prices.size() + 40 * order.size();
    std::vector<Change> changes;
    for (const int32_t node : order) {
      if (labels[node] != state_.labels()[node]) changes.emplace_back(node, labels[node]);
    }
    if (changes.empty()) return;
    const Score after = state_.scoreAfter(changes, &usage);
    if (!best.betterThan(after)) {
      best = after;
      move.changes = changes;
    }
    if (after.excess <= state_.score().excess) return;
    // Raise the prices of what is too full until the answer is worth no more than the present choice.
    const double gain = pricedGain(changes, after, prefix);
    const std::vector<int32_t> peaks = state_.peaks(usage);
    for (const int32_t row : peaks) {
      const double over = static_cast<double>(
          usage[row] - std::max(memory_.capacity(row), std::min(usage[row] - 1, state_.usage()[row])));
      prices[row] += std::max(gain, 1e-3) * 1.01 / over / static_cast<double>(peaks.size());
    }
  }
}

}  // namespace pipeshard::solver
