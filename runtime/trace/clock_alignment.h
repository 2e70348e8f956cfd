// The clock of another machine, from questions that it answers over the control connection. Each host's
// CLOCK_MONOTONIC begins somewhere, and runs some millionths faster or slower; ranks of one host share one.
//
// An answer that came back after `round trip` was read from the other clock somewhere between question and
// answer: taking the middle is wrong by half the round trip at most. Of many answers, the fastest one counts
// (Cristian 1989; NTP's filter). Measured before and after a job, the difference of the clocks is taken as a
// straight line between.
//
//   ClockAlignment clock;
//   // round trip 100: theirs is 5010 ahead, +- 50
//   clock.add({.asked = 100, .theirs = 5'160, .answered = 200});
//   clock.toOwn(5'160) == 150
#pragma once

#include <cstdint>
#include <optional>

namespace pipeshard {

// Nanoseconds; asked and answered on this clock.
struct ClockAnswer {
  int64_t asked = 0;
  int64_t theirs = 0;
  int64_t answered = 0;
};

class ClockAlignment {
 public:
  void add(const ClockAnswer& answer) { (second_half_ ? after_ : before_).add(answer); }
  // What is added from here on is a second measurement, some time later.
  void beginAfter() { second_half_ = true; }
  // What their clock shows at a moment when it shows `theirs`, on this clock. Without answers: the same.
  int64_t toOwn(int64_t theirs) const;
  // What it may be wrong by: the larger one's half round trip.
  int64_t uncertainty() const;

 private:
  struct Best {
    std::optional<ClockAnswer> answer;
    void add(const ClockAnswer& other);
    int64_t roundTrip() const { return answer->answered - answer->asked; }
    // on this clock, when theirs was answer->theirs
    int64_t middle() const { return answer->asked + roundTrip() / 2; }
  };

  bool second_half_ = false;
  Best before_;
  Best after_;
};

}  // namespace pipeshard
