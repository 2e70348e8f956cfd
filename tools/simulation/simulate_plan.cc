// `simulate` of a plan directory: the programs that the runtime would run, with durations by the cost model.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ir/base/amounts.h"
#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/trace/trace_breakdown.h"
#include "partition/simulation/program_simulation.h"
#include "planning/directory/plan_directory.h"
#include "planning/programs/program_costs.h"
#include "planning/request/profile_store.h"
#include "runtime/execute/executor.h"
#include "runtime/execute/rank_image.h"
#include "runtime/execute/worker_threads.h"
#include "tools/simulation/measured_costs.h"
#include "tools/simulation/simulation_report.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard {
namespace {

struct SimulatedPlan {
  Plan plan;
  IdVector<RankId, Program> programs;
  ProgramSimulation simulation;
  std::vector<int64_t> arena_bytes;  // by rank, as its worker will allocate
  std::vector<int64_t> constant_bytes;
};

// As the plan's cluster says, but for what was asked for.
CostModel modelOf(const PlanSimulationRequest& request, const Plan& plan, const Program& program,
                  const std::optional<LinkCost>& link) {
  CostModel model = rankModel(plan, program);
  if (link) model.links = {*link};
  if (!request.device_gflops && !request.device_gbytes) return model;
  const CostModel usual;
  model.kinds = nullptr;
  model.times = nullptr;
  model.flops_per_ns = request.device_gflops.value_or(usual.flops_per_ns);
  model.bytes_per_ns = request.device_gbytes.value_or(usual.bytes_per_ns);
  return model;
}

// Of `ranks`, how many are on the rank's node.
int ranksBeside(const Cluster& cluster, RankId rank, int ranks) {
  const int node = cluster.nodeOf(rank.index());
  return std::min(ranks - cluster.firstDeviceOf(node), cluster.nodes[node].devices);
}

SimulatedPlan run(const PlanSimulationRequest& request) {
  SimulatedPlan result;
  result.plan = readPlanDirectory(request.directory);
  if (!hasPrograms(request.directory)) {
    fail(ErrorCode::kMissingInput,
         "{} is a plan without programs (plan --no-programs), which are what is simulated; `pipeshard run` "
         "and `validate` make them, or plan with programs",
         request.directory);
  }
  if (const std::optional<StoredProfile> profile = chooseProfile(request.profile))
    applyProfile(result.plan.cluster, *profile);
  std::optional<LinkCost> link;
  if (request.link_us || request.link_gbytes) {
    const LinkCost usual;
    link = {request.link_us ? static_cast<int64_t>(*request.link_us * 1000) : usual.latency_ns,
            request.link_gbytes.value_or(usual.bytes_per_ns)};
  }
  std::optional<MeasuredDurations> measured;
  if (!request.measured.empty()) measured = MeasuredDurations::read(request.measured);
  IdVector<RankId, ProgramCosts> costs;
  int ranks = 1;
  for (RankId rank(0); rank < RankId(ranks); ++rank) {
    const std::filesystem::path folder =
        std::filesystem::path(request.directory) / "ranks" / rankDirectoryName(rank);
    RankImage image = loadRank(folder.string());
    ranks = image.program.world_size;
    const WorkerThreads threads(
        threadsPerWorker(request.threads, ranksBeside(result.plan.cluster, rank, ranks)));
    const Executor executor(image, {});  // plans the memory; nothing is allocated
    result.arena_bytes.push_back(executor.memory().total_bytes);
    result.constant_bytes.push_back(executor.constantBytes());
    costs.push_back(
        programCosts(image, modelOf(request, result.plan, image.program, link), executor.accumulation()));
    const std::string missing = measured ? measured->apply(image.program, costs.back()) : "";
    if (!missing.empty()) {
      fail(ErrorCode::kConfiguration,
           "{}: has no pass like {} of rank {}; expected the trace of a plan with the same stages and "
           "schedule",
           request.measured, missing, rank);
    }
    result.programs.push_back(std::move(image.program));
  }
  std::function<LinkCost(RankId, RankId)> link_between = [&](RankId from, RankId to) {
    return rankLink(result.plan, from, to);
  };
  if (link) link_between = nullptr;
  result.simulation = simulatePrograms({.programs = result.programs,
                                        .costs = std::move(costs),
                                        .link = link.value_or(LinkCost{}),
                                        .link_between = link_between,
                                        .contention = !request.no_contention,
                                        .rendezvous = !request.eager});
  return result;
}

// What a run is to a schedule; nothing for what no schedule speaks of.
std::optional<Action> actionOf(const Program& program, const Instruction& instruction) {
  if (!instruction.subgraph.valid() || !instruction.stage.valid() || instruction.microbatch < 0)
    return std::nullopt;
  const Subgraph& subgraph = program.subgraphs[instruction.subgraph.index()];
  if (subgraph.recomputation) return std::nullopt;
  const StageId stage = instruction.stage;
  switch (subgraph.phase) {
    case Phase::kForward: return Action{stage, ActionKind::kForward, instruction.microbatch};
    case Phase::kBackwardInput: return Action{stage, ActionKind::kBackwardInput, instruction.microbatch};
    case Phase::kBackwardWeight: return Action{stage, ActionKind::kBackwardWeight, instruction.microbatch};
    default: return std::nullopt;
  }
}

// A stage has its activations of a microbatch until its last backward run of it.
double peakActivationsOf(const std::vector<Action>& order) {
  using Stash = std::pair<StageId, int>;  // of a stage and a microbatch
  std::vector<Stash> held;
  std::vector<StageId> stages;
  size_t peak = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const Action& action = order[i];
    const Stash stash = {action.stage, action.microbatch};
    if (std::find(stages.begin(), stages.end(), action.stage) == stages.end()) stages.push_back(action.stage);
    if (action.kind == ActionKind::kForward && std::find(held.begin(), held.end(), stash) == held.end())
      held.push_back(stash);
    peak = std::max(peak, held.size());
    if (action.kind == ActionKind::kForward) continue;
    const bool more = std::any_of(order.begin() + i + 1, order.end(), [&](const Action& later) {
      return later.stage == action.stage && later.microbatch == action.microbatch;
    });
    if (!more) held.erase(std::remove(held.begin(), held.end(), stash), held.end());
  }
  return stages.empty() ? 0 : static_cast<double>(peak) / static_cast<double>(stages.size());
}

