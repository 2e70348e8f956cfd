// What planning says while it works, and how it is stopped.
#pragma once

#include <atomic>
#include <functional>
#include <string>

namespace pipeshard {

// Called when a phase of the work begins ("reading the model"). What it throws ends the work.
using ProgressCallback = std::function<void(const std::string&)>;

// How a search for a plan is cut short: `asked` while `searching` means "the best so far".
struct Interruption {
  std::atomic<bool> asked = false;
  std::atomic<bool> searching = false;
};

}  // namespace pipeshard
