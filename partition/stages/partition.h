// Between stages: layers, stages, schedules, and the emission of Programs. First algorithms; later ones
// replace them behind the same functions.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ir/plan/plan.h"
#include "ir/program/program.h"
#include "partition/schedules/schedule.h"
#include "sharding/batch/training_family.h"
#include "sharding/stage/shard_stage.h"

namespace pipeshard {

// How the operators of stages with several devices are sharded (sharding/stage/shard_stage.h).
struct ShardingRequest {
  std::string method;  // "auto", "data-parallel", "megatron:2,2", ...; "": the devices share the rows of
                       // every microbatch
  std::string mesh;    // "2x2"; "": the best of the logical meshes that have as many devices
  std::vector<std::string> constraints;  // "NAME=S0,R"
  int64_t memory_bytes = 0;              // of each device; 0: no limit
  bool memory_by_cluster = false;        // it is what the cluster's devices have, and nobody asked for it
};

inline constexpr int kDefaultWindow = 8;

// What a search (partition/search/plan_search.h) has chosen.
struct ChosenStage {
  int last_layer = 0;
  std::vector<int> devices;
  std::string method;                   // of several devices
  std::vector<int> mesh;                // the logical mesh
  std::string recomputation = "never";  // StagePlan::recomputation
};
struct ChosenStages {
  std::vector<int64_t> layer_ends;  // last position of each layer, in the forward nodes of the training graph
  std::vector<ChosenStage> stages;
  ScheduleCosts schedule_costs;
  bool cut_batch = false;  // the training graph is of a batch that is cut into parts
};

inline constexpr const char* kPerDevice = "per-device";
inline constexpr const char* kSearched = "auto";

struct PartitionOptions {
  Cluster cluster;
  // "per-device" (one per device and chunk), "uniform:K" (in all), the path of a stage file
  // (ir/plan/stage_file.h), or "auto": as `chosen` says.
  std::string stages = kPerDevice;
  std::optional<ChosenStages> chosen;
  std::vector<std::string>
      boundaries;  // --boundary: a value name; a stage ends with the node that makes it. Overrides `stages`
  std::string
      balance;  // what stages have in equal shares: "flops" (or ""), "parameters", "type:REGEX", "3,5,5,1"
  std::vector<int> stage_devices;  // devices of each pipeline rank, in order; empty: equal shares
  std::string schedule =
      "1f1b";  // schedule.h: "gpipe", "interleaved:v=2"; or the path of a file of orders ("x.csv", "./x")
  std::string recomputation =
      "never";     // "never", "layers", "always", "except-last" (StagePlan), or by stage: "0:always,2:layers"
  int layers = 0;  // how many layers to form; 0: automatic
  int window = 0;  // updates of a step under an asynchronous schedule; 0: kDefaultWindow
  ShardingRequest sharding;
};

// What the options say before the model is known: at most so many pipeline ranks, each over at most so many
// data-parallel devices; a file of orders tells the number of microbatches. For the automatic choice of
// microbatches. Errors as partitionTraining.
struct AskedStages {
  int ranks = 1;
  int widest = 1;
  int64_t microbatches = 0;  // as a file of orders says; 0: any
};
AskedStages askedStages(const PartitionOptions& options);

// How many microbatches a batch of so many rows is cut into where nobody says: as a file of orders does; else
// at most two per pipeline rank, dividing the batch, each with a row for every data-parallel device, and such
// that the schedule exists; else the smallest such number beyond, if there is one.
int64_t chooseMicrobatches(int64_t batch, const PartitionOptions& options, const AskedStages& stages);

// Clusters the forward nodes into layers by cumulative FLOPs, gives the layers to stages, stages to devices,
// and fills `plan`'s layers, stages, schedule and number of microbatches (its other fields are the caller's);
// docs/stages.md tells what the options mean. Without stage_devices or a stage file K stages get devices/K
// devices each, rounded down, and no more than a microbatch has rows; a note says why devices stay unused. A
// stage cuts each microbatch over its devices unless a stage file says otherwise. Errors: kConfiguration
// (more stages than devices or than forward nodes, an unknown boundary with near matches, boundaries out of
// order, a stage file that is wrong: the message names the field, what was found and what is allowed), kUsage
// (a malformed option, options that exclude each other), kMissingInput (no such stage file).
void partitionTraining(const TrainingGraph& training, const PartitionOptions& options, Plan& plan);

// Fills in the shardings that partitionTraining has asked for (StagePlan::sharding with a method): for each
// stage the best logical mesh and, on it, the best sharding. `progress` is called per stage and mesh. Errors:
// kUsage, kConfiguration (a method, mesh or constraint that cannot be), kOutOfMemory (nothing fits). With the
// method "exhaustive" (on one mesh, by default that of one axis) a stage takes the best of all combinations
// of its inputs' shardings; they are returned, by stage.
struct StageCombinations {
  int stage = 0;
  std::vector<Combination> combinations;  // dearest first, best last
};
std::vector<StageCombinations> shardStages(const TrainingGraph& training, const ShardingRequest& request,
                                           Plan& plan,
                                           const std::function<void(const std::string&)>& progress = {});

// What the plan says of its stages' shardings, by stage; nothing for one that is not sharded.
// Error(kConfiguration) naming stage and entry when it does not fit the model.
std::vector<std::optional<StageSharding>> shardingsOf(const TrainingGraph& training, const Plan& plan);

// Why a sharded stage is sharded as it is.
struct StageExplanation {
  int stage = 0;
  int64_t total_ns = 0;             // predicted, of a step
  BlockSummary blocks;              // what its repeated blocks do
  std::vector<Decision> decisions;  // dearest first
};
// Of every sharded stage; the second best of the `alternatives` dearest decisions of each.
std::vector<StageExplanation> explainStages(const TrainingGraph& training, const Plan& plan, int alternatives,
                                            const std::function<void(const std::string&)>& progress = {});

// The stage of every node of the training graph, by node index, as the plan decides: forward nodes by layer;
// prologue nodes with each of their readers (they are cheap and replicated: the list holds the first);
// backward nodes with the forward node that they differentiate; an update with the owner of its parameter,
// the first stage that reads it. A mean's scaling by its share of the batch stays with the mean where the
// stages have unequally many data-parallel devices. Errors: kConfiguration when the plan is of another model,
// or a stage is empty without such a scaling.
std::vector<int> nodeStages(const TrainingGraph& training, const Plan& plan);

// By stage: its group of devices. Stages that share devices are the chunks of one pipeline rank, and have one
// group. Groups are numbered by their first stages.
std::vector<int> deviceGroups(const Plan& plan);

// The schedule of the plan: its name's, for as many pipeline ranks as there are groups of devices, or that of
// its stored orders. Errors: kConfiguration when it does not exist for so many ranks or microbatches, has
// another number of stages, or has stages together on a rank whose devices the plan keeps apart (or the other
// way round); the message names stages and devices.
Schedule scheduleOf(const Plan& plan);

// Whether the devices of a stage take whole microbatches in turn (asynchronous schedules) instead of sharing
// the rows of each.
bool devicesTakeTurns(const Plan& plan);

// The passes of the first microbatches alone, in the same order: for the shorter batch that ends an epoch.
Schedule firstMicrobatches(Schedule schedule, int count);

// What one rank gets: its program and the graphs of its subgraphs, in order.
struct RankProgram {
  Program program;
  std::vector<Graph> subgraphs;
};

// Cuts the training step into per-rank programs and orders them by the schedule. Values that a later stage
// needs go there directly, whatever lies between. A parameter read on several stages has one owner; the
// others receive it at the start of the step and send their summed gradient back at its end. The devices of a
// stage share the rows of every microbatch over the data axis of their logical mesh (partition/cut/layout.h)
// and hold equal copies of the stage's parameters; gradients are summed over them once, after the last
// microbatch. Replicas that take microbatches in turn average their gradients at every update instead. The
// result passes verifyPrograms. Errors: kConfiguration when devices, meshes or microbatches do not fit
// together.
std::vector<RankProgram> emitPrograms(const TrainingFamily& family, const Plan& plan);
// The same step on one device, cut nowhere: what `validate` compares with. Under an asynchronous schedule
// every microbatch reads the versions of the parameters that it reads on the plan's stages; where these
// update their weights at different times, the device runs the plan's stages one after the other.
RankProgram emitOnOneDevice(const TrainingFamily& family, const Plan& plan, const Schedule& schedule);
// The same in the order of a schedule that fits the plan's stages, whatever the plan's own is.
std::vector<RankProgram> emitPrograms(const TrainingFamily& family, const Plan& plan,
                                      const Schedule& schedule);
// The same for a step that is known at one size only: equal microbatches, no data-parallel devices.
std::vector<RankProgram> emitPrograms(const TrainingGraph& training, const Plan& plan);

}  // namespace pipeshard
