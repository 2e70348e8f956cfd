#include "partition/layers/node_order.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>

#include "ir/base/error.h"
#include "ir/operators/operator_facts.h"

namespace pipeshard {
namespace {

constexpr size_t kMostNodes = 10'000;                // of a graph
constexpr size_t kMostOfPart = 1'000;                // nodes
constexpr size_t kWork = size_t{1} << 26;            // words looked at for a part
constexpr size_t kFewestSets = 4, kMostSets = 4096;  // of a level

// A set of nodes, by bits.
using Bits = std::vector<uint64_t>;
bool has(const Bits& bits, size_t i) { return (bits[i / 64] >> (i % 64) & 1) != 0; }
void add(Bits& bits, size_t i) { bits[i / 64] |= uint64_t{1} << (i % 64); }
bool holds(const Bits& all, const Bits& some) {
  for (size_t w = 0; w < all.size(); ++w) {
    if ((some[w] & ~all[w]) != 0) return false;
  }
  return true;
}

struct NodeLinks {
  std::vector<int> before;  // nodes whose values it reads
  std::vector<int> reads;   // values
  std::vector<int> makes;   // values
};

std::vector<NodeLinks> linksOf(const OrderProblem& problem) {
  std::vector<NodeLinks> links(problem.nodes);
  for (size_t v = 0; v < problem.values.size(); ++v) {
    const OrderProblem::Value& value = problem.values[v];
    if (value.maker >= 0) links[value.maker].makes.push_back(v);
    for (int reader : value.readers) {
      PIPESHARD_CHECK(reader > value.maker, "value {} is read before it is made", v);
      links[reader].reads.push_back(v);
      if (value.maker >= 0) links[reader].before.push_back(value.maker);
    }
  }
  return links;
}

// The nodes that lie behind all in front of them and before all others: they stay where they are.
std::vector<int> fixedNodes(const std::vector<NodeLinks>& links) {
  const size_t count = links.size();
  std::vector<Bits> ancestors(count, Bits((count + 63) / 64));
  std::vector<size_t> descendants(count);
  std::vector<int> fixed;
  for (size_t n = 0; n < count; ++n) {
    for (int before : links[n].before) {
      add(ancestors[n], before);
      const Bits& theirs = ancestors[before];
      for (size_t w = 0; w < theirs.size(); ++w) ancestors[n][w] |= theirs[w];
    }
    for (size_t a = 0; a < n; ++a) descendants[a] += has(ancestors[n], a) ? 1 : 0;
  }
  for (size_t n = 0; n < count; ++n) {
    size_t before = 0;
    for (uint64_t word : ancestors[n]) before += static_cast<size_t>(std::popcount(word));
    if (before == n && descendants[n] == count - 1 - n) fixed.push_back(n);
  }
  return fixed;
}

// Nodes [first, first + count) of the given order, with everything in front of them done.
//
// A shortest way through sets of done nodes: level l has sets of l nodes, and a step from a set runs one more
// node whose inputs are made. What crosses behind a set depends on the set alone, not on the order in which
// it came about, so of all orders that lead to a set only the least sum counts. A level keeps at most `width`
// sets, of which the given order's is always one: there is always a way to the end.
//
//   a1 makes A and b1 makes B (100 bytes each), a2 makes a of A and b2 makes b of B (1 byte each), a sum
//   reads both. As given, a1 b1 a2 b2: 100 + 200 + 101 + 2 = 403 bytes; the best order a1 a2 b1 b2:
//   100 + 1 + 101 + 2 = 204. The sum has all others before it: it stays where it is and is in no part.
class Part {
 public:
  Part(const OrderProblem& problem, const std::vector<NodeLinks>& links, int first, int count)
      : problem_(problem),
        links_(links),
        first_(first),
        count_(static_cast<size_t>(count)),
        words_((count_ + 63) / 64) {
    for (size_t n = 0; n < count_; ++n) {
      Bits& needed = needed_.emplace_back(words_);
      for (int before : links[n + static_cast<size_t>(first)].before) {
        if (before >= first) add(needed, before - first);
      }
    }
    for (size_t v = 0; v < problem.values.size(); ++v) readers_.emplace_back();
    for (size_t n = 0; n < count_; ++n) {
      for (int value : links[n + static_cast<size_t>(first)].reads) readers_[value].push_back(n);
    }
  }

  // The nodes' best order, as numbers in the part; empty: the given one is as good as any, or the part is too
  // large.
  std::vector<size_t> search(int least_saving) {
    if (count_ < 2 || count_ > kMostOfPart) return {};
    const size_t width = std::clamp(kWork / (count_ * count_ * words_), kFewestSets, kMostSets);
    levels_.push_back({Done{Bits(words_), 0, 0, {}}});
    Bits given(words_);
    for (size_t level = 0; level < count_; ++level) {
      add(given, level);
      levels_.push_back(nextLevel(levels_.back(), given, width));
    }
    const int64_t given_sum = givenBytes();
    std::vector<size_t> order = bestPath();
    const int64_t saved = given_sum - best_bytes_;
    const auto all = static_cast<double>(given_sum + enteringBytes() * static_cast<int64_t>(count_));
    const bool worth_it = saved > 0 && static_cast<double>(saved) * 100 >= all * least_saving;
    return worth_it ? order : std::vector<size_t>{};
  }

