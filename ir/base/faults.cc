#include "ir/base/faults.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace pipeshard {

void throwFaults(std::string_view what, const std::vector<std::string>& faults) {
  if (faults.empty()) return;
  if (faults.size() == 1) fail(ErrorCode::kConfiguration, "{}", faults[0]);
  fail(ErrorCode::kConfiguration, "{}: {} faults:\n  {}", what, faults.size(), fmt::join(faults, "\n  "));
}

}  // namespace pipeshard
