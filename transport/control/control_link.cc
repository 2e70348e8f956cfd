#include "transport/control/control_link.h"

namespace pipeshard {

bool NoticeRate::isDue(uint64_t dropped) {
  const auto now = std::chrono::steady_clock::now();
  if (dropped == noticed_ || (time_ && now - *time_ < std::chrono::minutes(1))) return false;
  noticed_ = dropped;
  time_ = now;
  return true;
}

bool acceptSequence(Numbering& numbering, ControlMessage& message, ControlCounters& counters) {
  if (message.sequence <= numbering.received) {
    ++counters.duplicate;
    return false;
  }
  message.lost_before = message.sequence - numbering.received - 1;
  counters.lost += message.lost_before;
  numbering.received = message.sequence;
  return true;
}

}  // namespace pipeshard
