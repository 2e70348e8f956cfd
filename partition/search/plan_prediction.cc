#include "partition/search/plan_prediction.h"

#include <algorithm>
#include <set>

#include "ir/base/error.h"
#include "partition/families/make_schedule.h"
#include "partition/families/plan_schedule.h"
#include "partition/simulation/simulator.h"

namespace pipeshard {
namespace {

// Stages on one submesh share their pipeline rank.
RankOfStage ranksOf(const std::vector<AssignedStage>& stages) {
  RankOfStage ranks;
  PipelineRankId next(0);
  for (size_t s = 0; s < stages.size(); ++s) {
    PipelineRankId rank;
    for (size_t t = 0; t < s && !rank.valid(); ++t) {
      if (stages[t].submesh == stages[s].submesh) rank = ranks[StageId(t)];
    }
    ranks.push_back(rank.valid() ? rank : next++);
  }
  return ranks;
}

bool samePlacement(const RankOfStage& a, const RankOfStage& b) {
  if (a.size() != b.size()) return false;
  for (const StageId s : a.ids()) {
    for (const StageId t : idsBelow<StageId>(s.index())) {
      if ((a[s] == a[t]) != (b[s] == b[t])) return false;
    }
  }
  return true;
}

// In parts of a thousand of a pass of the average rank, forward and backward.
ScheduleCosts scheduleCostsOf(const std::vector<StageCostParts>& parts,
                              const std::vector<AssignedStage>& stages) {
  int64_t forward = 0, input = 0, weight = 0, transfer = 0;
  for (size_t s = 0; s < parts.size(); ++s) {
    forward += parts[s].forward_ns;
    input += parts[s].backward_input_ns + parts[s].recomputation_ns;
    weight += parts[s].backward_weight_ns;
    transfer += stages[s].transfer_ns / 2;
  }
  const auto total = static_cast<double>(std::max<int64_t>(1, forward + input + weight));
  const auto share = [&](int64_t part) {
    return static_cast<int64_t>(1000.0 * static_cast<double>(part) / total + 0.5);
  };
  ScheduleCosts costs;
  costs.forward = std::max<int64_t>(1, share(forward));
  costs.backward_input = std::max<int64_t>(1, share(input));
  costs.backward_weight = std::max<int64_t>(1, share(weight));
  costs.transfer = share(transfer);
  return costs;
}

// The most versions of a stage's weights that are needed at once: those that microbatches in flight still
// read, and the newest.
int64_t liveVersions(const Schedule& schedule, StageId stage) {
  if (!schedule.asynchronous()) return 1;
  const std::vector<int>& reads = schedule.versions.at(stage);
  std::multiset<int> in_flight;
  int newest = 0;
  int64_t most = 1;
  for (const Action& action : schedule.orders.at(schedule.rank_of_stage.at(stage))) {
    if (action.stage != stage) continue;
    const int version = action.kind == ActionKind::kUpdate ? newest : reads.at(action.microbatch);
    if (action.kind == ActionKind::kForward) in_flight.insert(version);
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight)
      in_flight.erase(in_flight.find(version));
    if (action.kind == ActionKind::kUpdate) ++newest;
    std::set<int> needed(in_flight.begin(), in_flight.end());
    needed.insert(newest);
    most = std::max<int64_t>(most, std::ssize(needed));
  }
  return most;
}

// Nothing where there is no such schedule.
std::optional<MadeSchedule> makeFor(const ScheduleSpec& asked, int ranks, int64_t microbatches, int updates,
                                    const ScheduleCosts& costs) {
  try {
    if (isAsynchronous(asked)) return MadeSchedule{makeSchedule(asked, ranks, microbatches, updates), costs};
    return MadeSchedule{makeSchedule({asked, ranks, static_cast<int>(microbatches), costs}), costs};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfiguration) throw;
    return std::nullopt;
  }
}

std::optional<MadeSchedule> scheduleFor(const ScheduleSpec& asked, const RankOfStage& ranks,
                                        int64_t microbatches, const ScheduleCosts& costs,
                                        const PredictionOptions& options) {
  const int count = std::max_element(ranks.begin(), ranks.end())->index() + 1;
  if (std::ssize(ranks) != int64_t{count} * chunksOf(asked)) return std::nullopt;
  const auto key = std::tuple(asked, count, microbatches);
  std::optional<MadeSchedule> made;
  if (options.made != nullptr && options.made->contains(key)) {
    made = options.made->at(key);
  } else {
    made = makeFor(asked, count, microbatches, options.updates, costs);
    if (made && options.made != nullptr) options.made->emplace(key, *made);
  }
  if (!made || !samePlacement(made->schedule.rank_of_stage, ranks)) return std::nullopt;
  return made;
}

void fillTransfers(const StageCosts& costs, std::vector<AssignedStage>& stages) {
  for (size_t s = 0; s < stages.size(); ++s) {
    stages[s].transfer_ns = 0;
    if (s + 1 == stages.size() || stages[s].submesh == stages[s + 1].submesh) continue;
    stages[s].transfer_ns = costs.transfer(stages[s].last_layer, stages[s].submesh, stages[s].option.boundary,
                                           stages[s + 1].submesh, stages[s + 1].option.boundary);
  }
}

