// What people, or a search, ask of stages: plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/base/ids.h"
#include "ir/cluster/cluster.h"
#include "ir/plan/recomputation.h"
#include "ir/plan/schedule_spec.h"
#include "partition/cut/shard_stages.h"
#include "partition/schedules/schedule.h"
#include "partition/stages/balance.h"
#include "partition/stages/megatron_grid.h"
#include "partition/stages/stages_request.h"

namespace pipeshard {

inline constexpr int kDefaultWindow = 8;

// What a search (partition/search/plan_search.h) has chosen.
struct ChosenStage {
  LayerId last_layer;
  std::vector<RankId> devices;
  ShardingMethod method;  // of several devices
  std::vector<int> mesh;  // the logical mesh
  Recomputation recomputation = Recomputation::kNever;
};
struct ChosenStages {
  LayerEnds layer_ends;  // in the forward nodes of the training graph
  std::vector<ChosenStage> stages;
  ScheduleCosts schedule_costs;
  bool cut_batch = false;  // the training graph is of a batch that is cut into parts
};

struct PartitionOptions {
  Cluster cluster;
  StagesRequest stages;
  std::optional<ChosenStages> chosen;
  // --boundary: a value name; a stage ends with the node that makes it. Overrides `stages`
  std::vector<std::string> boundaries;
  std::optional<Balance> balance;  // what stages have in equal shares; nothing: FLOPs
  std::vector<int> stage_devices;  // devices of each pipeline rank, in order; empty: equal shares
  // nothing: a search decides, else the usual one (families/make_schedule.h)
  std::optional<ScheduleChoice> schedule;
  RecomputationChoice recomputation;
  int layers = 0;  // how many layers to form; 0: automatic
  int window = 0;  // updates of a step under an asynchronous schedule; 0: kDefaultWindow
  ShardingRequest sharding;
  // --method with the numbers of a whole grid: stages, their devices and their method (useMegatronGrid). Then
  // sharding.method is not said
  std::optional<MegatronGrid> method_grid;
};

}  // namespace pipeshard
