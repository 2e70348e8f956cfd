#include "tools/console.h"

#include <cstdio>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

#include "tools/output/standard_streams.h"

namespace pipeshard {
namespace {

constexpr std::chrono::seconds kQuiet{2};

}  // namespace

Progress::Progress()
    : terminal_(isatty(STDERR_FILENO) == 1), last_output_(std::chrono::steady_clock::now()) {}

Progress::~Progress() { clear(); }

void Progress::clear() {
  if (terminal_ && shown_) printControl(stderr, kEraseLine);
  shown_ = false;
}

void Progress::phase(const std::string& text) {
  const auto now = std::chrono::steady_clock::now();
  if (terminal_) {
    printControl(stderr, kEraseLine);
    fmt::print(stderr, "{} ...", text);
    shown_ = true;
  } else if (now - last_output_ >= kQuiet) {
    fmt::print(stderr, "{} ...\n", text);
  } else {
    return;
  }
  std::fflush(stderr);
  last_output_ = now;
}

void noteCrowding(int workers) {
  const int processors = std::thread::hardware_concurrency();
  if (processors == 0 || workers <= 2 * processors) return;
  fmt::print(stderr,
             "note: {} workers share the {} processor{} of this machine: they take turns, and the times say "
             "nothing about a cluster\n",
             workers, processors, processors == 1 ? "" : "s");
}

int reportError(const Error& error) {
  fmt::print(stderr, "pipeshard: {}: {}\n", errorCodeName(error.code()), error.message());
  std::fflush(stderr);
  return static_cast<int>(error.code());
}

}  // namespace pipeshard
