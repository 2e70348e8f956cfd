// `simulate` of a plan directory: the programs that the runtime would run, with durations by the cost model.
#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ir/base/amounts.h"
#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/parallel.h"
#include "ir/trace/trace_breakdown.h"
#include "partition/simulation/program_simulation.h"
#include "planning/directory/plan_directory.h"
#include "planning/programs/program_costs.h"
#include "planning/request/profile_store.h"
#include "runtime/execute/accumulation.h"
#include "runtime/execute/rank_image.h"
#include "runtime/execute/subgraph.h"
#include "runtime/execute/worker_threads.h"
#include "runtime/kernels/base/cpu_kernels.h"
#include "tools/simulation/measured_costs.h"
#include "tools/simulation/simulation_report.h"
#include "tools/simulation/worker_memory.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard {
namespace {

struct SimulatedPlan {
  Plan plan;
  RankSample sample;                      // of the ranks: those that were simulated
  bool shows_each = false;                // all ranks, whichever were simulated
  IdVector<RankId, Program> programs;     // by place in the sample
  ProgramSimulation simulation;           // the trace by place; all else by rank
  IdVector<RankId, WorkerMemory> memory;  // by rank; where it is written
};

// Of `ranks`, how many are on the rank's node.
int ranksBeside(const Cluster& cluster, RankId rank, int ranks) {
  const int node = cluster.nodeOf(rank.index());
  return std::min(ranks - cluster.firstDeviceOf(node), cluster.nodes[node].devices);
}

// By rank, what is known by place.
template <typename T>
IdVector<RankId, T> ofAllRanks(const RankSample& sample, const IdVector<RankId, T>& by_place) {
  IdVector<RankId, T> all;
  for (const size_t place : sample.place) all.push_back(by_place[RankId(place)]);
  return all;
}

// Kinds of ranks are read, planned and priced once for every way in which the cluster treats their ranks.
class PlanSimulator {
 public:
  PlanSimulator(const PlanSimulationRequest& request, SimulatedPlan& result)
      : request_(request),
        result_(result),
        costs_(result.plan),
        folder_(request.directory),
        set_(request.programs != nullptr && !request.programs->ranks.empty() ? *request.programs
                                                                             : (read_ = folder_.takeSet())) {
    if (request.link_us || request.link_gbytes) {
      const LinkCost usual;
      link_ = {request.link_us ? static_cast<int64_t>(*request.link_us * 1000) : usual.latency_ns,
               request.link_gbytes.value_or(usual.bytes_per_ns)};
    }
    if (!request.measured.empty()) measured_ = MeasuredDurations::read(request.measured);
  }

  void run() {
    chooseSample();
    priceKinds();
    const RankSample& sample = result_.sample;
    IdVector<RankId, ProgramCosts> costs;
    for (const RankId rank : sample.ranks) costs.push_back(costsOf(rank));
    if (request_.with_json)
      result_.memory = memoryOfWorkers(folder_, set_, [this](RankId rank) { return threadsOf(rank); });
    std::vector<Program> programs = samplePrograms(set_, sample);
    result_.programs.assign(std::make_move_iterator(programs.begin()),
                            std::make_move_iterator(programs.end()));
    const auto links = linksOfSample();
    std::function<LinkCost(RankId, RankId)> link_between = [&](RankId from, RankId to) {
      return links.at({from, to});
    };
    if (link_) link_between = nullptr;
    result_.simulation = simulatePrograms({.programs = result_.programs,
                                           .costs = std::move(costs),
                                           .link = link_.value_or(LinkCost{}),
                                           .link_between = link_between,
                                           .contention = !request_.no_contention,
                                           .rendezvous = !request_.eager,
                                           .known_as = sample.ranks});
    ProgramSimulation& simulation = result_.simulation;
    for (size_t place = 0; place < sample.ranks.size(); ++place) {
      if (sample.counts[place] > 1 && !result_.shows_each)
        simulation.trace.rank_names[RankId(place)] += fmt::format(", {} alike", sample.counts[place]);
    }
    simulation.busy = pipeshard::ofAllRanks(sample, simulation.busy);
    simulation.span = pipeshard::ofAllRanks(sample, simulation.span);
    simulation.peak_memory = pipeshard::ofAllRanks(sample, simulation.peak_memory);
  }

 private:
  // What ranks of a kind cost that are treated like this one.
  struct Price {
    RankId rank;
    CostModel model;
    ProgramCosts costs = {};
  };
  using KindCosts = std::map<std::string, Price>;  // by treatment

