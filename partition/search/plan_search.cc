#include "partition/search/plan_search.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "partition/families/families.h"
#include "partition/families/make_schedule.h"
#include "partition/search/assignment_request.h"
#include "partition/search/chunk_search.h"
#include "partition/search/equal_stages.h"
#include "partition/search/plan_neighbours.h"
#include "partition/search/plan_prediction.h"
#include "partition/search/search_memory.h"
#include "partition/search/stage_assignment.h"

namespace pipeshard {
namespace {

constexpr const char* kNoBetter = "no better than others";
// A direction ends behind so many numbers of microbatches in a row that were no better,
constexpr int kWorseInARow = 2;
// but downwards not before a number is at most this part of the last better one,
constexpr int64_t kWorseTimes = 4;
// and upwards not before one is this many times as large: rows that divide badly come first at times.
constexpr int64_t kMoreTimes = 32;
// Every schedule is tried for the best plans: for these at least,
constexpr size_t kScheduled = 4;
// and for these at most, where they may become the fastest by a schedule with fewer gaps.
constexpr size_t kScheduledAtMost = 24;
// The best neighbour is taken so many times at most.
constexpr int kRounds = 12;
// Passes that each part of the search may simulate; one takes about a microsecond.
constexpr int64_t kMostPasses = 3'000'000;
// A schedule that is itself searched counts as so many passes.
constexpr int64_t kPassesOfAutomatic = 300'000;
// Such schedules are made where microbatches x ranks are no more than this.
constexpr int64_t kMostAutomatic = 4'096;

// The plan uses the first devices without gaps, as plans must.
bool withoutGaps(const std::vector<AssignedStage>& stages) {
  int next = 0;
  for (const AssignedStage& stage : stages) {
    if (stage.submesh.first_device != next) return false;
    next += stage.submesh.deviceCount();
  }
  return true;
}

struct Candidate {
  size_t count = 0;  // into the request's microbatches
  Assignment assignment;
};

// In the same way but for what crosses their ends.
bool sameStages(const std::vector<AssignedStage>& a, const std::vector<AssignedStage>& b,
                const CountedCosts& costs) {
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(), [&](const AssignedStage& x, const AssignedStage& y) {
        if (x.first_layer != y.first_layer || x.last_layer != y.last_layer || x.submesh != y.submesh)
          return false;
        const StageConfig one = costs.config(x.option.config), two = costs.config(y.option.config);
        return one.mesh == two.mesh && one.method == two.method && one.recomputation == two.recomputation;
      });
}

// One run of the search. What its steps hand on:
//
//   counts_          by number of microbatches: its costs, once asked for, and what has come of it
//   candidates_      assignments of all numbers, with their objectives; equal_: equal stages
//   plans_           simulated plans that fit: of each number of microbatches and stages one, with the best
//                    schedule so far (keep); sorted by time between the steps
//   best_objective_  the least objective so far, at first the request's bound. It only falls, so the later a
//                    number is tried, the sooner its least costs rule it out (mayBeBetter)
//
// When to stop trying numbers: upwards from 8, if 16 is the last one that is better, the powers of two end
// with 512 (32 * 16); downwards from 64, if none is better, with 16 (64 / 4). Assignments fit into memory
// under 1F1B (or GPipe, where that is asked for). Where an asked schedule holds more, and so nothing fits,
// all of it is done once more as if all microbatches were in flight at once.
class PlanSearch {
 public:
  explicit PlanSearch(const PlanSearchRequest& request)
      : request_(request),
        counts_(request.microbatches.size()),
        chunks_(request.schedule ? chunksOf(*request.schedule) : 1) {
    PIPESHARD_CHECK(request.first < request.microbatches.size(), "{} numbers of microbatches",
                    request.microbatches.size());
    best_objective_ = request.bound_ns;
  }

  PlanSearchResult run() {
    tryCounts();
    simulateCandidates(request_.schedule.value_or(usualSchedule()));
    if (plans_.empty() && chunks_ == 1 && request_.schedule && !stopped()) {
      everything_in_flight_ = true;  // the schedule holds more than the assignment had foreseen
      candidates_.clear();
      equal_.clear();
      best_objective_ = request_.bound_ns;
      tryCounts();
      simulateCandidates(*request_.schedule);
    }
    if (!request_.schedule && !stopped()) {
      trySchedules();
      tryChunks();
    }
    sortPlans();
    PlanSearchResult result;
    if (request_.neighbours && !plans_.empty() && !stopped()) takeNeighbours(result);
    finish(result);
    return result;
  }

