#include "runtime/trace/clock_alignment.h"

#include <algorithm>
#include <cmath>

namespace pipeshard {

void ClockAlignment::Best::add(const ClockAnswer& other) {
  if (other.answered < other.asked) return;
  if (!answer || other.answered - other.asked < roundTrip()) answer = other;
}

int64_t ClockAlignment::toOwn(int64_t theirs) const {
  const Best& first = before_.answer ? before_ : after_;
  const Best& last = after_.answer ? after_ : before_;
  if (!first.answer) return theirs;
  const int64_t since = theirs - first.answer->theirs;
  const int64_t span = last.answer->theirs - first.answer->theirs;
  if (span <= 0) return first.middle() + since;
  // The part that differs from `since` is small: doubles lose nothing that matters.
  const double drift =
      static_cast<double>((last.middle() - first.middle()) - span) / static_cast<double>(span);
  return first.middle() + since + std::llround(static_cast<double>(since) * drift);
}

int64_t ClockAlignment::uncertainty() const {
  int64_t largest = 0;
  for (const Best* best : {&before_, &after_}) {
    if (best->answer) largest = std::max(largest, (best->roundTrip() + 1) / 2);
  }
  return largest;
}

}  // namespace pipeshard