  // A trace was recorded of every rank.
  void chooseSample() {
    const std::set<RankId> shown(request_.shown.begin(), request_.shown.end());
    if (!shown.empty() && *shown.rbegin() >= RankId(set_.ranks.size())) {
      fail(ErrorCode::kUsage, "--ranks: there is no rank {}: {} has {}", *shown.rbegin(), request_.directory,
           counted(set_.ranks.size(), "rank"));
    }
    const auto label = [&](RankId rank) {
      return treatmentOf(rank) + (shown.contains(rank) ? fmt::format(" rank {}", rank) : "");
    };
    result_.shows_each = measured_ || set_.ranks.size() <= request_.most_ranks;
    const bool each = measured_ || (result_.shows_each && request_.each_simulated);
    result_.sample = each ? allRanks(set_) : sampleOf(set_, label);
  }

  std::vector<std::vector<RankId>> groupsOf(RankId rank) const {
    std::vector<std::vector<RankId>> groups;
    for (const size_t group : set_.ranks[rank].groups) groups.push_back(set_.groups[group]);
    return groups;
  }

  int threadsOf(RankId rank) const {
    const int ranks = static_cast<int>(set_.ranks.size());
    return threadsPerWorker(request_.threads, ranksBeside(result_.plan.cluster, rank, ranks));
  }

  // Equal for ranks of one kind whose instructions take equally long and whose buffers are equally large.
  const std::string& treatmentOf(RankId rank) {
    const auto [found, is_new] = treatments_.try_emplace(rank);
    if (!is_new) return found->second;
    const CostModel model = modelOf(rank);
    const Cluster& cluster = result_.plan.cluster;
    std::string text = fmt::format("{} threads, device {}, {} {} {};", threadsOf(rank),
                                   cluster.nodes[cluster.nodeOf(rank.index())].kind, model.devices_per_core,
                                   model.busy, model.one_node);
    const std::vector<std::vector<RankId>> groups = groupsOf(rank);
    for (size_t g = 0; g < groups.size(); ++g)
      text += fmt::format(" {}:{}", groups[g].size(), numberOf(groupModel(model, GroupId(g)).links[0]));
    for (const RankId peer : set_.ranks[rank].peers) {
      text += fmt::format(" {}-{}", numberOf(link_.value_or(costs_.link(rank, peer))),
                          numberOf(link_.value_or(costs_.link(peer, rank))));
    }
    return found->second = std::move(text);
  }

  // Equal links have equal numbers.
  size_t numberOf(const LinkCost& link) {
    const size_t number = std::find(links_.begin(), links_.end(), link) - links_.begin();
    if (number == links_.size()) links_.push_back(link);
    return number;
  }

  // As the plan's cluster says, but for what was asked for.
  CostModel modelOf(RankId rank) {
    CostModel model = costs_.model(rank, groupsOf(rank));
    if (link_) model.links = {*link_};
    if (!request_.device_gflops && !request_.device_gbytes) return model;
    const CostModel usual;
    model.kinds = nullptr;
    model.times = nullptr;
    model.flops_per_ns = request_.device_gflops.value_or(usual.flops_per_ns);
    model.bytes_per_ns = request_.device_gbytes.value_or(usual.bytes_per_ns);
    return model;
  }

  // What kinds share is read and made ready once, and is in memory for them alone.
  void priceKinds() {
    kinds_.resize(set_.kinds.size());
    for (const RankId rank : result_.sample.ranks)
      kinds_[set_.ranks[rank].kind].try_emplace(treatmentOf(rank), Price{rank, modelOf(rank)});
    const std::vector<std::vector<KindId>> together = kindsBySubgraphs(set_);
    parallelFor(processorCount(), static_cast<int32_t>(together.size()), [&](int32_t index) {
      std::map<std::string, std::unique_ptr<CompiledSubgraph>> ready;  // by file
      for (const KindId kind : together[index]) priceKind(kind, ready);
    });
  }

