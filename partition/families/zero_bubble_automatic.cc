#include "partition/families/zero_bubble_automatic.h"

#include <algorithm>
#include <tuple>

#include "ir/base/error.h"
#include "partition/simulation/simulator.h"

namespace pipeshard {
namespace {

// A search runs at most about so many passes (a tenth of a second), yet never fewer than kLeastTrials trials.
constexpr int64_t kMostPasses = 1'500'000;
constexpr int64_t kLeastTrials = 40;
constexpr int64_t kFills[] = {1, 250, 500, 750, 1000, 1001};  // permille; 1001: only if the gap is longer
// Times and memory of one microbatch, so that sums over any schedule stay in 64 bits.
constexpr int64_t kMostTime = int64_t{1} << 40;
constexpr int64_t kMostMemory = int64_t{1} << 46;

class Search {
 public:
  Search(const FamilyRequest& request, int64_t limit)
      : request_(request),
        limit_(limit),
        bound_(automaticSpanBound(request)),
        trials_left_(
            std::max(kLeastTrials, kMostPasses / (int64_t{3} * request.ranks * request.microbatches))) {}

  AutomaticTrial run() {
    for (const Shape shape : {Shape::kFree, Shape::kZeroBubbleH1, Shape::kZeroBubbleH2}) {
      for (const bool level_idle : {false, true}) {
        for (const bool delay_backward : {false, true}) {
          for (const bool forward_first : {false, true}) {
            for (const int64_t fill : kFills) {
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
    std::vector<AutomaticRules> all(static_cast<size_t>(request_.ranks), rules);
    for (int rank = 0; rank < request_.ranks && shape != Shape::kFree; ++rank) {
      AutomaticRules& own = all[static_cast<size_t>(rank)];
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
        for (const int64_t fill : kFills)
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
  schedule.orders = Search(request, limit).run().orders;
  return schedule;
}

}  // namespace

std::optional<AutomaticTrial> fixedTrial(const FamilyRequest& request, int64_t limit, Schedule schedule) {
  const ScheduleCosts& c = request.costs;
  schedule.microbatches = request.microbatches;
  schedule.stages = static_cast<int>(schedule.rank_of_stage.size());
  const int chunks = schedule.stages / request.ranks;
  PassTimes stage;
  stage.forward = c.forward;
  stage.backward_input = c.backward_input;
  stage.backward_weight = c.backward_weight;
  stage.activation = c.forward_memory;
  stage.input_memory = c.input_memory;
  SimulationRequest simulation{schedule, std::vector<PassTimes>(schedule.rank_of_stage.size(), stage)};
  simulation.latency = chunks * c.transfer;
  const Simulation result = simulate(simulation);
  const int64_t peak = *std::max_element(result.peak_memory.begin(), result.peak_memory.end());
  if (peak > chunks * limit) return std::nullopt;
  return AutomaticTrial{schedule.orders, result.longestSpan(), result.makespan};
}

int64_t automaticSpanBound(const FamilyRequest& request) {
  const ScheduleCosts& c = request.costs;
  const int64_t work = request.microbatches * (c.forward + c.backward_input + c.backward_weight);
  const int64_t hops = request.ranks - 1;
  const int64_t path = hops * (c.forward + c.backward_input + 2 * c.transfer);
  return std::max(work, path + request.microbatches * (c.forward + c.backward_input) + c.backward_weight);
}

bool fillsGap(int64_t gap, int64_t weight_time, int64_t permille) {
  return gap > 0 && std::min(gap, 2 * weight_time) * 1000 >= weight_time * permille;
}

int64_t checkAutomaticCosts(const FamilyRequest& request, int64_t otherwise, int chunks) {
  const ScheduleCosts& c = request.costs;
  for (const int64_t time : {c.forward, c.backward_input, c.backward_weight, c.transfer}) {
    if (time >= 0 && time <= kMostTime) continue;
    fail(ErrorCode::kConfiguration, "schedule {}: found a time of {}; expected 0 to {}", request.name, time,
         kMostTime);
  }
  if (c.forward_memory < 1 || c.forward_memory > kMostMemory || c.weight_memory > 0 ||
      c.forward_memory + c.input_memory + c.weight_memory != 0) {
    fail(ErrorCode::kConfiguration,
         "schedule {}: found memory of F, I and W of {}, {} and {}; expected F from 1 to {}, W at most 0, "
         "and a sum of 0: what a microbatch "
         "takes it gives back",
         request.name, c.forward_memory, c.input_memory, c.weight_memory, kMostMemory);
  }
  // In F of one stage: F of each of a rank's stages, and what I takes on top of one.
  const int64_t input = std::max<int64_t>(c.input_memory, 0);
  const int64_t smallest =
      (chunks * c.forward_memory + input + chunks * c.forward_memory - 1) / (chunks * c.forward_memory);
  const int64_t limit = request.option("limit", otherwise);
  if (limit < smallest) {
    fail(ErrorCode::kConfiguration,
         "schedule {}: found a memory limit of {} microbatches' activations; expected at least {}, what one "
         "microbatch needs on its way "
         "through a rank",
         request.name, limit, smallest);
  }
  const int64_t all = request.microbatches * (1 + (input + c.forward_memory - 1) / c.forward_memory);
  return std::min(limit, std::max(all, smallest)) * c.forward_memory;
}

Schedule zeroBubbleOneSchedule(const FamilyRequest& request) {
  return automaticSchedule(request, request.ranks);
}

Schedule zeroBubbleTwoSchedule(const FamilyRequest& request) {
  return automaticSchedule(request, int64_t{2} * request.ranks);
}

}  // namespace pipeshard
