// How a process that does not answer looks from outside.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/machine/control_group.h"

namespace pipeshard {

enum class ProcessState : uint8_t {
  kUnknown,       // nothing to say: it runs or waits as any process, is gone, or cannot be seen
  kStopped,       // as by SIGSTOP
  kTraced,        // a debugger has stopped it
  kInsideKernel,  // it waits there, as for a disk, or is frozen where control groups cannot be seen
  kFrozen,        // its control group is
};

// Of a process of this machine; kUnknown also where `pid` is none. `files`: isFrozen's, and of its status.
ProcessState readProcessState(int pid, const ControlGroupFiles& files = {});

// In messages: "stopped", "traced", "inside the kernel", "frozen"; "" of kUnknown. Back: nothing for any
// other word.
std::string_view nameOf(ProcessState state);
std::optional<ProcessState> processStateOf(std::string_view name);

// For people, behind who it is: " (it is stopped, as by SIGSTOP)"; "" of kUnknown.
std::string_view describe(ProcessState state);

}  // namespace pipeshard
