#include "planning/request/progress.h"

#include <algorithm>

#include <fmt/format.h>

namespace pipeshard {

std::string WorkShare::text(double share) const {
  const double done = std::clamp(share, 0.0, 1.0);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const std::string left =
      done > 0 ? fmt::format(", about {:.0f} s left", seconds * (1 / done - 1)) : std::string();
  return fmt::format(" ({:.0f} %{})", done * 100, left);
}

}  // namespace pipeshard
