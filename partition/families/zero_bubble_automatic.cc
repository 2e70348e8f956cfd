// zb-1p and zb-2p: orders of one stage per pipeline rank, found for given times, transfer time and memory
// limit. The idea is that of Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 3.1: decide pass by
// pass along the simulated time, with a few rules that can be switched; keep the best. The rules here
// (automatic_trial.h) are set rank by rank and improved one after the other, in a counted number of trials;
// and zb-h1 and zb-h2, where they fit, are never better. So the result depends on the request alone.
#include <algorithm>
#include <tuple>

#include "partition/families/automatic_trial.h"
#include "partition/families/families.h"

namespace pipeshard {
namespace {

// A search runs at most about so many passes (a tenth of a second), yet never fewer than kLeastFillTrials
// trials.
constexpr int64_t kMostTrialPasses = 1'500'000;
constexpr int64_t kLeastFillTrials = 40;
// Permille; 1001: only if the gap is longer.
constexpr int64_t kFillsTried[] = {1, 250, 500, 750, 1000, 1001};

class FillSearch {
 public:
  FillSearch(const FamilyRequest& request, int64_t limit)
      : request_(request),
        limit_(limit),
        bound_(automaticSpanBound(request)),
        trials_left_(std::max(kLeastFillTrials,
                              kMostTrialPasses / (int64_t{3} * request.ranks * request.microbatches))) {}

  AutomaticTrial run() {
    for (const Shape shape : {Shape::kFree, Shape::kZeroBubbleH1, Shape::kZeroBubbleH2}) {
      for (const bool level_idle : {false, true}) {
        for (const bool delay_backward : {false, true}) {
          for (const bool forward_first : {false, true}) {
            for (const int64_t fill : kFillsTried) {
              attempt(
                  shaped(shape, {delay_backward, forward_first, level_idle, fill, request_.microbatches, 0}));
            }
          }
        }
      }
    }
    while (improveOnce()) {
    }
    for (const FamilyFunction make : {zeroBubbleH1Schedule, zeroBubbleH2Schedule}) {
      if (std::optional<AutomaticTrial> trial = fixedTrial(request_, limit_, make(request_)))
        keep(std::move(*trial));
    }
    return std::move(best_);
  }

 private:
  // How many microbatches a rank has in flight, and how late its W are: as many as fit and as early as it
  // goes, or as in zb-h1 and zb-h2.
  enum class Shape : uint8_t { kFree, kZeroBubbleH1, kZeroBubbleH2 };

  std::vector<AutomaticRules> shaped(Shape shape, const AutomaticRules& rules) const {
    std::vector<AutomaticRules> all(request_.ranks, rules);
    for (int rank = 0; rank < request_.ranks && shape != Shape::kFree; ++rank) {
      AutomaticRules& own = all[rank];
      const int after = request_.ranks - rank;
      own.in_flight = shape == Shape::kZeroBubbleH1 ? after : 2 * after - 1;
      own.weight_lag = shape == Shape::kZeroBubbleH1 ? rank : 2 * rank;
    }
    return all;
  }

  bool done() const { return best_.span == bound_ || trials_left_ <= 0; }

  bool keep(AutomaticTrial trial) {
    if (!best_.orders.empty() && std::tie(trial.span, trial.makespan) >= std::tie(best_.span, best_.makespan))
      return false;
    best_ = std::move(trial);
    return true;
  }

  bool attempt(const std::vector<AutomaticRules>& rules) {
    if (!best_.orders.empty() && done()) return false;
    --trials_left_;
    if (!keep(automaticTrial(request_, limit_, rules))) return false;
    rules_ = rules;
    return true;
  }

  // Another rule on one rank, or from one rank on.
  bool improveOnce() {
    bool improved = false;
    const size_t ranks = rules_.size();
    const auto change = [&](size_t from, size_t to, const auto& edit) {
      std::vector<AutomaticRules> rules = rules_;
      for (size_t rank = from; rank < to; ++rank) edit(rules[rank]);
      improved = attempt(rules) || improved;
    };
    for (size_t rank = 0; rank < ranks && !done(); ++rank) {
      for (const size_t end : {rank + 1, ranks}) {
        if (end == rank + 1 && end == ranks) continue;  // the same twice
        change(rank, end, [](AutomaticRules& r) { r.delay_backward = !r.delay_backward; });
        for (const int64_t fill : kFillsTried)
          change(rank, end, [&](AutomaticRules& r) { r.fill_permille = fill; });
        for (const int step : {-1, 1}) {
          change(rank, end, [&](AutomaticRules& r) { r.in_flight = std::max(1, r.in_flight + step); });
          change(rank, end, [&](AutomaticRules& r) { r.weight_lag = std::max(0, r.weight_lag + step); });
        }
      }
      change(rank, rank + 1, [](AutomaticRules& r) { r.forward_first = !r.forward_first; });
      change(rank, rank + 1, [](AutomaticRules& r) { r.level_idle = !r.level_idle; });
    }
    return improved && !done();
  }

  const FamilyRequest& request_;
  int64_t limit_;
  int64_t bound_;
  int64_t trials_left_;
  AutomaticTrial best_;
  std::vector<AutomaticRules> rules_;
};

Schedule automaticSchedule(const FamilyRequest& request, int64_t microbatches) {
  const int64_t limit = checkAutomaticCosts(request, microbatches, 1);
  Schedule schedule;
  schedule.rank_of_stage = loopedPlacement(request.ranks, request.ranks);
  schedule.orders = FillSearch(request, limit).run().orders;
  return schedule;
}

}  // namespace

Schedule zeroBubbleOneSchedule(const FamilyRequest& request) {
  return automaticSchedule(request, request.ranks);
}

Schedule zeroBubbleTwoSchedule(const FamilyRequest& request) {
  return automaticSchedule(request, int64_t{2} * request.ranks);
}

}  // namespace pipeshard
