#include "partition/families/v_pattern.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>
#include <utility>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr int kPeriod = 6;

struct Slot {
  int start = 0;
  int rank = 0;
  Action action;
};

int slotsOf(ActionKind kind) { return kind == ActionKind::kBackward ? 2 : 1; }

size_t at(int i) { return i; }

// Which slots modulo 6 the passes of the rank's two stages take; false if two take the same.
bool occupy(const VPattern& pattern, int rank, std::array<bool, kPeriod>& taken) {
  taken = {};
  const auto add = [&](int start, int slots) {
    bool free = true;
    for (int i = 0; i < slots; ++i) free = !std::exchange(taken[at((start + i) % kPeriod)], true) && free;
    return free;
  };
  bool free = true;
  for (const int stage : {rank, 2 * pattern.ranks - 1 - rank}) {
    free = add(pattern.forward[at(stage)], 1) && free;
    free = add(pattern.backward[at(stage)], pattern.splits_backward ? 1 : 2) && free;
  }
  return free;
}

bool collides(const VPattern& pattern) {
  std::array<bool, kPeriod> taken;
  for (int rank = 0; rank < pattern.ranks; ++rank) {
    if (!occupy(pattern, rank, taken)) return true;
  }
  return false;
}

// Backward passes from the last stage to the first, `pause` slots after the last forward pass and `extra`
// more after every third.
VPattern patternOf(int ranks, bool splits_backward, int pause, int phase) {
  VPattern pattern{ranks, splits_backward, {}, {}, {}};
  const int stages = 2 * ranks;
  for (int stage = 0; stage < stages; ++stage) {
    pattern.forward.push_back(stage);
    const int before = stages - 1 - stage;
    pattern.backward.push_back(stages + pause +
                               (splits_backward ? before : 2 * before + 3 * ((before + phase) / 3)));
  }
  return pattern;
}

// W of each stage in one of the rank's two free slots modulo 6, as soon after its I as the other allows.
void placeWeights(VPattern& pattern) {
  pattern.weight.assign(pattern.forward.size(), 0);
  for (int rank = 0; rank < pattern.ranks; ++rank) {
    std::array<bool, kPeriod> taken;
    occupy(pattern, rank, taken);
    const size_t down = at(rank), up = at(2 * pattern.ranks - 1 - rank);
    std::vector<int> free;
    for (int i = 0; i < kPeriod; ++i) {
      if (!taken[at(i)]) free.push_back(i);
    }
    const auto after = [&](size_t stage, int slot) {
      const int first = pattern.backward[stage] + 1;
      return first + (slot - first % kPeriod + kPeriod) % kPeriod;
    };
    if (after(down, free[0]) + after(up, free[1]) > after(down, free[1]) + after(up, free[0]))
      std::swap(free[0], free[1]);
    pattern.weight[down] = after(down, free[0]);
    pattern.weight[up] = after(up, free[1]);
  }
}

// One rank: what runs when, and how many stages' activations it holds in each slot.
struct Timeline {
  std::vector<char> busy;
  std::vector<int> held;
  std::vector<Slot> passes;

  bool isFree(int start, int slots) const {
    return std::none_of(busy.begin() + start, busy.begin() + start + slots, [](char b) { return b != 0; });
  }
  void set(int start, int slots, char value) { std::fill_n(busy.begin() + start, slots, value); }
};

std::vector<Slot> allPasses(const VPattern& pattern, int microbatches) {
  std::vector<Slot> passes;
  const int stages = 2 * pattern.ranks;
  const ActionKind backward = pattern.splits_backward ? ActionKind::kBackwardInput : ActionKind::kBackward;
  for (int stage = 0; stage < stages; ++stage) {
    const int rank = std::min(stage, stages - 1 - stage);
    for (int k = 0; k < microbatches; ++k) {
      passes.push_back({pattern.forward[at(stage)] + kPeriod * k, rank, {stage, ActionKind::kForward, k}});
      passes.push_back({pattern.backward[at(stage)] + kPeriod * k, rank, {stage, backward, k}});
      if (pattern.splits_backward) {
        passes.push_back(
            {pattern.weight[at(stage)] + kPeriod * k, rank, {stage, ActionKind::kBackwardWeight, k}});
      }
    }
  }
  std::sort(passes.begin(), passes.end(), [](const Slot& a, const Slot& b) {
    return std::tie(a.start, a.rank) < std::tie(b.start, b.rank);
  });
  return passes;
}

