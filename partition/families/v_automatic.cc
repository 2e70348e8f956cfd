// v-half, v-min: orders of two stages per rank in the V placement, found for given times, transfer time and
// memory limit.
//
// One trial runs the ranks along the simulated time. A rank takes, of its next F and I of both stages, what
// can start first; what starts at the same time in a fixed order of preference; a W in a gap before that of
// at least `fill_permille` of a W. F of the first stage is held back while `in_flight` microbatches are
// between it and their last I on this rank.
//
// No rank can get stuck: F of the first stage leaves room for an F of the second and what its I takes, so the
// oldest microbatch can always go on, and its W frees what it has.
#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

#include "partition/families/automatic_trial.h"
#include "partition/families/families.h"
#include "partition/families/v_pattern.h"

namespace pipeshard {
namespace {

constexpr int64_t kNoPlace = kNeverStarts;
// A search runs about so many passes, yet never fewer than kLeastTrials trials.
constexpr int64_t kMostPasses = 400'000;
constexpr int64_t kLeastTrials = 60;

struct VRules {
  int in_flight = 1;
  // of F of the first stage, F and I of the second, I of the first; 0 first
  std::array<int, 4> preference = {1, 0, 3, 2};
  int64_t fill_permille = 0;
};

// A rank's passes other than W, in the order in which a microbatch meets them.
enum Visit : size_t { kDown, kUp, kUpInput, kDownInput, kVisits };
constexpr Visit kAllVisits[] = {kDown, kUp, kUpInput, kDownInput};
bool isInput(Visit visit) { return visit >= kUpInput; }

// One trial, with rules[rank]. Stages are half a share: times and memory are in halves, transfers twice as
// long.
class Run {
 public:
  Run(const FamilyRequest& request, int64_t limit, const std::vector<VRules>& rules)
      : costs_(request.costs),
        limit_(2 * limit),
        rules_(rules),
        microbatches_(request.microbatches),
        ranks_(request.ranks) {
    for (Rank& rank : ranks_) {
      for (auto& end : rank.end) end.assign(microbatches_, kNoPlace);
      rank.order.reserve(6 * count());
    }
  }

  AutomaticTrial run() {
    return runGreedily(
        ranks_, 6 * count() * ranks_.size(), [this](size_t rank) { decide(rank); },
        [this](size_t rank) { take(rank, ranks_[rank].next); });
  }

 private:
  struct Step {
    int64_t start = kNoPlace;
    std::optional<Visit> visit;  // none: W
  };
  struct Rank {
    std::array<int, kVisits> done = {};
    std::array<std::vector<int64_t>, kVisits> end;  // by microbatch
    std::array<int, 2> weights = {};                // done, of the first and second stage
    size_t oldest_weight = 0;
    // stages whose W can run, in order of their I: 0 first, 1 second; from oldest_weight on
    std::vector<int> pending;
    int64_t now = 0, first_start = -1, memory = 0;
    Step next;
    std::vector<Action> order;

    bool hasWeight() const { return oldest_weight < pending.size(); }
  };

  size_t count() const { return microbatches_; }

  bool admits(size_t index, Visit visit) const {
    const Rank& rank = ranks_[index];
    const int64_t input = std::max<int64_t>(costs_.input_memory, 0);
    if (isInput(visit)) return rank.memory + costs_.input_memory <= limit_;
    if (rank.memory + costs_.forward_memory + input > limit_) return false;
    return visit == kUp || rank.done[kDown] - rank.done[kDownInput] < rules_[index].in_flight;
  }

