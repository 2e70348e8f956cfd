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
  PipelineRankId rank;
  Action action;
};

int slotsOf(ActionKind kind) { return kind == ActionKind::kBackward ? 2 : 1; }

// The rank's two stages, on the way down and on the way up.
std::array<StageId, 2> stagesOf(PipelineRankId rank, int ranks) {
  return {StageId(rank.index()), StageId(2 * ranks - 1 - rank.index())};
}

// Which slots modulo 6 the passes of the rank's two stages take; false if two take the same.
bool occupy(const VPattern& pattern, PipelineRankId rank, std::array<bool, kPeriod>& taken) {
  taken = {};
  const auto add = [&](int start, int slots) {
    bool free = true;
    for (int i = 0; i < slots; ++i) free = !std::exchange(taken[(start + i) % kPeriod], true) && free;
    return free;
  };
  bool free = true;
  for (const StageId stage : stagesOf(rank, pattern.ranks)) {
    free = add(pattern.forward[stage], 1) && free;
    free = add(pattern.backward[stage], pattern.splits_backward ? 1 : 2) && free;
  }
  return free;
}

bool collides(const VPattern& pattern) {
  std::array<bool, kPeriod> taken;
  for (const PipelineRankId rank : idsBelow<PipelineRankId>(pattern.ranks)) {
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
  for (const PipelineRankId rank : idsBelow<PipelineRankId>(pattern.ranks)) {
    std::array<bool, kPeriod> taken;
    occupy(pattern, rank, taken);
    const auto [down, up] = stagesOf(rank, pattern.ranks);
    std::vector<int> free;
    for (int i = 0; i < kPeriod; ++i) {
      if (!taken[i]) free.push_back(i);
    }
    const auto after = [&](StageId stage, int slot) {
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
  const RankOfStage ranks = vPlacement(pattern.ranks);
  const ActionKind backward = pattern.splits_backward ? ActionKind::kBackwardInput : ActionKind::kBackward;
  for (const StageId stage : ranks.ids()) {
    const PipelineRankId rank = ranks[stage];
    for (int k = 0; k < microbatches; ++k) {
      passes.push_back({pattern.forward[stage] + kPeriod * k, rank, {stage, ActionKind::kForward, k}});
      passes.push_back({pattern.backward[stage] + kPeriod * k, rank, {stage, backward, k}});
      if (pattern.splits_backward) {
        passes.push_back(
            {pattern.weight[stage] + kPeriod * k, rank, {stage, ActionKind::kBackwardWeight, k}});
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
      : pattern_(pattern), passes_(allPasses(pattern, microbatches)), timelines_(pattern.ranks) {
    const size_t slots = passes_.back().start + 8;
    for (Timeline& line : timelines_) {
      line.busy.assign(slots, 0);
      line.held.assign(slots, 0);
    }
    for (const Slot& pass : passes_) {
      Timeline& line = timelines_[pass.rank];
      const int slots = slotsOf(pass.action.kind);
      line.set(pass.start, slots, 1);
      if (holds(pass.action.kind)) ++line.held[pass.start];
      if (frees(pass.action.kind)) --line.held[pass.start + slots];
    }
    for (Timeline& line : timelines_) std::partial_sum(line.held.begin(), line.held.end(), line.held.begin());
    for (const Timeline& line : timelines_)
      peak_ = std::max(peak_, *std::max_element(line.held.begin(), line.held.end()));
    for (auto& ends : ends_) ends.assign(2 * pattern.ranks, std::vector<int>(microbatches));
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

  int& end(ActionKind kind, StageId stage, int microbatch) {
    const size_t row = kind == ActionKind::kForward ? 0 : kind == ActionKind::kBackwardWeight ? 2 : 1;
    return ends_[row][stage][microbatch];
  }

  int earliest(const Action& action) {
    const auto [stage, kind, k, overlaps] = action;
    int start = k > 0 ? end(kind, stage, k - 1) : 0;
    const auto after = [&](StageId other) {
      return ends_.front().has(other) ? std::max(start, end(kind, other, k)) : start;
    };
    if (kind == ActionKind::kForward) return after(stage.previous());
    if (kind == ActionKind::kBackwardWeight)
      return std::max(start, end(ActionKind::kBackwardInput, stage, k));
    start = std::max(start, end(ActionKind::kForward, stage, k));
    return after(stage.next());
  }

  void pullForward(Slot pass) {
    Timeline& line = timelines_[pass.rank];
    const ActionKind kind = pass.action.kind;
    const int slots = slotsOf(kind);
    const int old = pass.start;
    line.set(old, slots, 0);
    int start = earliest(pass.action);
    if (holds(kind)) {
      int roomy = old;  // from here on the rank holds less than its peak
      while (roomy > start && line.held[roomy - 1] < peak_) --roomy;
      start = roomy;
    }
    while (start < old && !line.isFree(start, slots)) ++start;
    line.set(start, slots, 1);
    for (int i = start; holds(kind) && i < old; ++i) ++line.held[i];
    for (int i = start + slots; frees(kind) && i < old + slots; ++i) --line.held[i];
    end(kind, pass.action.stage, pass.action.microbatch) = start + slots;
    pass.start = start;
    line.passes.push_back(pass);
  }

  const VPattern& pattern_;
  std::vector<Slot> passes_;
  IdVector<PipelineRankId, Timeline> timelines_;
  int peak_ = 0;
  // F; B or I; W, by stage and microbatch
  std::array<IdVector<StageId, std::vector<int>>, 3> ends_;
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