class Unroller {
 public:
  Unroller(const VPattern& pattern, int microbatches)
      : pattern_(pattern), passes_(allPasses(pattern, microbatches)), timelines_(at(pattern.ranks)) {
    const size_t slots = at(passes_.back().start) + 8;
    for (Timeline& line : timelines_) {
      line.busy.assign(slots, 0);
      line.held.assign(slots, 0);
    }
    for (const Slot& pass : passes_) {
      Timeline& line = timelines_[at(pass.rank)];
      const int slots = slotsOf(pass.action.kind);
      line.set(pass.start, slots, 1);
      if (holds(pass.action.kind)) ++line.held[at(pass.start)];
      if (frees(pass.action.kind)) --line.held[at(pass.start + slots)];
    }
    for (Timeline& line : timelines_) std::partial_sum(line.held.begin(), line.held.end(), line.held.begin());
    for (const Timeline& line : timelines_)
      peak_ = std::max(peak_, *std::max_element(line.held.begin(), line.held.end()));
    for (auto& ends : ends_) ends.assign(2 * at(pattern.ranks), std::vector<int>(at(microbatches), 0));
  }

  ScheduleOrders run() {
    for (const Slot& pass : passes_) pullForward(pass);
    ScheduleOrders orders;
    for (Timeline& line : timelines_) {
      std::sort(line.passes.begin(), line.passes.end(),
                [](const Slot& a, const Slot& b) { return a.start < b.start; });
      std::vector<Action>& order = orders.emplace_back();
      for (const Slot& pass : line.passes) order.push_back(pass.action);
    }
    return orders;
  }

 private:
  static bool holds(ActionKind kind) { return kind == ActionKind::kForward; }
  bool frees(ActionKind kind) const {
    return kind == (pattern_.splits_backward ? ActionKind::kBackwardWeight : ActionKind::kBackward);
  }

  int& end(ActionKind kind, int stage, int microbatch) {
    const size_t row = kind == ActionKind::kForward ? 0 : kind == ActionKind::kBackwardWeight ? 2 : 1;
    return ends_[row][at(stage)][at(microbatch)];
  }

  int earliest(const Action& action) {
    const auto [stage, kind, k, overlaps] = action;
    int start = k > 0 ? end(kind, stage, k - 1) : 0;
    if (kind == ActionKind::kForward) return stage > 0 ? std::max(start, end(kind, stage - 1, k)) : start;
    if (kind == ActionKind::kBackwardWeight)
      return std::max(start, end(ActionKind::kBackwardInput, stage, k));
    start = std::max(start, end(ActionKind::kForward, stage, k));
    return stage + 1 < 2 * pattern_.ranks ? std::max(start, end(kind, stage + 1, k)) : start;
  }

  void pullForward(Slot pass) {
    Timeline& line = timelines_[at(pass.rank)];
    const ActionKind kind = pass.action.kind;
    const int slots = slotsOf(kind);
    const int old = pass.start;
    line.set(old, slots, 0);
    int start = earliest(pass.action);
    if (holds(kind)) {
      int roomy = old;  // from here on the rank holds less than its peak
      while (roomy > start && line.held[at(roomy - 1)] < peak_) --roomy;
      start = roomy;
    }
    while (start < old && !line.isFree(start, slots)) ++start;
    line.set(start, slots, 1);
    for (int i = start; holds(kind) && i < old; ++i) ++line.held[at(i)];
    for (int i = start + slots; frees(kind) && i < old + slots; ++i) --line.held[at(i)];
    end(kind, pass.action.stage, pass.action.microbatch) = start + slots;
    pass.start = start;
    line.passes.push_back(pass);
  }

  const VPattern& pattern_;
  std::vector<Slot> passes_;
  std::vector<Timeline> timelines_;
  int peak_ = 0;
  std::array<std::vector<std::vector<int>>, 3> ends_;  // F; B or I; W, by stage and microbatch
};

}  // namespace

VPattern shortestSplitPattern(int ranks) {
  VPattern pattern = patternOf(ranks, true, ranks % 3 == 0 ? 2 : 0, 0);
  PIPESHARD_CHECK(!collides(pattern), "the pattern of {} ranks collides", ranks);
  placeWeights(pattern);
  return pattern;
}

VPattern shortestWholePattern(int ranks) {
  for (int pause = 0; pause < kPeriod; ++pause) {
    for (int phase = 0; phase < 3; ++phase) {
      VPattern pattern = patternOf(ranks, false, pause, phase);
      if (!collides(pattern)) return pattern;
    }
  }
  PIPESHARD_CHECK(false, "no pattern for {} ranks", ranks);
  return {};
}

ScheduleOrders unrollPattern(const VPattern& pattern, int microbatches) {
  return Unroller(pattern, microbatches).run();
}

}  // namespace pipeshard
