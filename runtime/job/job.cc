#include "runtime/job/job.h"

#include <signal.h>
#include <string.h>

namespace pipeshard {
namespace {

std::string describe(int signal, const std::optional<std::string>& checkpoint) {
  const std::string stopped = fmt::format("stopped by SIG{}", ::sigabbrev_np(signal));
  if (!checkpoint) return stopped;
  if (checkpoint->empty())
    return stopped + " before there was a checkpoint; the same command begins from the start";
  return fmt::format("{}; {} is there, the same command goes on from it", stopped, *checkpoint);
}

}  // namespace

std::optional<double> StepResult::measure(std::string_view name) const {
  for (const auto& [of, value] : measures) {
    if (of == name) return value;
  }
  return std::nullopt;
}

JobInterrupted::JobInterrupted(int signal, const std::optional<std::string>& checkpoint)
    : Error(ErrorCode::kRequeue, describe(signal, checkpoint)),
      signal_(signal),
      goes_on_(checkpoint && !checkpoint->empty()) {}

}  // namespace pipeshard
