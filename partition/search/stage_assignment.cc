#include "partition/search/stage_assignment.h"

#include <algorithm>
#include <tuple>

#include "partition/search/assignment_solve.h"
#include "partition/search/assignment_tables.h"

namespace pipeshard {
namespace {

int64_t leastSum(const std::vector<AssignedStage>& stages) {
  int64_t sum = 0;
  for (const AssignedStage& stage : stages)
    sum = saturatedSum(sum, saturatedSum(stage.option.pass_ns, stage.transfer_ns));
  return sum;
}

int64_t slowestOf(const AssignmentRequest& request, const std::vector<AssignedStage>& stages) {
  int64_t slowest = 0;
  for (const AssignedStage& stage : stages)
    slowest = std::max(slowest, slowestPart(request, stage.option, stage.transfer_ns));
  return slowest;
}

// Stages as numbers, in the order of preference among equals.
std::vector<int64_t> orderKey(const Assignment& assignment) {
  std::vector<int64_t> key{assignment.objective_ns, leastSum(assignment.stages),
                           std::ssize(assignment.stages)};
  for (const AssignedStage& stage : assignment.stages) key.push_back(stage.last_layer);
  for (const AssignedStage& stage : assignment.stages) {
    key.insert(key.end(), {stage.submesh.first_device, stage.submesh.nodes, stage.submesh.devices_per_node});
  }
  for (const AssignedStage& stage : assignment.stages)
    key.insert(key.end(), {stage.option.config, stage.option.boundary});
  return key;
}

class AssignmentSearch {
 public:
  AssignmentSearch(const AssignmentRequest& request, const AssignmentTables& tables)
      : request_(request),
        tables_(tables),
        solver_(request, tables),
        limit_(std::min(request.bound_ns, kNever)) {}

  AssignmentResult run() {
    const bool complete =
        request_.objective == AssignmentObjective::kFlush ? searchFlush() : searchThroughput();
    AssignmentResult result{
        .assignments = std::move(found_), .complete = complete, .states = solver_.states()};
    const auto before = [](const Assignment& a, const Assignment& b) { return orderKey(a) < orderKey(b); };
    const auto same = [](const Assignment& a, const Assignment& b) { return orderKey(a) == orderKey(b); };
    std::sort(result.assignments.begin(), result.assignments.end(), before);
    result.assignments.erase(std::unique(result.assignments.begin(), result.assignments.end(), same),
                             result.assignments.end());
    return result;
  }

 private:
  // Plans whose largest slowestPart is in [low, high]; their sum is at least least_sum.
  struct Interval {
    int64_t low = 0;
    int64_t high = 0;
    int64_t least_sum = 0;
    auto order() const { return std::make_tuple(least_sum + low, high, low); }
  };

  // The number of stages with the least value in the last solve; 0: there is no plan.
  int bestStages() const {
    int best = 0;
    for (int stages = std::max(1, request_.least_stages); stages <= tables_.most_stages; ++stages) {
      if (solver_.value(stages) < (best == 0 ? kNever : solver_.value(best))) best = stages;
    }
    return best;
  }

  // Keeps the plan if it is of interest.
  Assignment keep(int stages) {
    Assignment assignment = solver_.plan(stages);
    if (assignment.objective_ns < std::min(request_.bound_ns, kNever)) {
      limit_ = std::min(limit_, assignment.objective_ns);
      found_.push_back(assignment);
    }
    return assignment;
  }

  void keepAll(int64_t below) {
    for (int stages = std::max(1, request_.least_stages); stages <= tables_.most_stages; ++stages) {
      if (solver_.value(stages) < below) keep(stages);
    }
  }

  bool enough() const { return request_.any && !found_.empty(); }

