// Runs the ranks of a test as processes: forked, watched, and killed when a deadline passes, so that a hang
// is a failure within seconds.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "ir/base/error.h"

namespace pipeshard::testing {

struct RankResult {
  int exit_code = -1;  // 0, the code of the Error that ended it, or 1 for a failed require()
  int signal = 0;      // that ended it
  bool timed_out = false;
  std::string error;  // what() of the exception
};

using RankBody = std::function<void(int rank)>;
using Meanwhile = std::function<void(const std::vector<pid_t>& ranks)>;

// Forks `size` processes; each runs body(rank) and ends. `meanwhile` runs here as soon as all are started.
std::vector<RankResult> runRanks(int size, const RankBody& body,
                                 std::chrono::milliseconds deadline = std::chrono::seconds(60),
                                 const Meanwhile& meanwhile = nullptr);

// Fails the current test unless every rank ended well.
void expectSuccess(const std::vector<RankResult>& results);
// Fails the current test unless the rank ended with this error, with all of `parts` in its message.
void expectError(const RankResult& result, ErrorCode code, const std::vector<std::string>& parts);

// Inside a rank: ends it with exit code 1 and the message.
[[noreturn]] void failRank(const std::string& message);
template <typename... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) failRank(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace pipeshard::testing
