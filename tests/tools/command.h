// Runs the pipeshard command as a user would, for end-to-end tests.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "tests/temporary_folder.h"

namespace pipeshard {

// How long a test waits for what should come at once, or soon: beside other tests, on a machine with two
// processors. Where a document promises it in seconds, that is looked at, too, with kSlack.
inline constexpr std::chrono::seconds kPatience{60};
inline constexpr std::chrono::seconds kSlack{20};

struct CommandResult {
  int exit_code = -1;  // 128 + signal if one ended it
  std::string output;  // standard output
  std::string errors;  // standard error
  double seconds = 0;
  long peak_kilobytes = 0;  // largest resident set of the process itself
};

// Runs `pipeshard ARGUMENTS...` in the checkout's root; killed after `limit`.
CommandResult runPipeshard(const std::vector<std::string>& arguments,
                           std::chrono::seconds limit = std::chrono::seconds(100));

// Starts it and returns its pid; output goes to the two files. Reap with finishPipeshard. `in_process`:
// called in the new process before it is pipeshard's.
pid_t startPipeshard(const std::vector<std::string>& arguments, const std::filesystem::path& output,
                     const std::filesystem::path& errors, const std::function<void()>& in_process = {});
CommandResult finishPipeshard(pid_t pid, const std::filesystem::path& output,
                              const std::filesystem::path& errors, std::chrono::seconds limit);

// A command that runs while a test goes on. What it says goes to NAME.out and NAME.err of a folder.
class CommandProcess {
 public:
  CommandProcess() = default;  // none
  CommandProcess(const std::filesystem::path& folder, const std::string& name,
                 const std::vector<std::string>& arguments, const std::function<void()>& in_process = {});

  pid_t pid() const { return pid_; }
  std::string output() const;
  std::string errors() const;
  // Whether it has said `text`, on either stream, so many times within kPatience.
  bool comes(const std::string& text, int times = 1) const;
  // Waits for its end; killed after `limit`. Once.
  CommandResult finish(std::chrono::seconds limit = kPatience) const;

 private:
  pid_t pid_ = -1;
  std::filesystem::path output_, errors_;
};

// Processes whose command line contains `text` (the plan directory of a test, say), other than the caller.
std::vector<pid_t> processesMentioning(const std::string& text);

// Workers of the plan directory `plan`: all of them, or those of one rank.
std::vector<pid_t> workersOf(const std::string& plan, std::optional<int> rank = {});

// Waits until f() is true; false if it is not within the limit.
template <typename F>
bool eventually(F&& f, std::chrono::milliseconds limit);

std::string readFile(const std::filesystem::path& path);
void writeFile(const std::filesystem::path& path, const std::string& content);

}  // namespace pipeshard

#include <thread>

template <typename F>
bool pipeshard::eventually(F&& f, std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!f()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}
