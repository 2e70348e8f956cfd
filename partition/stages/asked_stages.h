// What the options say of stages before the model is known, and the number of microbatches that follows.
#pragma once

#include <cstdint>
#include <string>

#include "ir/plan/stage_file.h"
#include "partition/families/plan_schedule.h"
#include "partition/stages/balance.h"
#include "partition/stages/partition_options.h"

namespace pipeshard {

// What the options say before the model is known: at most so many pipeline ranks, each over at most so many
// devices that must have rows of their own (all of a stage, but with a method those that it cuts the batch
// over, none where it is free to); a file of orders tells the number of microbatches. For the automatic
// choice of microbatches.
struct AskedStages {
  int ranks = 1;
  int widest = 1;
  int64_t microbatches = 0;  // as a file of orders says; 0: any
};
// Errors as partitionTraining.
AskedStages askedStages(const PartitionOptions& options);

// How many microbatches a batch of so many rows is cut into where nobody says: as a file of orders does; else
// at most two per pipeline rank, dividing the batch, each with a row for every data-parallel device, and such
// that the schedule exists; else the smallest such number beyond, if there is one.
int64_t chooseMicrobatches(int64_t batch, const PartitionOptions& options, const AskedStages& stages);

// The rest is for partitionTraining.

// What the stage file of options.stages has. Errors: kUsage, kMissingInput, kConfiguration as
// partitionTraining.
StageFile readStageFile(const PartitionOptions& options);

// So many stages, and what asks for them.
struct StageCount {
  int stages = 0;
  std::string subject;
};

// How many stages the options ask for, without a stage file; 0: it depends on the model.
StageCount givenCount(const PartitionOptions& options, const Balance& balance, const AskedSchedule& schedule);

}  // namespace pipeshard