  // When the rank can start its next pass of this kind, as far as is known.
  int64_t startOf(size_t index, Visit visit) const {
    const Rank& rank = ranks_[index];
    const int k = rank.done[visit];
    if (k == microbatches_ || !admits(index, visit)) return kNoPlace;
    const bool turns = visit == kUp || visit == kDownInput ? index + 1 == ranks_.size() : index == 0;
    if (visit == kDown && turns) return rank.now;
    const Rank& source = turns ? rank : ranks_[visit == kUp || visit == kDownInput ? index + 1 : index - 1];
    const int64_t end = source.end[turns ? visit - 1 : visit][k];
    return end == kNoPlace ? kNoPlace : std::max(rank.now, end + (turns ? 0 : 2 * costs_.transfer));
  }

  void decide(size_t index) {
    Rank& rank = ranks_[index];
    const VRules& rules = rules_[index];
    rank.next = {};
    int preference = 0;
    for (const Visit visit : kAllVisits) {
      const int64_t start = startOf(index, visit);
      if (std::tie(start, rules.preference[visit]) < std::tie(rank.next.start, preference)) {
        rank.next = {start, visit};
        preference = rules.preference[visit];
      }
    }
    const bool gap = fillsGap(rank.next.start - rank.now, costs_.backward_weight, rules.fill_permille);
    // A gap that is too short is kept: the rank decides again when it is over, or when it hears of something
    // earlier.
    if (rank.hasWeight() && gap) rank.next = {rank.now, std::nullopt};
  }

  void take(size_t index, const Step step) {
    Rank& rank = ranks_[index];
    if (rank.first_start < 0) rank.first_start = step.start;
    const StageId stages[] = {StageId(index), StageId(2 * ranks_.size() - 1 - index)};
    if (!step.visit) {
      const int chunk = rank.pending[rank.oldest_weight++];
      rank.order.push_back({stages[chunk], ActionKind::kBackwardWeight, rank.weights[chunk]++});
      rank.now = step.start + costs_.backward_weight;
      rank.memory += costs_.weight_memory;
      return;
    }
    const Visit visit = *step.visit;
    const int k = rank.done[visit]++;
    const int chunk = visit == kUp || visit == kUpInput ? 1 : 0;
    rank.order.push_back(
        {stages[chunk], isInput(visit) ? ActionKind::kBackwardInput : ActionKind::kForward, k});
    rank.now = step.start + (isInput(visit) ? costs_.backward_input : costs_.forward);
    rank.memory += isInput(visit) ? costs_.input_memory : costs_.forward_memory;
    rank.end[visit][k] = rank.now;
    if (isInput(visit)) rank.pending.push_back(chunk);
  }

  const ScheduleCosts& costs_;
  int64_t limit_;
  const std::vector<VRules>& rules_;
  int microbatches_;
  std::vector<Rank> ranks_;
};

// Which of F down, F up, I up and I down goes first. Best on average first.
constexpr std::array<int, kVisits> kPreferences[] = {{1, 0, 3, 2}, {3, 2, 0, 1}, {3, 2, 1, 0}, {3, 0, 1, 2},
                                                     {1, 0, 2, 3}, {0, 1, 3, 2}, {3, 0, 2, 1}, {0, 1, 2, 3},
                                                     {0, 3, 1, 2}, {0, 3, 2, 1}, {2, 3, 0, 1}, {2, 3, 1, 0}};
constexpr int64_t kFills[] = {0, 500, 1000};

// The most that `in_flight` can be under the limit; at least 1 for a limit of checkAutomaticCosts.
int mostInFlight(const FamilyRequest& request, int64_t limit) {
  const ScheduleCosts& c = request.costs;
  const int64_t room = 2 * limit - c.forward_memory - std::max<int64_t>(c.input_memory, 0);
  return std::min<int64_t>(room / c.forward_memory, request.microbatches);
}

class Search {
 public:
  Search(const FamilyRequest& request, int64_t limit)
      : request_(request),
        limit_(limit),
        trials_left_(
            std::max(kLeastTrials, kMostPasses / (int64_t{6} * request.ranks * request.microbatches))) {}