  // Solves under the interval's upper end, or in its middle; what is left of it goes to intervals_.
  bool divide(Interval interval, int64_t probe) {
    const int64_t limit = limit_ - interval.low;  // of the sum
    if (!solver_.solve(AssignmentGoal::kLeastSum, probe, limit)) return false;
    if (probe < interval.high) intervals_.push_back({probe + 1, interval.high, interval.least_sum});
    const int best = bestStages();
    if (best == 0 || solver_.value(best) >= limit) return true;
    const int64_t sum = solver_.value(best);
    const int64_t slowest = slowestOf(request_, keep(best).stages);
    for (int stages = std::max(1, request_.least_stages); stages <= tables_.most_stages; ++stages) {
      if (stages != best && saturatedSum(solver_.value(stages), interval.low) < limit_) keep(stages);
    }
    if (slowest > interval.low) intervals_.push_back({interval.low, std::min(probe, slowest - 1), sum});
    return true;
  }

  bool searchFlush() {
    if (!solver_.solve(AssignmentGoal::kLeastSlowest, kNever, limit_)) return false;
    const int fastest = bestStages();
    if (fastest == 0) return true;
    Interval all{.low = solver_.value(fastest), .high = kNever, .least_sum = 0};
    keepAll(kNever);
    all.high = limit_ - 1;
    if (all.low <= all.high && !enough() && !divide(all, all.high)) return false;
    while (!intervals_.empty() && !enough()) {
      const auto next =
          std::min_element(intervals_.begin(), intervals_.end(),
                           [](const Interval& a, const Interval& b) { return a.order() < b.order(); });
      Interval interval = *next;
      intervals_.erase(next);
      interval.high = std::min(interval.high, limit_ - 1 - interval.least_sum);
      if (interval.low > interval.high) continue;
      if (!divide(interval, interval.low + (interval.high - interval.low) / 2)) return false;
    }
    return found_.empty() || enough() || meetOthers();
  }

  // Good plans of every number of stages: balanced about as the best is.
  bool meetOthers() {
    const auto best =
        std::min_element(found_.begin(), found_.end(),
                         [](const Assignment& a, const Assignment& b) { return orderKey(a) < orderKey(b); });
    const int64_t slowest = slowestOf(request_, best->stages);
    const int64_t limit = best->objective_ns + best->objective_ns / 2;
    for (const int64_t bound : {slowest, slowest + slowest / 4}) {
      if (!solver_.solve(AssignmentGoal::kLeastSum, bound, limit)) return false;
      keepAll(limit);
    }
    return true;
  }

  bool searchThroughput() {
    if (!solver_.solve(AssignmentGoal::kLeastSlowest, kNever)) return false;
    const int fastest = bestStages();
    if (fastest == 0) return true;
    const int64_t slowest = solver_.value(fastest);
    keepAll(kNever);
    if (slowest >= request_.bound_ns) return true;
    if (!solver_.solve(AssignmentGoal::kLeastSum, slowest)) return false;
    keepAll(kNever);
    return true;
  }

  const AssignmentRequest& request_;
  const AssignmentTables& tables_;
  AssignmentSolver solver_;
  int64_t limit_;  // the objective of the best plan, or what it must be below
  std::vector<Interval> intervals_;
  std::vector<Assignment> found_;
};

}  // namespace

std::vector<Submesh> submeshesAt(const Cluster& cluster, int first_device) {
  const int node = cluster.nodeOf(first_device);
  const int devices = cluster.nodes[node].devices;
  const int offset = first_device - cluster.firstDeviceOf(node);
  std::vector<Submesh> submeshes;
  for (int count = 1; count <= devices - offset; ++count) submeshes.push_back({first_device, 1, count});
  for (int count = 2; offset == 0 && node + count <= cluster.nodeCount(); ++count) {
    if (cluster.nodes[node + count - 1].devices != devices) break;
    submeshes.push_back({first_device, count, devices});
  }
  return submeshes;
}

int64_t objectiveOf(const AssignmentRequest& request, const std::vector<AssignedStage>& stages) {
  const int64_t slowest = slowestOf(request, stages);
  return request.objective == AssignmentObjective::kThroughput ? slowest
                                                               : saturatedSum(leastSum(stages), slowest);
}

AssignmentResult assignStagesToMeshes(const AssignmentRequest& request) {
  const std::optional<AssignmentTables> tables = makeAssignmentTables(request);
  if (!tables) return {.assignments = {}, .complete = false};
  return AssignmentSearch(request, *tables).run();
}

}  // namespace pipeshard
