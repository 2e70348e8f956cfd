#include "runtime/machine/process_state.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <string>

namespace pipeshard {
namespace {

struct StateWords {
  ProcessState state;
  std::string_view name;
  std::string_view sentence;
};

constexpr std::array<StateWords, 5> kStateWords{{
    {ProcessState::kUnknown, "", ""},
    {ProcessState::kStopped, "stopped", " (it is stopped, as by SIGSTOP)"},
    {ProcessState::kTraced, "traced", " (a debugger has stopped it)"},
    {ProcessState::kInsideKernel, "inside the kernel",
     " (it waits inside the kernel, as for a disk or network file system)"},
    {ProcessState::kFrozen, "frozen", " (its control group is frozen)"},
}};

const StateWords& wordsOf(ProcessState state) { return kStateWords.at(static_cast<size_t>(state)); }

}  // namespace

ProcessState readProcessState(int pid, const ControlGroupFiles& files) {
  if (isFrozen(pid, files)) return ProcessState::kFrozen;
  std::ifstream file(files.processes / std::to_string(pid) / "stat");
  std::string line;
  if (pid <= 0 || !std::getline(file, line)) return ProcessState::kUnknown;
  const size_t end = line.rfind(')');  // of its name, which may have brackets of its own
  const char state = end == std::string::npos || end + 2 >= line.size() ? '?' : line[end + 2];
  switch (state) {
    case 'T': return ProcessState::kStopped;
    case 't': return ProcessState::kTraced;
    case 'D': return ProcessState::kInsideKernel;
    default: return ProcessState::kUnknown;
  }
}

std::string_view nameOf(ProcessState state) { return wordsOf(state).name; }

std::optional<ProcessState> processStateOf(std::string_view name) {
  const auto found = std::ranges::find(kStateWords, name, &StateWords::name);
  if (found == kStateWords.end()) return std::nullopt;
  return found->state;
}

std::string_view describe(ProcessState state) { return wordsOf(state).sentence; }

}  // namespace pipeshard
