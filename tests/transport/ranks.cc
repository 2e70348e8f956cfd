#include "tests/transport/ranks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <thread>

namespace pipeshard::testing {
namespace {

[[noreturn]] void runChild(const RankBody& body, int rank, int output) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  int code = 0;
  std::string message;
  try {
    body(rank);
  } catch (const Error& error) {
    code = static_cast<int>(error.code());
    message = error.what();
  } catch (const std::exception& error) {
    code = 1;
    message = error.what();
  }
  if (!message.empty() && ::write(output, message.data(), message.size()) < 0) code = 2;
  ::_exit(code);
}

std::string readAll(int descriptor) {
  std::string text;
  std::array<char, 4096> part;
  for (ssize_t n = 0; (n = ::read(descriptor, part.data(), part.size())) > 0;) text.append(part.data(), n);
  return text;
}

bool allEnded(const std::vector<pid_t>& ranks, std::vector<bool>& ended, std::vector<RankResult>& results) {
  bool all = true;
  for (size_t i = 0; i < ranks.size(); ++i) {
    int status = 0;
    if (!ended[i] && ::waitpid(ranks[i], &status, WNOHANG) == ranks[i]) {
      ended[i] = true;
      if (WIFEXITED(status)) results[i].exit_code = WEXITSTATUS(status);
      if (WIFSIGNALED(status)) results[i].signal = WTERMSIG(status);
    }
    all = all && ended[i];
  }
  return all;
}

}  // namespace

std::vector<RankResult> runRanks(int size, const RankBody& body, std::chrono::milliseconds deadline,
                                 const Meanwhile& meanwhile) {
  std::vector<pid_t> ranks;
  std::vector<int> outputs;
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    const pid_t child = ::fork();
    if (child < 0) throw std::runtime_error("fork");
    if (child == 0) {
      for (const int other : outputs) ::close(other);
      ::close(ends[0]);
      runChild(body, rank, ends[1]);
    }
    ::close(ends[1]);
    ranks.push_back(child);
    outputs.push_back(ends[0]);
  }
  if (meanwhile) meanwhile(ranks);
  const auto end = std::chrono::steady_clock::now() + deadline;
  std::vector<RankResult> results(ranks.size());
  std::vector<bool> ended(ranks.size());
  while (!allEnded(ranks, ended, results)) {
    if (std::chrono::steady_clock::now() > end) {
      for (size_t i = 0; i < ranks.size(); ++i) {
        if (ended[i]) continue;
        results[i].timed_out = true;
        ::kill(ranks[i], SIGKILL);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    results[i].error = readAll(outputs[i]);
    ::close(outputs[i]);
  }
  return results;
}

void expectSuccess(const std::vector<RankResult>& results) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const RankResult& result = results[rank];
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << (result.timed_out ? " did not end in time" : "")
                                   << " signal " << result.signal << ": " << result.error;
  }
}

void expectError(const RankResult& result, ErrorCode code, const std::vector<std::string>& parts) {
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit_code, static_cast<int>(code)) << result.error;
  for (const std::string& part : parts)
    EXPECT_NE(result.error.find(part), std::string::npos) << "'" << part << "' is not in: " << result.error;
}

void failRank(const std::string& message) { throw std::runtime_error(message); }

}  // namespace pipeshard::testing
