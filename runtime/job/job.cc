#include "runtime/job/job.h"

#include <signal.h>
#include <string.h>

namespace pipeshard {
namespace {

std::string describe(int signal, const std::string& checkpoint) {
  const std::string name = fmt::format("SIG{}", ::sigabbrev_np(signal));
  if (checkpoint.empty()) return fmt::format("stopped by {}", name);
  return fmt::format("stopped by {}; {} is there, the same command goes on from it", name, checkpoint);
}

}  // namespace

std::optional<double> StepResult::measure(std::string_view name) const {
  for (const auto& [of, value] : measures) {
    if (of == name) return value;
  }
  return std::nullopt;
}

JobInterrupted::JobInterrupted(int signal, const std::optional<std::string>& checkpoint)
    : Error(ErrorCode::kRequeue, describe(signal, checkpoint.value_or(""))),
      signal_(signal),
      loses_nothing_(checkpoint.has_value()) {}

}  // namespace pipeshard
