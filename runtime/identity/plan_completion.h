// What a host does before its ranks read a plan: where its disk is its own, the coordinator's host may have
// made more beside plan.json than was copied here. The work goes on in a thread of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>

namespace pipeshard {

// Makes what the plan directory lacks: programs, and those that evaluate so many held-out examples (0: none
// do). `goes_on` is called when a phase of the work begins; false: it is to end, with an exception.
using CompletePlanHere = std::function<void(const std::string& plan_directory, int64_t held_out_rows,
                                            const std::function<bool(const std::string& phase)>& goes_on)>;

class PlanCompletion {
 public:
  PlanCompletion(CompletePlanHere complete, std::string plan_directory, int64_t held_out_rows);  // begins
  PlanCompletion(const PlanCompletion&) = delete;
  PlanCompletion& operator=(const PlanCompletion&) = delete;
  ~PlanCompletion();  // ends it before its next phase

  // Waits a moment for it: most often nothing is to be made.
  bool isDone() const;
  // When it is done. Errors: those of the work, with the folder.
  void take();
  // A line for people, of the phase that has begun since the last one.
  std::optional<std::string> takeNotice();

 private:
  bool say(const std::string& phase);

  const std::string plan_directory_;
  std::mutex mutex_;
  std::string phase_;  // that nobody has been told of
  bool stop_ = false;
  std::future<void> work_;  // last: begun when all else is there
};

}  // namespace pipeshard