 private:
  struct Step {
    size_t node = 0;
    size_t next = 0;  // in the next level
  };
  struct Done {
    Bits nodes;
    int64_t bytes = 0;  // that cross behind them, less those that cross in front of the part
    int64_t sum = 0;    // of `bytes` on the best way to here
    std::vector<Step> steps;
  };
  using Level = std::vector<Done>;

  // By how much running the node changes what crosses.
  int64_t change(const Bits& done, size_t node) const {
    const NodeLinks& links = links_[node + static_cast<size_t>(first_)];
    int64_t bytes = 0;
    for (int made : links.makes) {
      if (!problem_.values[made].readers.empty()) bytes += problem_.values[made].bytes;
    }
    for (int read : links.reads) {
      const OrderProblem::Value& value = problem_.values[read];
      size_t read_here = 0;
      for (size_t reader : readers_[read]) read_here += has(done, reader) ? 1 : 0;
      const size_t ahead =
          std::lower_bound(value.readers.begin(), value.readers.end(), first_) - value.readers.begin();
      const size_t done_before = ahead + read_here;
      if (value.maker < 0 && done_before == 0) bytes += value.bytes;
      if (done_before + 1 == value.readers.size()) bytes -= value.bytes;
    }
    return bytes;
  }

  Level nextLevel(Level& level, const Bits& given, size_t width) {
    Level next;
    std::map<Bits, size_t> known;
    for (Done& done : level) {
      for (size_t n = 0; n < count_; ++n) {
        if (has(done.nodes, n) || !holds(done.nodes, needed_[n])) continue;
        Bits nodes = done.nodes;
        add(nodes, n);
        const auto [place, is_new] = known.try_emplace(nodes, next.size());
        if (is_new) {
          const int64_t bytes = done.bytes + change(done.nodes, n);
          next.push_back({std::move(nodes), bytes, INT64_MAX, {}});
        }
        Done& reached = next[place->second];
        reached.sum = std::min(reached.sum, done.sum + reached.bytes);
        done.steps.push_back({n, place->second});
      }
    }
    if (next.size() > width) keepBest(next, level, given, width);
    return next;
  }

  static void keepBest(Level& next, Level& level, const Bits& given, size_t width) {
    std::vector<size_t> ranked(next.size());
    std::iota(ranked.begin(), ranked.end(), size_t{0});
    std::stable_sort(ranked.begin(), ranked.end(), [&](size_t a, size_t b) {
      const bool a_given = next[a].nodes == given, b_given = next[b].nodes == given;
      return a_given != b_given ? a_given : next[a].sum < next[b].sum;
    });
    std::vector<size_t> place(next.size(), SIZE_MAX);
    Level kept;
    for (size_t i = 0; i < width; ++i) {
      place[ranked[i]] = i;
      kept.push_back(std::move(next[ranked[i]]));
    }
    next = std::move(kept);
    for (Done& done : level) {
      std::erase_if(done.steps, [&](const Step& step) { return place[step.next] == SIZE_MAX; });
      for (Step& step : done.steps) step.next = place[step.next];
    }
  }

  // From the back, so that of equal ways the one whose first different node comes first in the given order is
  // taken.
  std::vector<size_t> bestPath() {
    // by level and set: the least sum behind it; INT64_MAX: no way to the end
    std::vector<std::vector<int64_t>> rest(levels_.size());
    rest.back().assign(levels_.back().size(), 0);
    for (size_t l = levels_.size() - 1; l-- > 0;) {
      for (const Done& done : levels_[l]) {
        int64_t least = INT64_MAX;
        for (const Step& step : done.steps) {
          if (rest[l + 1][step.next] != INT64_MAX)
            least = std::min(least, levels_[l + 1][step.next].bytes + rest[l + 1][step.next]);
        }
        rest[l].push_back(least);
      }
    }
    best_bytes_ = rest[0][0];
    std::vector<size_t> order;
    size_t at = 0;
    for (size_t l = 0; l < count_; ++l) {
      for (const Step& step : levels_[l][at].steps) {  // ascending nodes
        if (rest[l + 1][step.next] == INT64_MAX ||
            levels_[l + 1][step.next].bytes + rest[l + 1][step.next] != rest[l][at])
          continue;
        order.push_back(step.node);
        at = step.next;
        break;
      }
    }
    return order;
  }

  // What crosses in front of the part.
  int64_t enteringBytes() const {
    int64_t bytes = 0;
    for (const OrderProblem::Value& value : problem_.values) {
      if (value.readers.empty() || value.readers.back() < first_) continue;
      const int made = value.maker < 0 ? value.readers.front() : value.maker;
      if (made < first_) bytes += value.bytes;
    }
    return bytes;
  }

  int64_t givenBytes() const {
    Bits done(words_);
    int64_t bytes = 0, sum = 0;
    for (size_t n = 0; n < count_; ++n) {
      bytes += change(done, n);
      add(done, n);
      sum += bytes;
    }
    return sum;
  }

