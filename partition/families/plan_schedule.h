// The schedule that is asked for, before and after the number of pipeline ranks is known. Internal to
// partition/.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/plan/plan.h"
#include "partition/schedules/schedule.h"

namespace pipeshard {

// --schedule, as far as it is known without a model.
struct AskedSchedule {
  std::string text;               // as given
  int chunks = 1;                 // stages of each pipeline rank
  std::optional<Schedule> given;  // of a file

  bool turns() const { return !given && takesTurns(text); }
  // The pipeline rank of each stage, for so many of them. Error(kConfiguration) when a file is for another
  // number.
  std::vector<int> rankOfStage(int ranks, int microbatches) const;
  // Error(kConfiguration), naming `subject`, which asks for so many stages, when pipeline ranks cannot have
  // `chunks` of them each.
  int ranksFor(int stages, const std::string& subject) const;
};

// Errors: kUsage (no such schedule), kMissingInput (no such file), kConfiguration (a file that is wrong).
AskedSchedule askSchedule(const std::string& text);

// Writes it into the plan: a name, and the orders where the name alone does not give them, as with a file or
// a schedule that depends on costs. The plan's stages and microbatches must be known.
void setSchedule(const AskedSchedule& asked, const ScheduleCosts& costs, Plan& plan);

}  // namespace pipeshard
