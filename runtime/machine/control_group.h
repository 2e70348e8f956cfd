// What the kernel's control groups (containers, Slurm, systemd) say of a process: whether it is frozen, and
// whether its memory was limited. Version 1 (a tree per controller) and 2 (one tree) are both known.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace pipeshard {

// Where the kernel says it; other folders are for tests.
struct ControlGroupFiles {
  std::filesystem::path processes = "/proc";
  std::filesystem::path groups = "/sys/fs/cgroup";
};

// False also where nothing is known.
bool isFrozen(int pid, const ControlGroupFiles& files = {});

// A reading of the memory group that a process is in, taken before and after its end: a SIGKILL that nobody
// here has sent was the kernel's, for lack of memory, when the count of such kills has grown.
struct MemoryGroup {
  std::string path;               // in the tree of groups; "": not known
  std::optional<uint64_t> limit;  // bytes; nothing: not limited
  uint64_t kills = 0;             // processes of the group, or of one inside, that were killed for it
};
MemoryGroup readMemoryGroup(int pid, const ControlGroupFiles& files = {});
// The same group again, when the process is gone.
MemoryGroup readMemoryGroupAgain(const MemoryGroup& before, const ControlGroupFiles& files = {});

// How many processes and threads the group of a process may have, and has.
struct TaskGroup {
  std::string path;
  std::optional<uint64_t> limit;  // nothing: not limited, or not known
  uint64_t used = 0;
};
TaskGroup readTaskGroup(int pid, const ControlGroupFiles& files = {});

// Processes of this machine that the kernel has killed for lack of memory since it was started, whatever
// group they were in; 0 where it does not count them.
uint64_t countMemoryKills(const ControlGroupFiles& files = {});

}  // namespace pipeshard
