#include "partition/stages/partition_training.h"

#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/ranges.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/plan/stage_file.h"
#include "partition/families/make_schedule.h"
#include "partition/families/plan_schedule.h"
#include "partition/layers/chain.h"
#include "partition/layers/layers.h"
#include "partition/layers/modules.h"
#include "partition/schedules/schedule.h"
#include "partition/stages/asked_stages.h"
#include "partition/stages/balance.h"
#include "partition/stages/boundaries.h"
#include "partition/stages/check_plan.h"
#include "sharding/rules/factor_rule.h"

namespace pipeshard {
namespace {

// What was decided of layers, stages and devices.
struct Choice {
  Cuts cuts;
  std::vector<std::vector<RankId>> devices;            // by stage
  std::vector<std::vector<int>> meshes;                // by stage, {data, model}
  std::vector<std::optional<ShardingPlan>> shardings;  // by stage: method, and mesh if it is told
};

// What the method of a stage of several devices leaves for shardStages to fill in.
std::optional<ShardingPlan> shardingOf(const std::optional<ShardingMethod>& method,
                                       const std::vector<int>& mesh, size_t devices) {
  if (!method || devices < 2) return std::nullopt;
  ShardingPlan sharding;
  sharding.method = *method;
  sharding.mesh = mesh;
  return sharding;
}

// How many rows the smallest microbatch has along the axis that is the batch; 0 if no input has such an axis.
int64_t rowsOfMicrobatch(const TrainingGraph& training, const Plan& plan) {
  int64_t rows = 0;
  for (const BatchInput& input : training.inputs) {
    if (input.axis >= 0) rows = std::gcd(rows, training.graph.shape(input.value)[input.axis]);
  }
  const auto batch = plan.dimensions.find(plan.batch_dimension);
  return batch == plan.dimensions.end() ? rows : std::min(rows, batch->second / plan.microbatches);
}

// `subject` asks to cut microbatches over so many devices.
void checkDataAxis(const std::string& subject, int data, int64_t rows) {
  if (data == 1 || data <= rows) return;
  if (rows == 0) {
    fail(ErrorCode::kConfiguration,
         "{}: found a batch that is cut over {} devices, but no input has a batch dimension that could be "
         "cut; use one device, or a mesh [1,{}] in a stage file",
         subject, data, data);
  }
  fail(ErrorCode::kConfiguration,
       "{}: found microbatches that are cut over {} devices; expected at most {}, the rows of a microbatch; "
       "ask for fewer --microbatches or a larger batch",
       subject, data, rows);
}

// As given, or `chunks` for each device as far as the model goes.
StageCount stageCount(const PartitionOptions& options, const Chain& chain, const Balance& balance,
                      const AskedSchedule& schedule) {
  const int devices = options.cluster.deviceCount();
  if (StageCount given = givenCount(options, balance, schedule); given.stages > 0) return given;
  const std::vector<bool> ends = stageEnds(chain);
  int64_t most = std::count(ends.begin(), ends.end(), true);
  if (options.layers > 0) most = std::min<int64_t>(options.layers, most);
  if (balance.kind == Balance::Kind::kType)
    most = std::ssize(matchModules(chain.training.graph, chain.nodes, balance.pattern).names);
  const int64_t ranks = std::max<int64_t>(1, std::min<int64_t>(devices, most / schedule.chunks));
  return {static_cast<int>(ranks) * schedule.chunks, "--schedule " + schedule.text};
}

// What has devices of its own: a stage, or a pipeline rank with several stages.
const char* unitsOf(const AskedSchedule& schedule) {
  return schedule.chunks == 1 ? "stages" : "pipeline ranks";
}

// By pipeline rank how many devices it has, as --stage-devices says.
std::vector<int> givenWidths(const PartitionOptions& options, const AskedSchedule& schedule, int ranks,
                             int64_t rows) {
  const std::vector<int>& widths = options.stage_devices;
  const std::string subject = fmt::format("--stage-devices {}", fmt::join(widths, ","));
  if (std::ssize(widths) != ranks) {
    fail(ErrorCode::kConfiguration, "{}: found {} {}; expected {}, one number per {}", subject, widths.size(),
         unitsOf(schedule), ranks, schedule.chunks == 1 ? "stage" : "pipeline rank");
  }
  int64_t sum = 0;
  for (int width : widths) {
    if (width < 1)
      fail(ErrorCode::kUsage, "{}: found {}; expected at least one device for each stage, e.g. 1,3", subject,
           width);
    sum += width;
  }
  if (sum > options.cluster.deviceCount()) {
    fail(ErrorCode::kConfiguration, "{}: found {} devices; expected at most {}, as the cluster has", subject,
         sum, options.cluster.deviceCount());
  }
  if (schedule.turns()) return widths;
  for (int width : widths) checkDataAxis(subject, width, rows);
  return widths;
}

// By pipeline rank how many devices it has: as told, or an equal share of all. A note says why devices stay
// unused.
std::vector<int> rankWidths(const PartitionOptions& options, const AskedSchedule& schedule,
                            const Chain& chain, int ranks, Plan& plan) {
  const int devices = options.cluster.deviceCount();
  if (ranks > devices) {
    fail(ErrorCode::kConfiguration,
         "{} {} need {}, the cluster has {}; ask for fewer stages or a larger cluster", ranks,
         unitsOf(schedule), counted(ranks, "device"), devices);
  }
  // then rows are one axis among others, or not cut
  const bool whole = options.sharding.method || schedule.turns();
  const int64_t rows = whole ? devices : rowsOfMicrobatch(chain.training, plan);
  if (!options.stage_devices.empty()) return givenWidths(options, schedule, ranks, rows);
  const int share = devices / ranks;
  const int width = std::min<int64_t>(share, std::max<int64_t>(1, rows));
  if (width * ranks < devices) {
    const std::string reason =
        width == share ? fmt::format("{} {} cannot share {} equally (--stage-devices gives each its number)",
                                     ranks, unitsOf(schedule), devices)
        : rows == 0    ? std::string("no input has a batch dimension that could be cut over more")
                    : fmt::format("a microbatch of {} cannot be cut over more (ask for fewer --microbatches)",
                                  rows == 1 ? "one row" : fmt::format("{} rows", rows));
    plan.notes.push_back(fmt::format("{} of {} devices are used, {} per {}: {}", width * ranks, devices,
                                     width == 1 ? "one" : std::to_string(width),
                                     schedule.chunks == 1 ? "stage" : "pipeline rank", reason));
  }
  return std::vector<int>(ranks, width);
}

// Which devices every stage gets: pipeline rank after rank takes the next ones.
struct Placement {
  RankOfStage rank_of_stage;
  std::vector<int> widths;  // by stage
  IdVector<PipelineRankId, std::vector<RankId>> devices_of_rank;
};

Placement placeInOrder(const PartitionOptions& options, const AskedSchedule& schedule, const Chain& chain,
                       const StageCount& count, Plan& plan) {
  const int ranks = schedule.ranksFor(count.stages, count.subject);
  const std::vector<int> widths = rankWidths(options, schedule, chain, ranks, plan);
  Placement placement{schedule.rankOfStage(ranks, plan.microbatches), {}, {}};
  size_t next = 0;
  for (int width : widths) {
    placement.devices_of_rank.emplace_back(IdRange(RankId(next), RankId(next + width)));
    next += width;
  }
  for (const PipelineRankId rank : placement.rank_of_stage) placement.widths.push_back(widths[rank.index()]);
  return placement;
}

// A stage cuts the batch over its devices unless it is to be sharded.
void fillDevices(const PartitionOptions& options, const Placement& placement, Choice& choice) {
  for (const PipelineRankId rank : placement.rank_of_stage) {
    const std::vector<RankId>& devices = choice.devices.emplace_back(placement.devices_of_rank[rank]);
    const int width = devices.size();
    choice.shardings.push_back(shardingOf(options.sharding.method, {}, devices.size()));
    choice.meshes.push_back(choice.shardings.back() ? std::vector<int>{1, width}
                                                    : std::vector<int>{width, 1});
  }
}

// Each run of nodes up to a cut is one layer and one stage.
Cuts oneLayerPerStage(const std::vector<int64_t>& positions, const Chain& chain) {
  Cuts cuts{LayerEnds(positions.begin(), positions.end()), {}};
  cuts.layer_ends.push_back(chain.count() - 1);
  cuts.stage_ends = cuts.layer_ends.ids();
  return cuts;
}

Choice choiceOfBoundaries(const PartitionOptions& options, const AskedSchedule& schedule, const Chain& chain,
                          Plan& plan) {
  if (options.layers > 0)
    fail(ErrorCode::kUsage,
         "--layers and --boundary exclude each other: each run between boundaries is one layer");
  if (options.balance) {
    fail(ErrorCode::kUsage,
         "--balance and --boundary exclude each other: boundaries leave nothing to balance");
  }
  const StageCount count{static_cast<int>(options.boundaries.size()) + 1, "--boundary"};
  const int ranks = schedule.ranksFor(count.stages, count.subject);
  if (ranks > options.cluster.deviceCount()) {
    fail(ErrorCode::kConfiguration, "--boundary: {} stages{} are asked for, but the cluster has {}",
         count.stages, schedule.chunks == 1 ? "" : fmt::format(" on {} pipeline ranks", ranks),
         counted(options.cluster.deviceCount(), "device"));
  }
  std::vector<Boundary> boundaries;
  for (const std::string& value : options.boundaries) boundaries.push_back({value, "boundary"});
  Choice choice{oneLayerPerStage(boundaryPositions(chain, boundaries), chain), {}, {}, {}};
  fillDevices(options, placeInOrder(options, schedule, chain, count, plan), choice);
  return choice;
}

// The cuts that the stages' "until" name.
Cuts cutsOfValues(const StageFile& file, const Chain& chain) {
  std::vector<Boundary> boundaries;
  for (size_t s = 0; s < file.stages.size(); ++s) {
    boundaries.push_back({file.stages[s].until, fmt::format("{}.stages[{}].until: found", file.name, s)});
  }
  const Boundary end = boundaries.back();
  boundaries.pop_back();
  const std::vector<int64_t> positions = boundaryPositions(chain, boundaries);
  if (!end.value.empty() && positionOf(chain, end) != chain.count() - 1) {
    fail(ErrorCode::kConfiguration,
         "{} \"{}\"; expected no \"until\" in the last stage, which takes the rest, or the value that the "
         "last forward node makes",
         end.subject, end.value);
  }
  return oneLayerPerStage(positions, chain);
}

// What the file says of cuts, as the options would that cut so.
void keepCuts(const StageFile& file, Plan& plan) {
  plan.layer_count = file.layers;
  if (file.layers == 0) {
    for (const StageSpec& stage : file.stages) plan.boundaries.push_back(stage.until);
    plan.boundaries.pop_back();
    return;
  }
  Balance balance{Balance::Kind::kCounts, "", {}};
  for (const StageSpec& stage : file.stages)
    balance.counts.push_back(static_cast<int>(stage.last_layer.index() - stage.first_layer.index()) + 1);
  plan.balance = balanceToString(balance);
}

Choice choiceOfFile(const PartitionOptions& options, const AskedSchedule& schedule, const Chain& chain,
                    Plan& plan) {
  const StageFile file = readStageFile(options);
  if (options.balance || !options.stage_devices.empty() || !options.boundaries.empty()) {
    const char* option = options.balance                  ? "--balance"
                         : !options.stage_devices.empty() ? "--stage-devices"
                                                          : "--boundary";
    fail(ErrorCode::kUsage,
         "{} and a stage file exclude each other: {} says everything about stages and devices", option,
         file.name);
  }
  if (file.layers > chain.count()) {
    fail(ErrorCode::kConfiguration,
         "{}.layers: found {} layers; expected at most {}, the number of the model's forward nodes",
         file.name, file.layers, chain.count());
  }
  keepCuts(file, plan);
  Choice choice;
  if (file.layers == 0) {
    choice.cuts = cutsOfValues(file, chain);
  } else {
    choice.cuts.layer_ends = layersOf(chain, file.layers);
  }
  const int64_t rows = schedule.turns() ? INT32_MAX : rowsOfMicrobatch(chain.training, plan);
  for (size_t s = 0; s < file.stages.size(); ++s) {
    const StageSpec& stage = file.stages[s];
    const std::optional<ShardingMethod>& method = stage.undecided ? options.sharding.method : stage.method;
    choice.shardings.push_back(shardingOf(method, stage.logical_mesh, stage.devices.size()));
    const int devices = stage.devices.size();
    choice.meshes.push_back(choice.shardings.back() ? std::vector<int>{1, devices} : stage.mesh_shape);
    checkDataAxis(fmt::format("{}.stages[{}].mesh", file.name, s), choice.meshes.back()[0], rows);
    if (file.layers > 0) choice.cuts.stage_ends.push_back(stage.last_layer);
    choice.devices.push_back(stage.devices);
  }
  return choice;
}

// As the search has chosen.
Choice choiceOfSearch(const ChosenStages& chosen) {
  Choice choice;
  choice.cuts.layer_ends = chosen.layer_ends;
  for (const ChosenStage& stage : chosen.stages) {
    const int devices = stage.devices.size();
    choice.cuts.stage_ends.push_back(stage.last_layer);
    choice.devices.push_back(stage.devices);
    choice.meshes.push_back({1, devices});
    choice.shardings.push_back(shardingOf(stage.method, stage.mesh, stage.devices.size()));
  }
  return choice;
}

Choice decide(const PartitionOptions& options, const AskedSchedule& schedule, const Chain& chain,
              Plan& plan) {
  if (options.chosen) return choiceOfSearch(*options.chosen);
  using Kind = StagesRequest::Kind;
  PIPESHARD_CHECK(options.stages.kind != Kind::kGrid, "a grid has not become stages");
  PIPESHARD_CHECK(options.stages.kind != Kind::kSearched,
                  "stages that a search chooses have not been chosen");
  if (options.stages.kind == Kind::kFile) return choiceOfFile(options, schedule, chain, plan);
  if (!options.boundaries.empty()) return choiceOfBoundaries(options, schedule, chain, plan);
  const Balance balance = options.balance.value_or(Balance{});
  const StageCount count = stageCount(options, chain, balance, schedule);
  const bool by_type = balance.kind == Balance::Kind::kType && options.stages.kind == Kind::kPerDevice &&
                       options.stage_devices.empty();
  if (by_type && count.stages < options.cluster.deviceCount() * schedule.chunks) {
    plan.notes.push_back(fmt::format("{} stage(s), as --balance {} matches so many modules", count.stages,
                                     balanceToString(balance)));
  }
  const Placement placement = placeInOrder(options, schedule, chain, count, plan);
  Choice choice{balanceStages(chain, balance, placement.widths, options.layers,
                              costModelOn(options.cluster, {RankId(0)}, LogicalMesh{{1}})),
                {},
                {},
                {}};
  fillDevices(options, placement, choice);
  return choice;
}

void fillLayers(const LayerEnds& ends, Plan& plan) {
  plan.layers.clear();
  int64_t first = 0;
  for (int64_t last : ends) {
    plan.layers.push_back({"", "", first, last, 0});
    first = last + 1;
  }
}

void fillStages(const Choice& choice, Plan& plan) {
  const std::vector<LayerId>& last_layers = choice.cuts.stage_ends;
  plan.stages.clear();
  LayerId first_layer(0);
  for (size_t s = 0; s < last_layers.size(); ++s) {
    StagePlan stage;
    stage.first_layer = first_layer;
    stage.last_layer = last_layers[s];
    stage.devices = choice.devices[s];
    stage.mesh_shape = choice.meshes[s];
    stage.sharding = choice.shardings[s];
    plan.stages.push_back(std::move(stage));
    first_layer = last_layers[s].next();
  }
}

// What the passes of a pipeline rank cost, in parts of a thousand, as far as FLOPs tell.
ScheduleCosts costsOf(const Chain& chain) {
  std::array<int64_t, 3> flops = {};  // forward, backward-input, backward-weight
  for (size_t n = 0; n < chain.training.graph.nodes.size(); ++n) {
    const Phase phase = chain.training.node_phase[n];
    const size_t part = phase == Phase::kForward ? 0 : phase == Phase::kBackwardInput ? 1 : 2;
    if (part == 2 && phase != Phase::kBackwardWeight) continue;
    flops[part] += nodeFlops(chain.training.graph, NodeId(n));
  }
  const int64_t unit = std::max<int64_t>(1, (flops[0] + flops[1] + flops[2]) / 1000);
  const auto share = [&](size_t part) { return std::max<int64_t>(1, (flops[part] + unit / 2) / unit); };
  ScheduleCosts costs;
  costs.forward = share(0);
  costs.backward_input = share(1);
  costs.backward_weight = share(2);
  return costs;
}

// --recompute, for all stages or by stage.
void fillRecomputations(const RecomputationChoice& choice, Plan& plan) {
  for (StagePlan& stage : plan.stages) stage.recomputation = choice.all;
  for (const auto& [stage, recomputation] : choice.by_stage) {
    if (stage >= plan.stages.size()) {
      fail(ErrorCode::kUsage,
           "--recompute {}:{}: there is no stage {}; expected {}, for all stages or by stage from 0 to {}",
           stage, recomputationName(recomputation), stage, kRecomputationNames, plan.stages.size() - 1);
    }
    plan.stages[StageId(stage)].recomputation = recomputation;
  }
}

// Before the stages are known.
int updatesPerStep(const PartitionOptions& options, const AskedSchedule& schedule) {
  if (!schedule.given && isAsynchronous(schedule.spec))
    return options.window > 0 ? options.window : kDefaultWindow;
  if (options.window == 0) return 1;
  fail(ErrorCode::kUsage,
       "--window {}: the schedule {} updates once per step; a window of several updates goes with pipedream "
       "schedules",
       options.window, schedule.text);
}

// Replicas that take minibatches in turn take equally many: a window that nobody asked for is rounded up.
void fitWindow(const PartitionOptions& options, Plan& plan) {
  int64_t together = 1;
  for (const StagePlan& stage : plan.stages) together = std::lcm(together, int64_t{stage.mesh_shape.at(0)});
  if (together == 1) return;
  plan.notes.emplace_back(
      "the devices of a stage take the microbatches in turn (option rows=1 of the schedule: they share the "
      "rows of each)");
  if (options.window == 0)
    plan.updates_per_step = (plan.updates_per_step + together - 1) / together * together;
}

}  // namespace

void partitionTraining(const TrainingGraph& training, const PartitionOptions& options, Plan& plan) {
  const Chain chain = chainOf(training);
  plan.microbatches = training.microbatches;
  const AskedSchedule schedule = askSchedule(options.schedule);
  plan.updates_per_step = updatesPerStep(options, schedule);
  const Choice choice = decide(options, schedule, chain, plan);
  fillLayers(choice.cuts.layer_ends, plan);
  fillStages(choice, plan);
  if (schedule.turns()) fitWindow(options, plan);
  setSchedule(schedule, options.chosen ? options.chosen->schedule_costs : costsOf(chain), plan);
  fillRecomputations(options.recomputation, plan);
  for (size_t s = 0; options.chosen && s < plan.stages.size(); ++s)
    plan.stages[StageId(s)].recomputation = options.chosen->stages[s].recomputation;
  fillNumbers(training, plan);
}

}  // namespace pipeshard
