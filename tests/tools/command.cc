#include "tests/tools/command.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace pipeshard {

namespace fs = std::filesystem;

pid_t startPipeshard(const std::vector<std::string>& arguments, const fs::path& output,
                     const fs::path& errors, const std::function<void()>& in_process) {
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error("fork failed");
  if (pid > 0) return pid;
  if (chdir(PIPESHARD_SOURCE_DIR) != 0) _exit(126);
  ::setenv("PIPESHARD_PROFILE", "off", 1);  // whatever machine this is: only --profile has one read
  const int out = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int err = open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int in = open("/dev/null", O_RDONLY);
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  if (in_process) in_process();
  std::vector<char*> argv = {const_cast<char*>(PIPESHARD_EXECUTABLE)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(PIPESHARD_EXECUTABLE, argv.data());
  _exit(127);
}

CommandResult finishPipeshard(pid_t pid, const fs::path& output, const fs::path& errors,
                              std::chrono::seconds limit) {
  const auto start = std::chrono::steady_clock::now();
  CommandResult result;
  int status = 0;
  rusage usage{};
  const auto finished = [&] { return wait4(pid, &status, WNOHANG, &usage) == pid; };
  if (!eventually(finished, limit)) {
    kill(pid, SIGKILL);
    wait4(pid, &status, 0, &usage);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.peak_kilobytes = usage.ru_maxrss;
  result.output = readFile(output);
  result.errors = readFile(errors);
  return result;
}

CommandResult runPipeshard(const std::vector<std::string>& arguments, std::chrono::seconds limit) {
  const TemporaryFolder folder;
  const pid_t pid = startPipeshard(arguments, folder.path() / "out", folder.path() / "err");
  return finishPipeshard(pid, folder.path() / "out", folder.path() / "err", limit);
}

CommandProcess::CommandProcess(const fs::path& folder, const std::string& name,
                               const std::vector<std::string>& arguments,
                               const std::function<void()>& in_process)
    : output_(folder / (name + ".out")), errors_(folder / (name + ".err")) {
  // Of a process of the same name: this one has said nothing yet.
  for (const fs::path& said : {output_, errors_}) fs::remove(said);
  pid_ = startPipeshard(arguments, output_, errors_, in_process);
}

std::string CommandProcess::output() const { return readFile(output_); }
std::string CommandProcess::errors() const { return readFile(errors_); }

bool CommandProcess::comes(const std::string& text, int times) const {
  const auto has_come = [&] {
    int found = 0;
    for (const std::string& said : {output(), errors()}) {
      for (size_t at = said.find(text); at != std::string::npos; at = said.find(text, at + text.size()))
        ++found;
    }
    return found >= times;
  };
  return eventually(has_come, kPatience);
}

CommandResult CommandProcess::finish(std::chrono::seconds limit) const {
  return finishPipeshard(pid_, output_, errors_, limit);
}

std::vector<pid_t> processesMentioning(const std::string& text) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (!std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; })) continue;
    const pid_t pid = static_cast<pid_t>(std::atol(name.c_str()));
    if (pid != getpid() && readFile(entry.path() / "cmdline").find(text) != std::string::npos)
      found.push_back(pid);
  }
  return found;
}

std::vector<pid_t> workersOf(const std::string& plan, std::optional<int> rank) {
  const std::string end(1, '\0');  // of an argument
  const std::string text = plan + end + "--rank" + end;
  return processesMentioning(rank ? text + std::to_string(*rank) + end : text);
}

std::string readFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void writeFile(const fs::path& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
}

}  // namespace pipeshard