 private:
  struct Count {
    std::optional<CountedCosts> costs;
    CountTried tried;
    bool looked_at = false;
  };

  bool stopped() const { return request_.interrupted != nullptr && request_.interrupted->load(); }
  void say(const std::string& text) const {
    if (request_.progress) request_.progress(text);
  }
  int64_t microbatches(size_t count) const { return request_.microbatches[count]; }

  void tryCounts() {
    // Numbers lie unevenly: those between may cut rows that devices cannot share, so one must be far away,
    // too.
    int64_t better = microbatches(request_.first);
    int worse = 0;
    const auto goOn = [&](size_t count) {
      const bool far =
          microbatches(count) >= kMoreTimes * better || microbatches(count) * kWorseTimes <= better;
      if (tryCount(count)) {
        better = microbatches(count);
        worse = 0;
      } else {
        ++worse;
      }
      return worse < kWorseInARow || !far;
    };
    for (size_t count = request_.first; count < counts_.size() && !stopped() && goOn(count);) ++count;
    worse = 0;
    better = microbatches(request_.first);
    for (size_t count = request_.first; count > 0 && !stopped() && goOn(count - 1);) --count;
    const bool any = std::any_of(counts_.begin(), counts_.end(),
                                 [](const Count& count) { return count.costs.has_value(); });
    if (!any && first_error_) throw *first_error_;
  }

  // Whether it has improved on what was known, or nothing is known yet.
  bool tryCount(size_t index) {
    Count& count = counts_[index];
    count.looked_at = true;
    count.tried.microbatches = microbatches(index);
    say(fmt::format("{} microbatches: what stages cost", microbatches(index)));
    try {
      if (!count.costs) count.costs = request_.costs(microbatches(index));
    } catch (const Error& error) {
      if (!saysThatItCannotBe(error)) throw;
      if (!first_error_) first_error_ = error;
      count.tried.reason = error.message();
      return best_objective_ == INT64_MAX;
    }
    if (!mayBeBetter(index)) {
      count.tried.reason = kNoBetter;
      return false;
    }
    say(fmt::format("{} microbatches: assigning stages to devices", microbatches(index)));
    const int64_t before = best_objective_;
    for (Assignment& assignment : chunks_ > 1 ? assignChunks(index, *request_.schedule) : assign(index)) {
      if (count.tried.objective_ns == 0 || assignment.objective_ns < count.tried.objective_ns)
        count.tried.objective_ns = assignment.objective_ns;
      best_objective_ = std::min(best_objective_, assignment.objective_ns);
      candidates_.push_back({index, std::move(assignment)});
    }
    if (count.tried.objective_ns > 0)
      say(fmt::format("{} microbatches: a step of {:.4g} s, by the objective", microbatches(index),
                      1e-9 * static_cast<double>(count.tried.objective_ns)));
    if (count.tried.objective_ns == 0)
      count.tried.reason = before == INT64_MAX ? "no plan fits into memory" : kNoBetter;
    return best_objective_ == INT64_MAX || best_objective_ < before;
  }

  // Whether plans of this number can be among the best: decided by costs that are sooner known than its own.
  bool mayBeBetter(size_t index) const {
    const std::shared_ptr<const StageCosts>& least = counts_[index].costs->least;
    if (best_objective_ == INT64_MAX || least == nullptr || chunks_ > 1) return true;
    AssignmentRequest request = countRequest(index, *least);
    request.bound_ns = best_objective_ + best_objective_ / kNearly;
    request.any = true;
    const AssignmentResult result = assignStagesToMeshes(request);
    return !result.complete || !result.assignments.empty();
  }

  AssignmentRequest countRequest(size_t index, const StageCosts& costs) const {
    AssignmentRequest request = assignmentRequest(request_, costs, microbatches(index));
    if (everything_in_flight_) request.in_flight = [all = microbatches(index)](int) { return all; };
    return request;
  }