// As they are executed. An action may be several runs: of the rows that a device shares, of the layers of a
// stage that recomputes layer by layer, whose halves of the backward pass take turns.
ScheduleOrders ordersOf(const IdVector<RankId, Program>& programs) {
  ScheduleOrders orders;
  for (const Program& program : programs) {
    std::vector<Action>& order = orders.emplace_back();
    for (const Instruction& instruction : program.instructions) {
      const std::optional<Action> action = actionOf(program, instruction);
      if (!action) continue;
      const size_t last = std::min<size_t>(order.size(), action->kind == ActionKind::kForward ? 1 : 2);
      if (std::find(order.end() - last, order.end(), *action) == order.end()) order.push_back(*action);
    }
  }
  return orders;
}

char kindOf(const TraceEvent& event) {
  switch (event.work) {
    case TraceWork::kForward: return 'f';
    case TraceWork::kBackward: return 'b';
    case TraceWork::kBackwardInput: return 'i';
    case TraceWork::kBackwardWeight: return 'w';
    case TraceWork::kRecomputation: return 'r';
    case TraceWork::kUpdate: return 'u';
    case TraceWork::kOther: return '-';
  }
  return '-';
}

std::vector<std::vector<GanttBar>> ganttOf(const Trace& trace) {
  std::vector<std::vector<GanttBar>> rows(trace.ranks);
  std::vector<StageId> first_stage(rows.size());
  for (const TraceEvent& event : trace.events) {
    if (event.background || (event.kind != TraceEventKind::kCompute && event.kind != TraceEventKind::kCopy))
      continue;
    const size_t rank = event.rank.index();
    if (!first_stage[rank].valid()) first_stage[rank] = event.stage;
    rows[rank].push_back(
        {kindOf(event), event.microbatch, event.stage != first_stage[rank], event.start_ns, event.end_ns});
  }
  return rows;
}

