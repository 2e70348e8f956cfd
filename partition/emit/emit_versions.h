// Which version of its parameters every pass reads under an asynchronous schedule, and where versions lie.
// Internal to partition/.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/cut/cut_training.h"
#include "partition/schedules/schedule.h"

namespace pipeshard {

// What passes read. Version v of a parameter has seen v updates of the window: version 0 is what the window
// starts with, and the last one what it leaves behind. Under a synchronous schedule everything is version 0,
// and there is one update.
class WeightVersions {
 public:
  // `stage_of`: by parameter, the stage whose row of schedule.versions it follows; invalid: one that nothing
  // reads. One device that computes what a pipeline does has rows for more stages than it has itself.
  WeightVersions(const Schedule& schedule, std::vector<StageId> stage_of);

  bool asynchronous() const { return schedule_.asynchronous(); }
  // Minibatches of the window. A stage updates its weights after each of them, or, with replicas that take
  // minibatches in turn, after one of each replica: such an update has the number of the last minibatch that
  // it takes.
  int updates() const { return schedule_.microbatches / microbatchesPerUpdate(); }
  int microbatchesPerUpdate() const {
    return asynchronous() ? schedule_.microbatches_per_update : schedule_.microbatches;
  }
  int updateOf(int microbatch) const { return microbatch / microbatchesPerUpdate(); }
  // How many minibatches an update of the stage takes: it averages their gradients.
  int averaged(StageId stage) const {
    return asynchronous() ? schedule_.updateEvery(stage) / microbatchesPerUpdate() : 1;
  }
  bool endsAtMinibatch(StageId stage, int update) const { return (update + 1) % averaged(stage) == 0; }
  int read(size_t parameter, int microbatch) const;

  // Which of the versions of a parameter are in the buffer that lives across steps, by version, on a rank
  // that runs `order`, the passes and updates of the parameter's stage. Versions that are not live together
  // with those before them; the others have buffers of their own. The last one is.
  //   pipedream, first of two stages, window of 3: F0 F1 B0 U F2 B1 U B2 U
  //   F1 and B1 read version 0 until the second update; so version 1 lives beside 0; 2 takes the place of 0;
  //   3 is made of 2 in its place. Versions 0..3: yes no yes yes
  std::vector<bool> inParameter(size_t parameter, const std::vector<Action>& order) const;

 private:
  const Schedule& schedule_;
  std::vector<StageId> stage_of_;
};

// Asynchronous versions are those of one stage. Error(kConfiguration), naming the tensor and what to do, for
// a parameter that several stages read or differentiate (which of their versions would it be?), for running
// statistics, for a sharded stage, and for a parameter whose gradient a stage makes that updates its own
// weights at other times.
void refuseUndefinedVersions(const TrainingGraph& training, const Cut& cut, const Plan& plan,
                             const Schedule& schedule);

// The schedule of one device that computes what `schedule` does over many: the same microbatches, updates and
// versions, one microbatch after the other. Of a synchronous schedule: the sequential one. It has one stage,
// or all of the schedule's where these update their weights at different times.
Schedule onOneDevice(const Schedule& schedule);

}  // namespace pipeshard
