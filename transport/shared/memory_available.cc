#include "transport/shared/memory_available.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace pipeshard {
namespace {

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

// The number after `key` in a file of "key number" lines; an empty key takes the first number of the file.
std::optional<size_t> readNumber(const std::filesystem::path& file, const std::string& key) {
  std::ifstream stream(file);
  size_t number = 0;
  if (key.empty()) return stream >> number ? std::optional(number) : std::nullopt;
  for (std::string word; stream >> word;) {
    if (word == key && stream >> number) return number;
  }
  return std::nullopt;
}

size_t groupAllowance(const std::filesystem::path& group) {
  const auto limit = readNumber(group / "memory.max", "");  // "max" is no number: no limit
  const auto used = readNumber(group / "memory.current", "");
  if (!limit || !used) return kUnlimited;
  const size_t reclaimable = readNumber(group / "memory.stat", "inactive_file").value_or(0);
  const size_t held = *used - std::min(*used, reclaimable);
  return *limit - std::min(*limit, held);
}

size_t groupsAllowance() {
  std::ifstream stream("/proc/self/cgroup");
  size_t allowance = kUnlimited;
  for (std::string line; std::getline(stream, line);) {
    if (line.rfind("0::/", 0) != 0) continue;
    const std::filesystem::path root = "/sys/fs/cgroup";
    for (std::filesystem::path path = line.substr(4);; path = path.parent_path()) {
      allowance = std::min(allowance, groupAllowance(root / path));
      if (path.empty()) break;
    }
  }
  return allowance;
}

}  // namespace

size_t availableMemory() {
  const auto kilobytes = readNumber("/proc/meminfo", "MemAvailable:");
  return std::min(kilobytes ? *kilobytes * 1024 : kUnlimited, groupsAllowance());
}

}  // namespace pipeshard