  std::vector<Assignment> assign(size_t index) {
    AssignmentRequest request = countRequest(index, *counts_[index].costs->costs);
    if (best_objective_ != INT64_MAX) request.bound_ns = best_objective_ + best_objective_ / 4;
    AssignmentResult result = assignStagesToMeshes(request);
    complete_ = complete_ && result.complete;
    counts_[index].tried.states += result.states;
    addEqualStages(index, request);
    const bool some = !result.assignments.empty();
    std::erase_if(result.assignments,
                  [](const Assignment& assignment) { return !withoutGaps(assignment.stages); });
    if (some && result.assignments.empty() && !stopped()) {
      request.all_devices = true;
      result = assignStagesToMeshes(request);
      complete_ = complete_ && result.complete;
      counts_[index].tried.states += result.states;
      std::erase_if(result.assignments,
                    [](const Assignment& assignment) { return !withoutGaps(assignment.stages); });
    }
    return std::move(result.assignments);
  }

  void addEqualStages(size_t index, AssignmentRequest request) {
    if (stopped()) return;
    request.bound_ns = INT64_MAX;
    for (Assignment& assignment : equalStages(request)) equal_.push_back({index, std::move(assignment)});
  }

  // Stages for a schedule of several per rank; the objective is no less than what the busiest rank works.
  std::vector<Assignment> assignChunks(size_t index, const ScheduleSpec& schedule) const {
    const StageCosts& costs = *counts_[index].costs->costs;
    const int chunks = chunksOf(schedule);
    std::vector<Assignment> found;
    for (int ranks = 2; ranks <= request_.cluster.deviceCount() && ranks * chunks <= costs.layers();
         ++ranks) {
      if (request_.most_stages > 0 && ranks > request_.most_stages) break;
      if (ranks < request_.least_stages) continue;
      for (std::vector<AssignedStage>& stages : chunkAssignments(
               {costs, request_.cluster, ranks, placementOf(schedule, ranks), request_.allowed})) {
        std::map<Submesh, int64_t> work;
        int64_t busiest = 0;
        for (const AssignedStage& stage : stages)
          busiest = std::max(busiest, work[stage.submesh] +=
                                      microbatches(index) * stage.option.pass_ns + stage.option.step_ns);
        found.push_back({std::move(stages), busiest});
      }
    }
    return found;
  }

  static RankOfStage placementOf(const ScheduleSpec& schedule, int ranks) {
    return familyOf(schedule).placement == StagePlacement::kLooped
               ? loopedPlacement(ranks, ranks * chunksOf(schedule))
               : vPlacement(ranks);
  }

  std::optional<PredictedPlan> predict(size_t count, const std::vector<AssignedStage>& stages,
                                       const ScheduleSpec& schedule, int64_t& passes) {
    const bool automatic = familyOf(schedule).automatic;
    passes -= 2 * microbatches(count) * request_.updates * std::ssize(stages) +
              (automatic ? kPassesOfAutomatic : 0);
    if (passes < 0) return std::nullopt;
    const PredictionOptions options{request_.updates, request_.exposed_transfers,
                                    automatic ? nullptr : &made_};
    std::optional<PredictedPlan> plan =
        predictPlan(*counts_[count].costs, stages, microbatches(count), schedule, options);
    if (!plan || !fitsDevices(*plan, *counts_[count].costs->costs)) return std::nullopt;
    return plan;
  }

  void keep(size_t count, PredictedPlan plan) {
    CountTried& tried = counts_[count].tried;
    if (tried.step_ns == 0 || plan.step_ns < tried.step_ns) tried.step_ns = plan.step_ns;
    for (auto& [other_count, other] : plans_) {
      if (other_count != count || !sameStages(other.stages, plan.stages, *counts_[count].costs)) continue;
      if (plan.step_ns < other.step_ns) other = std::move(plan);
      return;
    }
    plans_.emplace_back(count, std::move(plan));
  }

