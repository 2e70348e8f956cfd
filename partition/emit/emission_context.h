// What all ranks' emissions share. Internal to partition/emit/.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ir/plan/plan.h"
#include "partition/cut/cut_training.h"
#include "partition/cut/layout.h"
#include "partition/cut/stage_shardings.h"
#include "partition/emit/emit_messages.h"
#include "partition/emit/emit_versions.h"
#include "partition/schedules/schedule.h"
#include "sharding/batch/training_family.h"

namespace pipeshard {

class ShardedPieces;

struct EmissionContext {
  const TrainingFamily& family;
  const Layout& layout;
  const IdVector<StageId, StagePlan>& stages;
  const Cut& cut;
  const Schedule& schedule;
  const WeightVersions& versions;
  const Messages& messages;
  const StageShardings& shardings;
  // Between a value's name and a microbatch number: "@", or more of them if a name of the model holds one, so
  // that buffer names are unique and equal on all ranks.
  std::string separator;
  // By parameter, of an evaluation: the training programs update it, so it lives with its owner, who sends it
  // to the others. Empty: there is none.
  std::vector<bool> trained_elsewhere = {};
  // What has been made so far of the sharded stages of the group whose ranks are emitted; every emission adds
  // to it.
  ShardedPieces* pieces = nullptr;
  std::function<void()> beat =
      {};  // called again and again while a rank is emitted; what it throws ends that
};

}  // namespace pipeshard
