// The schedule that is asked for, before and after the number of pipeline ranks is known, and that of a plan.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/plan/plan.h"
#include "ir/plan/schedule_spec.h"
#include "partition/families/make_schedule.h"
#include "partition/schedules/schedule.h"

namespace pipeshard {

// By stage: its group of devices. Stages that share devices are the chunks of one pipeline rank, and have one
// group. Groups are numbered by their first stages.
RankOfStage deviceGroups(const Plan& plan);

// The schedule of the plan: that of Plan::schedule, for as many pipeline ranks as there are groups of
// devices, or that of its stored orders. Errors: kConfiguration when it does not exist for so many ranks or
// microbatches, has another number of stages, or has stages together on a rank whose devices the plan keeps
// apart (or the other way round); the message names stages and devices.
Schedule scheduleOf(const Plan& plan);

// Whether the devices of a stage take whole microbatches in turn (asynchronous schedules) instead of sharing
// the rows of each.
bool devicesTakeTurns(const Plan& plan);

// By stage: programs have its backward pass in halves, as its family says; of orders that a plan or a file
// has, where they run a half of the stage. All stages of a plan that has no schedule yet.
IdVector<StageId, bool> splitStages(const Plan& plan);
IdVector<StageId, bool> splitStages(const Schedule& schedule);

// The passes of the first microbatches alone, in the same order: for the shorter batch that ends an epoch.
Schedule firstMicrobatches(Schedule schedule, int count);

// The text of --schedule: the path of a file of orders has a '/', or ends in .csv; all else is a schedule.
// Errors as parseSchedule.
ScheduleChoice parseScheduleChoice(const std::string& text);

// What was asked for, as far as it is known without a model.
struct AskedSchedule {
  ScheduleSpec spec;              // of a file: ScheduleSpec::ofFile()
  std::string text;               // as --schedule has it, for messages
  int chunks = 1;                 // stages of each pipeline rank
  std::optional<Schedule> given;  // of a file

  bool turns() const { return !given && takesTurns(spec); }
  // The pipeline rank of each stage, for so many of them. Error(kConfiguration) when a file is for another
  // number.
  RankOfStage rankOfStage(int ranks, int microbatches) const;
  // Error(kConfiguration), naming `subject`, which asks for so many stages, when pipeline ranks cannot have
  // `chunks` of them each.
  int ranksFor(int stages, const std::string& subject) const;
};

// Nothing: the usual one. Errors: kUsage (no such schedule), kMissingInput (no such file), kConfiguration (a
// file that is wrong).
AskedSchedule askSchedule(const std::optional<ScheduleChoice>& choice);

// Writes it into the plan: the schedule, and the orders where that alone does not give them, as with a file
// or a schedule that depends on costs. The plan's stages and microbatches must be known.
void setSchedule(const AskedSchedule& asked, const ScheduleCosts& costs, Plan& plan);

}  // namespace pipeshard