  void simulateCandidates(const ScheduleSpec& schedule) {
    say("simulating the best plans");
    std::stable_sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      return a.assignment.objective_ns < b.assignment.objective_ns;
    });
    int64_t passes = kMostPasses;
    size_t simulated = 0;
    for (const Candidate& candidate : candidates_) {
      const bool enough = simulated >= request_.simulated || (stopped() && simulated > 0);
      if (enough && !plans_.empty()) break;
      if (plans_.empty()) passes = kMostPasses;  // some plan must be found
      std::optional<PredictedPlan> plan =
          predict(candidate.count, candidate.assignment.stages, schedule, passes);
      if (plan) keep(candidate.count, std::move(*plan));
      ++simulated;
    }
    passes = kMostPasses;
    for (const Candidate& candidate : equal_) {
      if (stopped()) break;
      if (best_objective_ != INT64_MAX &&
          candidate.assignment.objective_ns > best_objective_ + best_objective_ / 2)
        continue;
      if (auto plan = predict(candidate.count, candidate.assignment.stages, schedule, passes))
        keep(candidate.count, std::move(*plan));
    }
    // The best of every number of microbatches, to compare with.
    for (const Candidate& candidate : candidates_) {
      if (counts_[candidate.count].tried.step_ns > 0 || stopped()) continue;
      if (auto plan = predict(candidate.count, candidate.assignment.stages, schedule, passes))
        keep(candidate.count, std::move(*plan));
    }
    sortPlans();
  }

  void sortPlans() {
    std::stable_sort(plans_.begin(), plans_.end(),
                     [](const auto& a, const auto& b) { return a.second.step_ns < b.second.step_ns; });
  }

  std::vector<ScheduleSpec> schedulesFor(const PredictedPlan& plan, bool automatic = true) const {
    std::vector<ScheduleSpec> schedules;
    if (plan.stages.size() < 2 || request_.schedule) return schedules;
    for (const ScheduleSpec& schedule : triedSchedules(false)) {
      if (familyOf(schedule).automatic && !automatic) continue;
      if (familyOf(schedule).automatic && plan.microbatches * std::ssize(plan.stages) > kMostAutomatic)
        continue;
      schedules.push_back(schedule);
    }
    return schedules;
  }

  // With a schedule that leaves no rank idle.
  bool mayBeBest(const PredictedPlan& plan) const {
    return std::ranges::all_of(plan.stages, [&](const AssignedStage& stage) {
      return plan.microbatches * stage.option.pass_ns + stage.option.step_ns < plans_.front().second.step_ns;
    });
  }

  void trySchedules() {
    say("trying schedules");
    int64_t passes = kMostPasses;
    std::vector<std::pair<size_t, PredictedPlan>> best;
    for (const auto& entry : plans_) {
      if (best.size() < kScheduled || (best.size() < kScheduledAtMost && mayBeBest(entry.second)))
        best.push_back(entry);
    }
    for (size_t i = 0; i < best.size(); ++i) {
      const auto& [count, plan] = best[i];
      for (const ScheduleSpec& schedule : schedulesFor(plan, i < kScheduled)) {
        if (stopped()) return;
        if (auto other = predict(count, plan.stages, schedule, passes)) keep(count, std::move(*other));
      }
    }
    sortPlans();
  }

  // Chunks whose busiest rank alone works longer than the best plan takes are not simulated.
  void tryChunks() {
    std::set<size_t> counts;
    for (size_t i = 0; i < plans_.size() && i < kScheduled; ++i) counts.insert(plans_[i].first);
    int64_t passes = kMostPasses;
    for (const size_t count : counts) {
      for (const ScheduleSpec& schedule : triedSchedules(true)) {
        say(fmt::format("{} microbatches: trying {}", microbatches(count), scheduleSpecToString(schedule)));
        std::vector<Assignment> found = assignChunks(count, schedule);
        std::stable_sort(found.begin(), found.end(), [](const Assignment& a, const Assignment& b) {
          return a.objective_ns < b.objective_ns;
        });
        for (size_t i = 0; i < std::min(found.size(), kScheduled); ++i) {
          if (stopped()) return;
          if (found[i].objective_ns >= plans_.front().second.step_ns) break;
          if (familyOf(schedule).automatic &&
              microbatches(count) * std::ssize(found[i].stages) > kMostAutomatic)
            continue;
          if (auto plan = predict(count, found[i].stages, schedule, passes)) keep(count, std::move(*plan));
          sortPlans();
        }
      }
    }
  }

  // As long as a neighbour of the best plan is better, that one is the best.
  void takeNeighbours(PlanSearchResult& result) {
    for (int round = 0; round <= kRounds && !stopped(); ++round) {
      say(fmt::format("looking at the neighbours of the best plan ({})", round + 1));
      const auto [count, best] = plans_.front();
      std::vector<PlanNeighbour> neighbours =
          neighboursOf(best, {request_, *counts_[count].costs, schedulesFor(best, round == 0),
                              round == 0 ? kMostPasses : kMostPasses / 4});
      result.neighbours.clear();
      bool improved = false;
      for (PlanNeighbour& neighbour : neighbours) {
        result.neighbours.push_back(std::move(neighbour.about));
        if (!neighbour.plan || round == kRounds) continue;
        improved = improved || neighbour.plan->step_ns < best.step_ns;
        keep(count, std::move(*neighbour.plan));
      }
      if (!improved) break;
      sortPlans();
    }
  }

  void addCountNeighbours(PlanSearchResult& result) const {
    const size_t chosen = plans_.front().first;
    for (const size_t other : {chosen - 1, chosen + 1}) {
      if (other >= counts_.size()) continue;
      Neighbour neighbour{"microbatches", fmt::format("{}", microbatches(chosen)),
                          fmt::format("{}", microbatches(other)), 0, ""};
      const Count& count = counts_[other];
      neighbour.step_ns = count.tried.step_ns > 0 ? count.tried.step_ns : count.tried.objective_ns;
      if (neighbour.step_ns == 0) neighbour.why = count.looked_at ? count.tried.reason : "not looked at";
      result.neighbours.push_back(std::move(neighbour));
    }
  }

  // What the best plans with other numbers of stages would cost.
  void addStageNeighbours(PlanSearchResult& result) const {
    const size_t chosen = plans_.front().second.stages.size();
    std::map<size_t, int64_t> best;
    for (const auto& [count, plan] : plans_) best.try_emplace(plan.stages.size(), plan.step_ns);
    for (const auto& [stages, step_ns] : best) {
      if (stages == chosen) continue;
      result.neighbours.push_back(
          {"stages", fmt::format("{}", chosen), fmt::format("{}", stages), step_ns, ""});
    }
  }

  void finish(PlanSearchResult& result) {
    sortPlans();
    result.complete = complete_ && !stopped();
    for (const Count& count : counts_) {
      if (count.looked_at) result.tried.push_back(count.tried);
    }
    if (plans_.empty()) return;
    result.costs = *counts_[plans_.front().first].costs;
    addCountNeighbours(result);
    addStageNeighbours(result);
    for (size_t i = 0; i < std::min(plans_.size(), request_.best); ++i)
      result.plans.push_back(std::move(plans_[i].second));
  }

  const PlanSearchRequest& request_;
  std::vector<Count> counts_;  // by number of microbatches
  int chunks_;                 // of the schedule that is asked for
  std::vector<Candidate> candidates_;
  std::vector<Candidate> equal_;  // of equal stages, whatever the objective
  std::vector<std::pair<size_t, PredictedPlan>> plans_;
  MadeSchedules made_;
  int64_t best_objective_ = INT64_MAX;
  bool everything_in_flight_ = false;
  bool complete_ = true;
  std::optional<Error> first_error_;
};

}  // namespace

PlanSearchResult searchPlans(const PlanSearchRequest& request) {
  PlanSearchResult result = PlanSearch(request).run();
  if (!result.complete) return result;
  PlanSearchRequest again = request;
  if (result.plans.empty()) {
    if (!request.costs_in_need) return result;
    again.costs = request.costs_in_need;
    return PlanSearch(again).run();
  }
  if (!request.costs_where_memory_binds || chunksOf(request.schedule.value_or(usualSchedule())) > 1)
    return result;
  const std::optional<int64_t> bound = boundByMemory(request, result);
  if (!bound) return result;
  again.costs = request.costs_where_memory_binds;
  again.bound_ns = *bound;
  PlanSearchResult other = PlanSearch(again).run();
  if (!other.plans.empty() && other.plans.front().step_ns < result.plans.front().step_ns) return other;
  result.complete = other.complete;
  return result;
}

}  // namespace pipeshard
