// Which values travel between stages on different devices, and in which order. Internal to partition/.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/training_graph.h"
#include "partition/cut/cut_training.h"
#include "partition/schedules/schedule.h"

namespace pipeshard {

// One value of one microbatch on its way from one group of devices to another: in one send, or several (the
// pieces of a CrossMeshPlan).
struct Message {
  ValueId value;
  int microbatch = 0;
  friend bool operator==(const Message&, const Message&) = default;
};

// A value that a piece sends as soon as it has run.
struct Departure {
  StageId receiver;  // of the receiving group's stages, the one that needs it first
  ValueId value;
};

// The pieces that an action of a schedule runs, in order, where there are such: F runs forward; B backward,
// or backward-input and then backward-weight.
std::vector<Phase> phasesOf(ActionKind kind);

// Every message of a step between forward and backward pieces. A value goes from its producer to each group
// of devices that reads it, once and directly, however many stages it has there; between stages of one group
// nothing travels.
class Messages {
 public:
  Messages(const Cut& cut, const Schedule& schedule);

  // What leaves after the piece: to the nearest stage first, and for one receiver in the order in which it
  // needs them.
  const std::vector<Departure>& departures(StageId stage, Phase phase) const;

  // All messages from one group (deviceGroups) to another in the order in which the sender posts them. The
  // receiver takes them in this order, and never waits longer for it: what stands before a message that it
  // needs was posted before that message.
  const std::vector<Message>& channel(PipelineRankId sender, PipelineRankId receiver) const;

 private:
  void findDepartures(const Cut& cut);

  IdVector<StageId, std::vector<std::vector<Departure>>> departures_;  // by phase
  using Channels = IdVector<PipelineRankId, std::vector<Message>>;     // by receiver
  IdVector<PipelineRankId, Channels> channels_;                        // by sender
};

}  // namespace pipeshard