  ScheduleOrders run() {
    attemptPattern();
    const int most = mostInFlight(request_, limit_);
    // The same rules on all ranks, or fewer microbatches in flight on later ranks.
    for (const auto& preference : kPreferences) {
      for (int in_flight = most; in_flight >= std::max(1, most / 2); --in_flight) {
        for (const int ranks_per_step : {0, 2, 1}) attemptTapered({in_flight, preference, 0}, ranks_per_step);
      }
    }
    for (const int64_t fill : kFills) attemptAll([&](VRules& r) { r.fill_permille = fill; });
    while (improveOnce()) {
    }
    return std::move(best_.orders);
  }

 private:
  bool keep(AutomaticTrial trial) {
    if (!best_.orders.empty() && std::tie(trial.makespan, trial.span) >= std::tie(best_.makespan, best_.span))
      return false;
    best_ = std::move(trial);
    return true;
  }

  bool attempt(const std::vector<VRules>& rules) {
    if (trials_left_-- <= 0 || !keep(Run(request_, limit_, rules).run())) return false;
    rules_ = rules;
    return true;
  }

  void attemptTapered(VRules rules, int ranks_per_step) {
    std::vector<VRules> all;
    for (int rank = 0; rank < request_.ranks; ++rank) {
      all.push_back(rules);
      if (ranks_per_step > 0) all.back().in_flight = std::max(1, rules.in_flight - rank / ranks_per_step);
    }
    if (rules_.empty()) rules_ = all;
    attempt(all);
  }

  template <typename Edit>
  bool attemptAll(const Edit& edit, size_t from = 0, size_t to = SIZE_MAX) {
    std::vector<VRules> rules = rules_;
    for (size_t rank = from; rank < std::min(to, rules.size()); ++rank) edit(rules[rank]);
    return attempt(rules);
  }

  // Another rule on one rank, or from one rank on.
  bool improveOnce() {
    bool improved = false;
    const int most = mostInFlight(request_, limit_);
    for (size_t rank = 0; rank < rules_.size(); ++rank) {
      for (const size_t end : {rank + 1, rules_.size()}) {
        if (trials_left_ <= 0) return false;
        if (end == rank + 1 && end == rules_.size()) continue;  // the same twice
        for (const int step : {-1, 1}) {
          improved |= attemptAll([&](VRules& r) { r.in_flight = std::clamp(r.in_flight + step, 1, most); },
                                 rank, end);
        }
        for (const auto& preference : kPreferences)
          improved |= attemptAll([&](VRules& r) { r.preference = preference; }, rank, end);
        for (const int64_t fill : kFills)
          improved |= attemptAll([&](VRules& r) { r.fill_permille = fill; }, rank, end);
      }
    }
    return improved;
  }

  // The shortest pattern, if its order fits.
  void attemptPattern() {
    Schedule schedule;
    schedule.rank_of_stage = vPlacement(request_.ranks);
    schedule.orders = unrollPattern(shortestSplitPattern(request_.ranks), request_.microbatches);
    if (std::optional<AutomaticTrial> trial = fixedTrial(request_, limit_, std::move(schedule)))
      keep(std::move(*trial));
  }

  const FamilyRequest& request_;
  int64_t limit_;
  int64_t trials_left_;
  AutomaticTrial best_;
  std::vector<VRules> rules_;
};

Schedule limitedVSchedule(const FamilyRequest& request, int64_t microbatches) {
  const int64_t limit = checkAutomaticCosts(request, microbatches, 2);
  Schedule schedule;
  schedule.rank_of_stage = vPlacement(request.ranks);
  schedule.orders = Search(request, limit).run();
  return schedule;
}

}  // namespace

Schedule vHalfSchedule(const FamilyRequest& request) {
  return limitedVSchedule(request, request.ranks / 2 + 1);
}

Schedule vMinSchedule(const FamilyRequest& request) {
  return limitedVSchedule(request, (request.ranks + 4) / 3);
}

}  // namespace pipeshard