  void priceKind(KindId kind, std::map<std::string, std::unique_ptr<CompiledSubgraph>>& ready) {
    const WorkerThreads limit(1);
    const Program& first = set_.kinds[kind].program;
    try {
      std::vector<const CompiledSubgraph*> subgraphs;
      for (const Subgraph& subgraph : first.subgraphs) {
        std::unique_ptr<CompiledSubgraph>& own = ready[subgraph.file];
        if (own == nullptr)
          own = std::make_unique<CompiledSubgraph>(folder_.graphOf(subgraph), subgraph.name, cpuKernels());
        subgraphs.push_back(own.get());
      }
      const Accumulation accumulation = accumulationOf(first, subgraphs);
      for (auto& [treatment, price] : kinds_[kind]) {
        const auto costsAs = [&](const Program& program) {
          return programCosts(program, subgraphs, price.model, accumulation);
        };
        price.costs = price.rank == first.rank ? costsAs(first) : costsAs(instantiate(set_, price.rank));
      }
    } catch (Error& error) {
      error.addContext(fmt::format("rank {}", first.rank));
      throw;
    }
  }

  // By places, between all that send to each other.
  std::map<std::pair<RankId, RankId>, LinkCost> linksOfSample() {
    std::map<std::pair<RankId, RankId>, LinkCost> links;
    const std::vector<RankId>& ranks = result_.sample.ranks;
    for (const RankId place : result_.programs.ids()) {
      for (const RankId peer : peersOf(result_.programs[place])) {
        for (const auto& [from, to] : {std::pair(place, peer), std::pair(peer, place)})
          links.try_emplace({from, to}, costs_.link(ranks[from.index()], ranks[to.index()]));
      }
    }
    return links;
  }

  ProgramCosts costsOf(RankId rank) {
    const Price& price = kinds_[set_.ranks[rank].kind].at(treatmentOf(rank));
    if (!measured_) return price.costs;
    ProgramCosts costs = price.costs;
    const std::string missing = measured_->apply(instantiate(set_, rank), costs);
    if (missing.empty()) return costs;
    fail(ErrorCode::kConfiguration,
         "{}: has no pass like {} of rank {}; expected the trace of a plan with the same stages and schedule",
         request_.measured, missing, rank);
  }

