#include "transport/control/control_link.h"

namespace pipeshard {

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