  const OrderProblem& problem_;
  const std::vector<NodeLinks>& links_;
  int first_;
  size_t count_;
  size_t words_;
  std::vector<Bits> needed_;
  std::vector<std::vector<size_t>> readers_;  // by value: those in the part
  std::vector<Level> levels_;
  int64_t best_bytes_ = 0;
};

}  // namespace

std::vector<int> orderForCuts(const OrderProblem& problem, int least_saving) {
  std::vector<int> order(problem.nodes);
  std::iota(order.begin(), order.end(), 0);
  if (order.size() > kMostNodes) return order;
  const std::vector<NodeLinks> links = linksOf(problem);
  std::vector<int> fixed = fixedNodes(links);
  fixed.push_back(problem.nodes);
  int first = 0;
  for (int node : fixed) {
    const std::vector<size_t> part = Part(problem, links, first, node - first).search(least_saving);
    for (size_t i = 0; i < part.size(); ++i)
      order[static_cast<size_t>(first) + i] = first + static_cast<int>(part[i]);
    first = node + 1;
  }
  return order;
}

namespace {

// By node: only weights and constants lead to it.
std::vector<bool> weightNodes(const Graph& graph, const UseDef& uses) {
  std::vector<bool> found(graph.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const std::vector<ValueId>& inputs = graph.nodes[n].inputs;
    found[n] = std::all_of(inputs.begin(), inputs.end(), [&](ValueId input) {
      if (!input.valid() || graph.initializers.contains(input)) return true;
      const NodeId maker = uses.producer[input.index()];
      return maker.valid() && found[maker.index()];
    });
  }
  return found;
}

// Calls of one batch normalisation in training mode update its running statistics in turn: each is as if it
// read what the one before gave. They may read the statistics through views, which planning takes away later.
// `number`: of nodes in the problem, or -1.
void keepTurns(const Graph& graph, const UseDef& uses, const std::vector<int>& number,
               OrderProblem& problem) {
  constexpr size_t kMean = 3, kVariance = 4;
  std::map<ValueId, int> last;  // by running mean
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (!normalizesByBatch(node) || node.inputs.size() <= kVariance || number[n] < 0) continue;
    ValueId mean = node.inputs[kMean];
    for (NodeId maker = uses.producer[mean.index()]; maker.valid() && isView(graph.node(maker));
         maker = uses.producer[mean.index()])
      mean = graph.node(maker).inputs.at(0);
    const auto before = last.find(mean);
    if (before != last.end()) problem.values.push_back({before->second, {number[n]}, graph.bytes(mean) * 2});
    last[mean] = number[n];
  }
}

}  // namespace

std::vector<size_t> nodeOrderForCuts(const Graph& graph) {
  std::vector<size_t> given(graph.nodes.size());
  std::iota(given.begin(), given.end(), size_t{0});
  if (std::any_of(graph.nodes.begin(), graph.nodes.end(), hasSubgraphs)) return given;
  const UseDef uses = computeUseDef(graph);
  const std::vector<bool> of_weights = weightNodes(graph, uses);
  std::vector<size_t> nodes;  // of the problem
  std::vector<int> number(graph.nodes.size(), -1);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (of_weights[n]) continue;
    number[n] = nodes.size();
    nodes.push_back(n);
  }
  OrderProblem problem;
  problem.nodes = nodes.size();
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const NodeId maker = uses.producer[v];
    if (!maker.valid()) continue;
    OrderProblem::Value value{number[maker.index()], {}, graph.bytes(ValueId(v))};
    for (NodeId reader : uses.consumers[v]) {
      if (number[reader.index()] >= 0) value.readers.push_back(number[reader.index()]);
    }
    if (!value.readers.empty()) problem.values.push_back(std::move(value));
  }
  keepTurns(graph, uses, number, problem);
  const std::vector<int> chosen = orderForCuts(problem);
  if (std::is_sorted(chosen.begin(), chosen.end())) return given;
  std::vector<size_t> order;
  std::vector<bool> placed(graph.nodes.size());
  const auto place = [&](const auto& self, size_t node) -> void {
    if (placed[node]) return;
    placed[node] = true;
    for (ValueId input : graph.nodes[node].inputs) {
      const NodeId maker = input.valid() ? uses.producer[input.index()] : NodeId();
      if (maker.valid() && of_weights[maker.index()]) self(self, maker.index());
    }
    order.push_back(node);
  };
  for (int n : chosen) place(place, nodes[n]);
  for (size_t n = 0; n < graph.nodes.size(); ++n) place(place, n);
  return order;
}

void reorderNodes(Graph& graph, const std::vector<size_t>& order) {
  PIPESHARD_CHECK(order.size() == graph.nodes.size(), "an order of {} nodes for a graph of {}", order.size(),
                  graph.nodes.size());
  std::vector<Node> nodes;
  nodes.reserve(order.size());
  for (size_t n : order) nodes.push_back(std::move(graph.nodes[n]));
  graph.nodes = std::move(nodes);
}

}  // namespace pipeshard