  const PlanSimulationRequest& request_;
  SimulatedPlan& result_;
  PlanCosts costs_;
  ProgramFolder folder_;
  ProgramSet read_;
  const ProgramSet& set_;
  std::optional<LinkCost> link_;
  std::optional<MeasuredDurations> measured_;
  std::vector<LinkCost> links_;
  std::map<RankId, std::string> treatments_;
  IdVector<KindId, KindCosts> kinds_;
};

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
  PlanSimulator(request, result).run();
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
    case Phase::kBackward: return Action{stage, ActionKind::kBackward, instruction.microbatch};
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

// What is shown as a row, and by which place in the sample.
struct ShownRank {
  RankId rank;
  RankId place;
};

std::vector<ShownRank> shownRanks(const SimulatedPlan& simulated) {
  std::vector<ShownRank> shown;
  const RankSample& sample = simulated.sample;
  if (simulated.shows_each) {
    for (const RankId rank : sample.place.ids()) shown.push_back({rank, RankId(sample.place[rank])});
  } else {
    for (const RankId place : simulated.programs.ids()) shown.push_back({sample.ranks[place.index()], place});
  }
  return shown;
}

std::vector<std::vector<GanttBar>> ganttOf(const SimulatedPlan& simulated) {
  const Trace& trace = simulated.simulation.trace;
  std::vector<std::vector<GanttBar>> rows(trace.ranks), shown;
  std::vector<StageId> first_stage(rows.size());
  for (const TraceEvent& event : trace.events) {
    if (event.background || (event.kind != TraceEventKind::kCompute && event.kind != TraceEventKind::kCopy))
      continue;
    const size_t rank = event.rank.index();
    if (!first_stage[rank].valid()) first_stage[rank] = event.stage;
    rows[rank].push_back(
        {kindOf(event), event.microbatch, event.stage != first_stage[rank], event.start_ns, event.end_ns});
  }
  for (const ShownRank& row : shownRanks(simulated)) shown.push_back(rows[row.place.index()]);
  return shown;
}

std::string jsonOf(const SimulatedPlan& simulated, const ScheduleOrders& orders) {
  const ProgramSimulation& simulation = simulated.simulation;
  nlohmann::ordered_json json;
  json["schedule"] = scheduleSpecToString(simulated.plan.schedule);
  const int ranks = static_cast<int>(simulated.sample.place.size());
  json["ranks"] = ranks;
  json["stages"] = simulated.plan.stages.size();
  json["microbatches"] = simulated.plan.microbatches;
  json["unit"] = "ns";
  json["makespan"] = simulation.makespan;
  json["idle_per_rank"] = simulation.idlePerRank();
  json["bubble_of_makespan"] = simulation.bubbleOfMakespan();
  json["bubble_of_useful"] = simulation.bubbleOfUseful();
  json["bubble_of_span"] = simulation.bubbleOfSpan();
  json["peak_memory_bytes"] = simulation.peak_memory;
  for (const WorkerMemory& memory : simulated.memory) {
    json["arena_bytes"].push_back(memory.arena_bytes);
    json["constant_bytes"].push_back(memory.constant_bytes);
  }
  // Of each rank's node.
  json["communicator_bytes"] = nlohmann::ordered_json::array();
  const Cluster& cluster = simulated.plan.cluster;
  for (const RankId rank : idsBelow<RankId>(ranks))
    json["communicator_bytes"].push_back(
        SharedSegments::communicatorBytes(ranksBeside(cluster, rank, ranks)));
  std::vector<nlohmann::ordered_json> texts;  // by place
  std::vector<double> peaks;
  for (const std::vector<Action>& order : orders) {
    peaks.push_back(peakActivationsOf(order));
    texts.push_back(nlohmann::ordered_json::array());
    for (const Action& action : order) texts.back().push_back(actionToString(action));
  }
  for (const size_t place : simulated.sample.place) {
    json["peak_activations"].push_back(peaks[place]);
    json["orders"].push_back(texts[place]);
  }
  return json.dump(1) + "\n";
}

std::vector<std::vector<std::string>> tableOf(const SimulatedPlan& simulated, const ScheduleOrders& orders) {
  const ProgramSimulation& simulation = simulated.simulation;
  std::vector<std::vector<std::string>> table = {
      {"rank", "busy", "idle", "waiting", "transfer", "beside", "span", "peak activations", "peak memory"}};
  const TraceBreakdown parts = breakDown(simulation.trace);
  const IdVector<RankId, Ticks> idle = simulation.idlePerRank();
  IdVector<RankId, std::string> stages, peaks;  // by place
  for (const RankId place : simulated.programs.ids()) {
    stages.push_back(stagesSuffix(simulated.programs[place]));
    peaks.push_back(fmt::format("{:g}", peakActivationsOf(orders[PipelineRankId(place.index())])));
  }
  for (const auto& [rank, place] : shownRanks(simulated)) {
    const RankBreakdown& part = parts.ranks[place];
    table.push_back({simulated.shows_each ? fmt::format("rank {}{}", rank, stages[place])
                                          : simulation.trace.rank_names[place],
                     formatNanoseconds(simulation.busy[rank]), formatNanoseconds(idle[rank]),
                     formatNanoseconds(part.waiting), formatNanoseconds(part.transfer),
                     formatNanoseconds(part.hidden), formatNanoseconds(simulation.span[rank]), peaks[place],
                     formatBytes(simulation.peak_memory[rank])});
  }
  return table;
}

}  // namespace

SimulationReport simulatePlan(const PlanSimulationRequest& request) {
  SimulatedPlan simulated = run(request);
  const size_t ranks = simulated.sample.place.size();
  SimulationReport report;
  const ScheduleOrders orders = ordersOf(simulated.programs);
  for (const size_t place : simulated.sample.place) report.orders.push_back(orders[PipelineRankId(place)]);
  const Plan& plan = simulated.plan;
  report.title =
      fmt::format("{}: {} stage{} on {} rank{}, {}, {} microbatch{}", request.directory, plan.stages.size(),
                  plan.stages.size() == 1 ? "" : "s", ranks, ranks == 1 ? "" : "s",
                  scheduleSpecToString(plan.schedule), plan.microbatches, plan.microbatches == 1 ? "" : "es");
  report.table = tableOf(simulated, orders);
  report.makespan = simulated.simulation.makespan;
  report.makespan_text = formatNanoseconds(report.makespan);
  report.bubble_of_makespan = simulated.simulation.bubbleOfMakespan();
  report.bubble_of_useful = simulated.simulation.bubbleOfUseful();
  report.bubble_of_span = simulated.simulation.bubbleOfSpan();
  report.gantt = ganttOf(simulated);
  report.ticks_per_unit = 1000;
  report.unit = " us";
  if (request.with_json) report.json = jsonOf(simulated, orders);
  report.trace = std::move(simulated.simulation.trace);
  report.programs = std::move(simulated.programs);
  report.sample = std::move(simulated.sample);
  return report;
}

}  // namespace pipeshard
