#include "partition/search/assignment_request.h"

#include "partition/families/make_schedule.h"

namespace pipeshard {

AssignmentRequest assignmentRequest(const PlanSearchRequest& request, const StageCosts& costs,
                                    int64_t microbatches) {
  AssignmentRequest assignment{
      .costs = costs, .cluster = request.cluster, .in_flight = {}, .allowed = request.allowed};
  const bool asynchronous = request.schedule && isAsynchronous(*request.schedule);
  assignment.objective = asynchronous ? AssignmentObjective::kThroughput : AssignmentObjective::kFlush;
  assignment.microbatches = microbatches;
  assignment.exposed_transfers = request.exposed_transfers;
  // A window of updates keeps as many in flight as there are stages behind, whatever an update takes.
  if (asynchronous) assignment.in_flight = [](int behind) { return int64_t{behind} + 1; };
  if (request.schedule && familyOf(*request.schedule).all_in_flight)
    assignment.in_flight = [microbatches](int) { return microbatches; };
  assignment.least_stages = request.least_stages;
  assignment.most_stages = request.most_stages;
  if (request.interrupted != nullptr)
    assignment.interrupted = [flag = request.interrupted] { return flag->load(); };
  assignment.threads = request.threads;
  return assignment;
}

std::string objectiveText(const PlanSearchRequest& request) {
  if (request.schedule && isAsynchronous(*request.schedule))
    return "the slowest stage, its update and transfers beside its passes";
  return request.exposed_transfers
             ? "one microbatch through all stages, then the slowest stage with its transfers, and its update"
             : "one microbatch through all stages with transfers, then the slowest stage and its update";
}

}  // namespace pipeshard
