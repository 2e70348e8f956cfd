#include "ir/base/amounts.h"

#include <array>
#include <charconv>
#include <map>

#include <fmt/format.h>

#include "ir/base/error.h"

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

std::string formatShare(int64_t part, int64_t whole) {
  return fmt::format("{:.1f}%",
                     whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0.0);
}

int64_t parseBytes(const std::string& option, const std::string& text) {
  static const std::map<std::string, double> kUnits = {
      {"", 1},      {"B", 1},      {"kB", 1e3},      {"KB", 1e3},      {"MB", 1e6},       {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1024}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1ll << 40}};
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const auto unit = kUnits.find(std::string(rest, end));
  const double bytes = error == std::errc() && unit != kUnits.end() ? number * unit->second : 0;
  if (!(bytes >= 1) || bytes > 9e18)
    fail(ErrorCode::kUsage, "{} {}: expected a number of bytes, e.g. 16GB, 1.5GiB or 800000", option, text);
  return bytes;
}

}  // namespace pipeshard