std::string jsonOf(const SimulatedPlan& simulated, const ScheduleOrders& orders) {
  const ProgramSimulation& simulation = simulated.simulation;
  nlohmann::ordered_json json;
  json["schedule"] = scheduleSpecToString(simulated.plan.schedule);
  json["ranks"] = simulated.programs.size();
  json["stages"] = simulated.plan.stages.size();
  json["microbatches"] = simulated.plan.microbatches;
  json["unit"] = "ns";
  json["makespan"] = simulation.makespan;
  json["idle_per_rank"] = simulation.idlePerRank();
  json["bubble_of_makespan"] = simulation.bubbleOfMakespan();
  json["bubble_of_useful"] = simulation.bubbleOfUseful();
  json["bubble_of_span"] = simulation.bubbleOfSpan();
  json["peak_memory_bytes"] = simulation.peak_memory;
  json["arena_bytes"] = simulated.arena_bytes;
  json["constant_bytes"] = simulated.constant_bytes;
  // Of each rank's node.
  json["communicator_bytes"] = nlohmann::ordered_json::array();
  const Cluster& cluster = simulated.plan.cluster;
  const int ranks = simulated.programs.size();
  for (RankId rank : simulated.programs.ids())
    json["communicator_bytes"].push_back(
        SharedSegments::communicatorBytes(ranksBeside(cluster, rank, ranks)));
  for (const std::vector<Action>& order : orders) {
    json["peak_activations"].push_back(peakActivationsOf(order));
    nlohmann::ordered_json texts = nlohmann::ordered_json::array();
    for (const Action& action : order) texts.push_back(actionToString(action));
    json["orders"].push_back(texts);
  }
  return json.dump(1) + "\n";
}

std::vector<std::vector<std::string>> tableOf(const SimulatedPlan& simulated, const ScheduleOrders& orders) {
  const ProgramSimulation& simulation = simulated.simulation;
  std::vector<std::vector<std::string>> table = {
      {"rank", "busy", "idle", "waiting", "transfer", "beside", "span", "peak activations", "peak memory"}};
  const TraceBreakdown parts = breakDown(simulation.trace);
  const IdVector<RankId, Ticks> idle = simulation.idlePerRank();
  for (RankId rank : simulated.programs.ids()) {
    table.push_back({simulation.trace.rank_names[rank], formatNanoseconds(simulation.busy[rank]),
                     formatNanoseconds(idle[rank]), formatNanoseconds(parts.ranks[rank].waiting),
                     formatNanoseconds(parts.ranks[rank].transfer),
                     formatNanoseconds(parts.ranks[rank].hidden), formatNanoseconds(simulation.span[rank]),
                     fmt::format("{:g}", peakActivationsOf(orders[PipelineRankId(rank.index())])),
                     formatBytes(simulation.peak_memory[rank])});
  }
  return table;
}

}  // namespace

SimulationReport simulatePlan(const PlanSimulationRequest& request) {
  SimulatedPlan simulated = run(request);
  SimulationReport report;
  report.orders = ordersOf(simulated.programs);
  const Plan& plan = simulated.plan;
  report.title =
      fmt::format("{}: {} stage{} on {} rank{}, {}, {} microbatch{}", request.directory, plan.stages.size(),
                  plan.stages.size() == 1 ? "" : "s", simulated.programs.size(),
                  simulated.programs.size() == 1 ? "" : "s", scheduleSpecToString(plan.schedule),
                  plan.microbatches, plan.microbatches == 1 ? "" : "es");
  report.table = tableOf(simulated, report.orders);
  report.makespan = simulated.simulation.makespan;
  report.makespan_text = formatNanoseconds(report.makespan);
  report.bubble_of_makespan = simulated.simulation.bubbleOfMakespan();
  report.bubble_of_useful = simulated.simulation.bubbleOfUseful();
  report.bubble_of_span = simulated.simulation.bubbleOfSpan();
  report.gantt = ganttOf(simulated.simulation.trace);
  report.ticks_per_unit = 1000;
  report.unit = " us";
  report.json = jsonOf(simulated, report.orders);
  report.trace = std::move(simulated.simulation.trace);
  report.programs = std::move(simulated.programs);
  return report;
}

}  // namespace pipeshard
