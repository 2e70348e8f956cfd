// What planning says while it works, and how it is stopped.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>

namespace pipeshard {

// Called when a phase of the work begins ("reading the model"). What it throws ends the work.
using ProgressCallback = std::function<void(const std::string&)>;

// How far work has come that is told by shares of it, for progress: " (40 %, about 30 s left)". The time left
// is what the share that is done took, carried on.
class WorkShare {
 public:
  std::string text(double share) const;

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// How a search for a plan is cut short: `asked` while `searching` means "the best so far".
struct Interruption {
  std::atomic<bool> asked = false;
  std::atomic<bool> searching = false;
};

}  // namespace pipeshard
