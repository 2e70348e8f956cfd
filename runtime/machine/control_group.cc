#include "runtime/machine/control_group.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <vector>

#include <fmt/format.h>

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

// Version 1 writes "no limit" as the largest multiple of a page.
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

std::string firstLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<uint64_t> numberIn(const std::string& text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return number;
}

// The number behind `key` in a file of lines "key number".
std::optional<uint64_t> numberOf(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + " ")) return numberIn(line.substr(key.size() + 1));
  }
  return std::nullopt;
}

// The folder of the process's group under a controller of version 1, or ("") in the one tree of version 2.
// Inside of a container the path in /proc may be that of the host, where only the root of the tree is seen.
fs::path groupOf(int pid, const std::string& controller, const ControlGroupFiles& files) {
  std::ifstream file(files.processes / std::to_string(pid) / "cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::istringstream names(line.substr(first + 1, second - first - 1));
    bool is_it = controller.empty() && second == first + 1;
    for (std::string name; std::getline(names, name, ',');) is_it |= name == controller;
    if (!is_it) continue;
    const std::string below = line.substr(second + 1);
    std::vector<fs::path> roots{files.groups / controller};
    if (controller.empty()) roots = {files.groups, files.groups / "unified"};
    for (const fs::path& root : roots) {
      std::error_code ignored;
      const fs::path group = fs::path(root.string() + below);
      const bool is_tree = !controller.empty() || fs::exists(root / "cgroup.controllers", ignored);
      if (is_tree && fs::is_directory(group, ignored)) return group;
    }
    if (!controller.empty()) return files.groups / controller;
  }
  return {};
}

bool isWithin(const fs::path& group, const ControlGroupFiles& files) {
  return group.string().size() > files.groups.string().size();
}

}  // namespace

bool isFrozen(int pid, const ControlGroupFiles& files) {
  if (const fs::path group = groupOf(pid, "freezer", files); !group.empty()) {
    const std::string state = firstLine(group / "freezer.state");
    if (state == "FROZEN" || state == "FREEZING") return true;
  }
  const fs::path group = groupOf(pid, "", files);
  return !group.empty() && numberOf(group / "cgroup.events", "frozen") == 1;
}

MemoryGroup readMemoryGroup(int pid, const ControlGroupFiles& files) {
  MemoryGroup group;
  const fs::path first = groupOf(pid, "memory", files);
  if (!first.empty() && fs::exists(first / "memory.limit_in_bytes")) {
    group.path = first.string();
  } else {
    group.path = groupOf(pid, "", files).string();
  }
  return readMemoryGroupAgain(group, files);
}

MemoryGroup readMemoryGroupAgain(const MemoryGroup& before, const ControlGroupFiles& files) {
  MemoryGroup group{before.path, {}, 0};
  if (group.path.empty()) return group;
  // The lowest limit on the way up is the one that holds; its kills are counted in the process's own group
  // in version 1, in every group above it in version 2.
  for (fs::path at = group.path; isWithin(at, files); at = at.parent_path()) {
    std::optional<uint64_t> limit = numberIn(firstLine(at / "memory.limit_in_bytes"));
    if (!limit) limit = numberIn(firstLine(at / "memory.max"));
    if (limit && *limit < std::min(kNoLimit, group.limit.value_or(kNoLimit))) group.limit = limit;
  }
  std::optional<uint64_t> kills = numberOf(fs::path(group.path) / "memory.oom_control", "oom_kill");
  if (!kills) kills = numberOf(fs::path(group.path) / "memory.events", "oom_kill");
  group.kills = kills.value_or(0);
  return group;
}

TaskGroup readTaskGroup(int pid, const ControlGroupFiles& files) {
  fs::path group = groupOf(pid, "pids", files);
  if (group.empty()) group = groupOf(pid, "", files);
  if (group.empty()) return {};
  return {group.string(), numberIn(firstLine(group / "pids.max")),
          numberIn(firstLine(group / "pids.current")).value_or(0)};
}

uint64_t countMemoryKills(const ControlGroupFiles& files) {
  return numberOf(files.processes / "vmstat", "oom_kill").value_or(0);
}

}  // namespace pipeshard
