#include "runtime/job/worker_group.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/amounts.h"
#include "ir/base/text_file.h"
#include "runtime/data/unpacked_file.h"
#include "runtime/execute/rank_image.h"
#include "runtime/execute/worker_threads.h"
#include "runtime/files/durable_folder.h"
#include "runtime/job/worker_arguments.h"
#include "runtime/machine/control_group.h"
#include "runtime/trace/trace_memory.h"
#include "transport/wire/host_relay.h"

namespace pipeshard {

namespace {

std::string logFile(const std::string& directory, RankId rank) {
  return (std::filesystem::path(directory) / "ranks" / (rankFileStem(rank) + ".log")).string();
}

// Not valid: there is none.
Descriptor openLog(const std::string& directory, RankId rank) {
  if (directory.empty()) return {};
  const std::string path = logFile(directory, rank);
  makeFolder(std::filesystem::path(path).parent_path());
  Descriptor log(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  if (!log.valid()) failToWrite(path, errno);
  return log;
}

// The rank's ends of its sockets to the relay, for it alone to inherit: they are closed here as soon as it
// has been started, so that its end is seen. Not valid: there is none.
std::array<Descriptor, 2> wiresOf(RankId rank, HostRelay* relay) {
  std::array<Descriptor, 2> wires;
  for (size_t lane = 0; relay != nullptr && lane < wires.size(); ++lane) {
    wires[lane].reset(relay->attach(rank, static_cast<int>(lane)));
    ::fcntl(wires[lane].get(), F_SETFD, 0);
  }
  return wires;
}

}  // namespace

WorkerGroup::WorkerGroup(const WorkerGroupSpec& spec)
    : segments_(SharedSegments::create(spec.ranks.size())),
      memory_group_(readMemoryGroup(::getpid())),
      memory_kills_(countMemoryKills()),
      log_directory_(spec.options.log_directory) {
  const int workers = spec.ranks.size();
  const int threads = threadsPerWorker(spec.threads, workers);
  WorkerOptions options = spec.options;
  options.directory = spec.plan_directory;
  options.segments = segments_.describe();
  unpacked_ = makeUnpackedFileFor(options.data);
  options.data.unpacked_descriptor = unpacked_.get();
  options.parent = ::getpid();
  members_.reserve(spec.ranks.size());
  for (RankId rank : spec.ranks) {
    options.rank = rank;
    Descriptor trace;
    if (options.trace_steps > 0) trace = makeTraceMemory();
    options.trace_descriptor = trace.get();
    const std::array<Descriptor, 2> wires = wiresOf(rank, spec.relay);
    for (size_t lane = 0; lane < wires.size(); ++lane) options.wires[lane] = wires[lane].get();
    std::vector<std::string> arguments = spec.arguments;
    const std::vector<std::string> own = workerArguments(options);
    arguments.insert(arguments.end(), own.begin(), own.end());
    std::vector<std::string> environment = workerEnvironment(options);
    environment.push_back(fmt::format("OMP_NUM_THREADS={}", threads));
    const Descriptor log = openLog(log_directory_, rank);
    members_.push_back({rank, ChildProcess::start(spec.executable, arguments, environment, false, log.get()),
                        std::move(trace)});
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
    ends.push_back(endOf(member));
  }
  return ends;
}

// A SIGKILL may be the kernel's: then the counts of its kills have grown.
WorkerEnd WorkerGroup::endOf(const Member& member) const {
  WorkerEnd end{member.rank, member.process.describeEnd()};
  if (!log_directory_.empty())
    end.description += fmt::format("; its log: {}", logFile(log_directory_, member.rank));
  if (killed_ || !member.process.endedBySigkill()) return end;
  const MemoryGroup now = readMemoryGroupAgain(memory_group_);
  const bool in_group = now.kills > memory_group_.kills;
  if (!in_group && (now.limit || countMemoryKills() <= memory_kills_)) return end;
  end.code = ErrorCode::kOutOfMemory;
  end.description = fmt::format(
      "was killed by the kernel for lack of memory ({}); fewer layers a device, more devices, or more memory "
      "help",
      in_group && now.limit
          ? fmt::format("the limit of its control group {} is {}", now.path, formatBytes(*now.limit))
          : "this machine has no more");
  return end;
}

bool WorkerGroup::allEnded() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.process.isReaped(); });
}

void WorkerGroup::kill() {
  for (size_t i = 0; i < members_.size(); ++i) segments_.markDead(RankId(i));
  for (Member& member : members_) member.process.sendKill();
  for (Member& member : members_) member.process.kill();
  killed_ = true;
}

std::vector<RankId> WorkerGroup::unkillable() const {
  std::vector<RankId> ranks;
  for (const Member& member : members_) {
    if (killed_ && !member.process.isReaped()) ranks.push_back(member.rank);
  }
  return ranks;
}

std::vector<std::byte> WorkerGroup::readTrace(RankId rank) const {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const Member& member) { return member.rank == rank; });
  return found == members_.end() || !found->trace.valid() ? std::vector<std::byte>()
                                                          : readTraceMemory(found->trace);
}

std::string describeProcessState(int pid) {
  if (isFrozen(pid)) return " (its control group is frozen)";
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

nlohmann::json statesToJson(const WorkerGroup& workers) {
  nlohmann::json body = nlohmann::json::object();
  for (const RankId rank : workers.ranks()) {
    const std::string state = describeProcessState(workers.pid(rank));
    if (!state.empty()) body["states"].push_back({{"rank", rank.index()}, {"state", state}});
  }
  return body;
}

std::map<RankId, std::string> statesFromJson(const nlohmann::json& body) {
  std::map<RankId, std::string> states;
  if (!body.contains("states")) return states;
  for (const nlohmann::json& entry : body["states"])
    states.emplace(entry.at("rank").get<size_t>(), entry.at("state").get<std::string>());
  return states;
}

}  // namespace pipeshard
