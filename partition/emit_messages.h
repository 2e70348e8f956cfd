// Which values travel between stages, and in which order. Internal to partition/.
#pragma once

#include <string>
#include <vector>

#include "ir/training_graph.h"
#include "partition/emit_cut.h"
#include "partition/schedule.h"

namespace pipeshard {

// One value of one microbatch on its way; the buffer has the same name on both sides.
struct Message {
  ValueId value;
  int microbatch = 0;
  friend bool operator==(const Message&, const Message&) = default;
};

// A value that a piece sends as soon as it has run.
struct Departure {
  int receiver = 0;
  ValueId value;
};

// The pieces that an action of a schedule runs, in order: F runs forward; B backward-input, then backward-weight.
std::vector<Phase> phasesOf(ActionKind kind);

// Every message of a step between forward and backward pieces. A value goes from its producer to each stage that reads it,
// once and directly.
class Messages {
 public:
  Messages(const Cut& cut, const ScheduleOrders& orders);

  // What leaves after the piece: to the nearest stage first, and for one receiver in the order in which it needs them.
  const std::vector<Departure>& departures(int stage, Phase phase) const;

  // All messages from one stage to another in the order in which the sender posts them. The receiver takes them in this
  // order, and never waits longer for it: what stands before a message that it needs was posted before that message.
  const std::vector<Message>& channel(int sender, int receiver) const;

 private:
  size_t stages_;
  std::vector<std::vector<std::vector<Departure>>> departures_;  // by stage, phase
  std::vector<std::vector<Message>> channels_;                   // by sender * stages_ + receiver
};

}  // namespace pipeshard
