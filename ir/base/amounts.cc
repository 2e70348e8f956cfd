#include "ir/base/amounts.h"

#include <array>

#include <fmt/format.h>

namespace pipeshard {
namespace {

std::string formatScaled(double amount, double step, const std::array<const char*, 6>& units) {
  size_t unit = 0;
  while (amount >= step && unit + 1 < units.size()) {
    amount /= step;
    ++unit;
  }
  const int decimals = unit == 0 || amount >= 99.95 ? 0 : amount >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", amount, decimals, units[unit]);
}

}  // namespace

std::string formatBytes(int64_t bytes) {
  return formatScaled(static_cast<double>(bytes), 1024, {"B", "KiB", "MiB", "GiB", "TiB", "PiB"});
}

std::string formatFlops(int64_t flops) {
  return formatScaled(static_cast<double>(flops), 1000,
                      {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"});
}

std::string formatNanoseconds(int64_t ns) {
  const auto time = static_cast<double>(ns);
  if (time < 1e6) return fmt::format("{:.1f} us", time / 1e3);
  return time < 1e9 ? fmt::format("{:.2f} ms", time / 1e6) : fmt::format("{:.3f} s", time / 1e9);
}

}  // namespace pipeshard