// Microbatches between their forward pass and the end of their backward pass.
int64_t mostInFlight(const Schedule& schedule, StageId stage) {
  int64_t now = 0, most = 0;
  for (const Action& action : schedule.orders.at(schedule.rank_of_stage.at(stage))) {
    if (action.stage != stage) continue;
    if (action.kind == ActionKind::kForward) most = std::max(most, ++now);
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight) --now;
  }
  return most;
}

std::vector<int64_t> memoryByStage(const Schedule& schedule, const Simulation& simulation,
                                   const std::vector<AssignedStage>& stages,
                                   const std::vector<StageCostParts>& parts) {
  IdVector<PipelineRankId, int64_t> fixed(schedule.ranks()), transient(fixed.size()), forward(fixed.size());
  const IdVector<StageId, bool> split = splitStages(schedule);
  for (size_t s = 0; s < stages.size(); ++s) {
    const StageId stage(s);
    const PipelineRankId rank = schedule.rank_of_stage[stage];
    const StageOption& option = stages[s].option;
    fixed[rank] += option.fixed_bytes + (liveVersions(schedule, stage) - 1) * parts[s].weight_bytes;
    const int64_t halved =
        parts[s].halved_transient_bytes + (splitsBackward(schedule, stage) ? 0 : parts[s].remade_bytes);
    const int64_t in_flight = mostInFlight(schedule, stage);
    // As activations go, gradients that were sent come.
    const int64_t more = std::max<int64_t>(0, in_flight - 1) *
                         std::max<int64_t>(0, parts[s].sent_gradient_bytes - option.activation_bytes);
    transient[rank] = std::max(transient[rank], more + (split[stage] ? halved : option.transient_bytes));
    const int64_t again = split[stage] ? 0 : parts[s].again_transient_bytes;  // else it stays
    forward[rank] = std::max(
        forward[rank], in_flight * parts[s].sent_bytes + std::max(parts[s].forward_transient_bytes, again));
  }
  std::vector<int64_t> memory;
  for (size_t s = 0; s < stages.size(); ++s) {
    const PipelineRankId rank = schedule.rank_of_stage[StageId(s)];
    memory.push_back(fixed[rank] + simulation.peak_memory[rank] + std::max(transient[rank], forward[rank]));
  }
  return memory;
}

}  // namespace

CountedCosts countedCosts(std::shared_ptr<const ShardedStageCosts> costs) {
  CountedCosts counted;
  counted.costs = costs;
  counted.least = costs->leastCosts();
  counted.config = [costs](int config) { return costs->config(config); };
  counted.parts = [costs](int first, int last, const Submesh& submesh, const StageOption& option) {
    return costs->parts(first, last, submesh, option);
  };
  return counted;
}

int64_t PredictedPlan::peakMemory() const {
  return memory_bytes.empty() ? 0 : *std::max_element(memory_bytes.begin(), memory_bytes.end());
}

bool fitsDevices(const PredictedPlan& plan, const StageCosts& costs) {
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    if (plan.memory_bytes[s] > costs.memoryBytes(plan.stages[s].submesh)) return false;
  }
  return true;
}

std::optional<PredictedPlan> predictPlan(const CountedCosts& costs, std::vector<AssignedStage> stages,
                                         int64_t microbatches, const ScheduleSpec& asked,
                                         const PredictionOptions& options) {
  fillTransfers(*costs.costs, stages);
  std::vector<StageCostParts> parts;
  IdVector<StageId, PassTimes> times;
  IdVector<StageId, Ticks> occupancies;
  for (const AssignedStage& stage : stages) {
    parts.push_back(costs.parts(stage.first_layer, stage.last_layer, stage.submesh, stage.option));
    const StageCostParts& part = parts.back();
    times.push_back({part.forward_ns, part.backward_input_ns, part.backward_weight_ns, part.recomputation_ns,
                     part.update_ns + part.synchronization_ns, stage.option.activation_bytes, 0, 0});
    occupancies.push_back(stage.transfer_ns / 2);
  }
  PredictedPlan plan{std::move(stages), microbatches, asked};
  const std::optional<MadeSchedule> made =
      scheduleFor(asked, ranksOf(plan.stages), microbatches, scheduleCostsOf(parts, plan.stages), options);
  if (!made) return std::nullopt;
  const Schedule& schedule = made->schedule;
  // A stage whose backward passes are in halves keeps what a recomputation has made until the second one.
  for (const StageId stage : times.ids())
    times[stage].recomputed = splitsBackward(schedule, stage) ? parts[stage.index()].remade_bytes : 0;
  plan.schedule = schedule.spec;
  plan.schedule_costs = made->costs;
  SimulationRequest request{.schedule = schedule, .stages = times};
  request.communication =
      options.exposed_transfers ? CommunicationModel::kExposed : CommunicationModel::kOverlapped;
  request.pairs_together = false;
  request.occupancies = occupancies;
  const Simulation simulation = simulate(request);
  plan.step_ns = simulation.makespan / (schedule.asynchronous() ? options.updates : 1);
  plan.memory_bytes = memoryByStage(schedule, simulation, plan.stages, parts);
  return plan;
}

}  // namespace pipeshard
