#include "runtime/job/worker_group.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "runtime/execute/rank_image.h"
#include "runtime/execute/worker_threads.h"
#include "runtime/trace/trace_memory.h"

namespace pipeshard {

WorkerGroup::WorkerGroup(const WorkerGroupSpec& spec) : segments_(SharedSegments::create(spec.ranks.size())) {
  const int workers = spec.ranks.size();
  const int threads = threadsPerWorker(spec.threads, workers);
  WorkerOptions options = spec.options;
  options.segments = segments_.describe();
  options.parent = ::getpid();
  members_.reserve(spec.ranks.size());
  for (RankId rank : spec.ranks) {
    options.rank = rank;
    options.directory =
        (std::filesystem::path(spec.plan_directory) / "ranks" / rankDirectoryName(rank)).string();
    Descriptor trace;
    if (options.trace_steps > 0) trace = makeTraceMemory();
    options.trace_descriptor = trace.get();
    std::vector<std::string> arguments = spec.arguments;
    const std::vector<std::string> own = workerArguments(options);
    arguments.insert(arguments.end(), own.begin(), own.end());
    std::vector<std::string> environment = workerEnvironment(options);
    environment.push_back(fmt::format("OMP_NUM_THREADS={}", threads));
    members_.push_back(
        {rank, ChildProcess::start(spec.executable, arguments, environment), std::move(trace)});
  }
}

int WorkerGroup::pid(RankId rank) const {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const Member& member) { return member.rank == rank; });
  return found == members_.end() ? 0 : found->process.pid();
}

std::vector<RankId> WorkerGroup::ranks() const {
  std::vector<RankId> ranks;
  for (const Member& member : members_) ranks.push_back(member.rank);
  return ranks;
}

std::vector<int> WorkerGroup::descriptors() const {
  std::vector<int> descriptors;
  for (const Member& member : members_) {
    if (!member.process.isReaped()) descriptors.push_back(member.process.descriptor());
  }
  return descriptors;
}

std::vector<WorkerEnd> WorkerGroup::takeEnds() {
  std::vector<WorkerEnd> ends;
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    if (member.process.isReaped() || !member.process.tryReap()) continue;
    segments_.markDead(RankId(i));
    ends.push_back({member.rank, member.process.describeEnd()});
  }
  return ends;
}

bool WorkerGroup::allEnded() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.process.isReaped(); });
}

void WorkerGroup::kill() {
  for (size_t i = 0; i < members_.size(); ++i) segments_.markDead(RankId(i));
  for (Member& member : members_) member.process.kill();
}

std::vector<std::byte> WorkerGroup::readTrace(RankId rank) const {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const Member& member) { return member.rank == rank; });
  return found == members_.end() || !found->trace.valid() ? std::vector<std::byte>()
                                                          : readTraceMemory(found->trace);
}

std::string describeProcessState(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (pid <= 0 || !std::getline(file, line)) return "";
  const size_t end = line.rfind(')');
  const char state = end == std::string::npos || end + 2 >= line.size() ? '?' : line[end + 2];
  if (state == 'T') return " (it is stopped, as by SIGSTOP)";
  if (state == 't') return " (a debugger has stopped it)";
  if (state == 'D') return " (it waits inside the kernel, as for a disk or network file system)";
  return "";
}

}  // namespace pipeshard
