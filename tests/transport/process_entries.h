// What this process has: its threads (/proc/self/task) and descriptors (/proc/self/fd), counted.
#pragma once

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <thread>

namespace pipeshard::testing {

inline int entriesOf(const char* folder) {
  const auto entries = std::filesystem::directory_iterator(folder);
  return static_cast<int>(std::distance(begin(entries), end(entries)));
}

// The smallest number seen within `limit`, or the first that is at most `enough`: a thread that has been
// joined stays listed until the kernel has taken it off.
inline int leastEntriesOf(const char* folder, std::chrono::milliseconds limit, int enough = 0) {
  const auto end = std::chrono::steady_clock::now() + limit;
  int least = entriesOf(folder);
  while (least > enough && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    least = std::min(least, entriesOf(folder));
  }
  return least;
}

}  // namespace pipeshard::testing
