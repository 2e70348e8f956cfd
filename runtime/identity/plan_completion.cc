#include "runtime/identity/plan_completion.h"

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr std::chrono::milliseconds kAMoment{20};

}  // namespace

PlanCompletion::PlanCompletion(CompletePlanHere complete, std::string plan_directory, int64_t held_out_rows)
    : plan_directory_(std::move(plan_directory)) {
  work_ = std::async(std::launch::async, [this, complete = std::move(complete), held_out_rows] {
    complete(plan_directory_, held_out_rows, [this](const std::string& phase) { return say(phase); });
  });
}

PlanCompletion::~PlanCompletion() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  if (work_.valid()) work_.wait();
}

bool PlanCompletion::say(const std::string& phase) {
  const std::lock_guard lock(mutex_);
  phase_ = phase;
  return !stop_;
}

bool PlanCompletion::isDone() const { return work_.wait_for(kAMoment) == std::future_status::ready; }

void PlanCompletion::take() try { work_.get(); } catch (Error& error) {
  error.addContext(
      fmt::format("{} is not whole on this host, and what is missing cannot be made here (copy the folder "
                  "from the coordinator's host)",
                  plan_directory_));
  throw;
}

std::optional<std::string> PlanCompletion::takeNotice() {
  const std::lock_guard lock(mutex_);
  if (phase_.empty()) return std::nullopt;
  return fmt::format("making what is not here of {}: {}", plan_directory_, std::exchange(phase_, ""));
}

}  // namespace pipeshard
