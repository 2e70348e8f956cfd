// Jobs of small pipelines, and their processes, for tests whose program is the worker, too.
#pragma once

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "runtime/job/coordinator.h"
#include "tests/runtime/pipeline_program.h"
#include "tests/temporary_folder.h"

namespace pipeshard {

using Clock = std::chrono::steady_clock;
inline constexpr int64_t kEndless = 2'000'000;  // steps

// Gone, or a zombie that somebody else has to reap.
inline bool isGone(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return true;
  const size_t end = line.rfind(')');
  return end == std::string::npos || line.compare(end, 4, ") Z ") == 0;
}

inline bool waitUntilGone(const std::vector<int>& pids, std::chrono::seconds limit) {
  const Clock::time_point end = Clock::now() + limit;
  while (Clock::now() < end) {
    if (std::all_of(pids.begin(), pids.end(), isGone)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

// A worker of this program, behind a shell that does something else first.
inline std::string workerBehind(const TemporaryFolder& folder, const std::string& command) {
  const std::string path =
      folder.write("worker", fmt::format("#!/bin/sh\n{}\nexec {} \"$@\"\n", command,
                                         std::filesystem::read_symlink("/proc/self/exe").string()));
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

// A plan directory, and a job of it.
struct JobPlan {
  TemporaryFolder folder;
  JobSpec spec;
  explicit JobPlan(const std::vector<RankImage>& images = pipelineImages(2)) {
    writePlanDirectory(folder.path(), images);
    spec.plan_directory = folder.path();
    spec.data.seed = 5;
  }
};

}  // namespace pipeshard
