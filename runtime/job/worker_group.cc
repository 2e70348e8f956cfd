#include "runtime/job/worker_group.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/amounts.h"
#include "ir/base/ids.h"
#include "ir/base/text_file.h"
#include "runtime/data/unpacked_file.h"
#include "runtime/evaluation/rank_evaluation.h"
#include "runtime/execute/rank_image.h"
#include "runtime/execute/worker_threads.h"
#include "runtime/files/durable_folder.h"
#include "runtime/job/worker_arguments.h"
#include "runtime/machine/control_group.h"
#include "runtime/machine/handover.h"
#include "runtime/trace/trace_memory.h"
#include "transport/control/control_message.h"
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

// The process that the rank had, told of its next attempt. Nothing: there is none, or it has ended meanwhile.
std::optional<KeptWorker> takeKept(KeptWorkers& kept, const WorkerOptions& options) {
  auto found = kept.workers.extract(options.rank);
  if (found.empty() || found.mapped().process.tryReap()) return std::nullopt;
  const AttemptMessage next = attemptMessage(options);
  if (!handOver(found.mapped().attempts, next.text, next.descriptors)) return std::nullopt;
  return std::move(found.mapped());
}

}  // namespace

WorkerGroup::WorkerGroup(const WorkerGroupSpec& spec)
    : segments_(SharedSegments::create(spec.ranks.size())),
      memory_group_(readMemoryGroup(::getpid())),
      memory_kills_(countMemoryKills()),
      log_directory_(spec.options.log_directory),
      plan_directory_(spec.plan_directory),
      threads_(threadsPerWorker(spec.threads, std::ssize(spec.ranks))),
      kept_(spec.kept) {
  WorkerOptions options = spec.options;
  options.directory = spec.plan_directory;
  options.segments = segments_.describe();
  unpacked_ = makeUnpackedFileFor(options.data);
  options.data.unpacked_descriptor = unpacked_.get();
  options.parent = ::getpid();
  KeptWorkers kept = kept_ == nullptr ? KeptWorkers() : std::exchange(*kept_, {});
  if (kept.plan_directory != plan_directory_ || kept.threads != threads_) kept.workers.clear();
  members_.reserve(spec.ranks.size());
  for (RankId rank : spec.ranks) {
    options.rank = rank;
    Descriptor trace;
    if (options.trace_steps > 0) trace = makeTraceMemory();
    options.trace_descriptor = trace.get();
    const std::array<Descriptor, 2> wires = wiresOf(rank, spec.relay);
    for (size_t lane = 0; lane < wires.size(); ++lane) options.wires[lane] = wires[lane].get();
    std::optional<KeptWorker> worker = takeKept(kept, options);
    if (!worker) worker.emplace(start(spec, options));
    members_.push_back({rank, std::move(worker->process), std::move(trace), std::move(worker->attempts)});
  }
}

KeptWorker WorkerGroup::start(const WorkerGroupSpec& spec, WorkerOptions options) const {
  HandoverSockets sockets;
  if (kept_ != nullptr) sockets = makeHandoverSockets();
  options.attempts_descriptor = sockets.child.get();
  const Descriptor keys = giveKeys(options);
  std::vector<std::string> arguments = spec.arguments;
  const std::vector<std::string> own = workerArguments(options);
  arguments.insert(arguments.end(), own.begin(), own.end());
  const std::vector<std::string> environment{fmt::format("OMP_NUM_THREADS={}", threads_)};
  const Descriptor log = openLog(log_directory_, options.rank);
  return {ChildProcess::start(spec.executable, arguments, environment, false, log.get()),
          std::move(sockets.parent)};
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
    if (member.runs()) descriptors.push_back(member.process.descriptor());
  }
  return descriptors;
}

std::vector<WorkerEnd> WorkerGroup::takeEnds() {
  std::vector<WorkerEnd> ends;
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    if (!member.runs() || !member.process.tryReap()) continue;
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
  return std::none_of(members_.begin(), members_.end(), [](const Member& member) { return member.runs(); });
}

void WorkerGroup::kill() {
  for (size_t i = 0; i < members_.size(); ++i) segments_.markDead(RankId(i));
  for (Member& member : members_) member.process.sendKill();
  for (Member& member : members_) member.process.kill();
  killed_ = true;
}

// A worker that does not answer, or computes for longer than this, is not worth the wait: another takes its
// place.
void WorkerGroup::waitForLeaving() {
  const auto end = std::chrono::steady_clock::now() + kLongestLeave;
  while (true) {
    std::vector<pollfd> waits;
    std::vector<Member*> members;
    for (Member& member : members_) {
      if (!member.runs() || !member.attempts.valid()) continue;
      waits.push_back({member.attempts.get(), POLLIN, 0});
      members.push_back(&member);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (waits.empty() || left.count() <= 0) return;
    ::poll(waits.data(), waits.size(), static_cast<int>(left.count()));
    for (size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].revents == 0) continue;
      const std::optional<Handover> word = takeHandover(waits[i].fd);
      if (word && word->text == kLeft && !members[i]->process.tryReap()) {
        kept_->workers.emplace(members[i]->rank,
                               KeptWorker{std::move(members[i]->process), std::move(members[i]->attempts)});
        members[i]->has_left = true;
      } else {
        members[i]->attempts.reset();  // it has ended
      }
    }
  }
}

void WorkerGroup::keep() {
  if (kept_ != nullptr && !killed_) {
    for (size_t i = 0; i < members_.size(); ++i) segments_.markDead(RankId(i));
    for (Member& member : members_) {
      if (member.runs() && member.attempts.valid() && !handOver(member.attempts, kLeave))
        member.attempts.reset();
    }
    kept_->plan_directory = plan_directory_;
    kept_->threads = threads_;
    waitForLeaving();
  }
  kill();
}

std::vector<RankId> WorkerGroup::unkillable() const {
  std::vector<RankId> ranks;
  for (const Member& member : members_) {
    if (killed_ && member.runs()) ranks.push_back(member.rank);
  }
  return ranks;
}

std::vector<std::byte> WorkerGroup::readTrace(RankId rank) const {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const Member& member) { return member.rank == rank; });
  return found == members_.end() || !found->trace.valid() ? std::vector<std::byte>()
                                                          : readTraceMemory(found->trace);
}

WorkerGroupSpec workerGroupFromJson(const nlohmann::json& start) {
  WorkerGroupSpec spec;
  spec.plan_directory = start.at("directory").get<std::string>();
  spec.threads = start.at("threads").get<int>();
  spec.ranks = idsAt<RankId>(start.at("ranks").get<std::vector<size_t>>());
  spec.options = parseWorkerArguments(start.at("arguments").get<std::vector<std::string>>());
  return spec;
}

IdentityRequest filesOf(const WorkerGroupSpec& spec, std::vector<RankId> ranks) {
  const WorkerOptions& options = spec.options;
  IdentityRequest request{spec.plan_directory, std::move(ranks), options.data.path, options.resume};
  request.adopted = options.adopt_directory;
  if (!options.evaluation.asked()) return request;
  request.held_out = options.evaluation.data.path;
  request.evaluation = (std::filesystem::path(spec.plan_directory) / kEvaluationFolder).string();
  return request;
}

void forEachTracePiece(
    const WorkerGroup& workers, const std::function<void(const std::string&)>& say,
    const std::function<void(nlohmann::json place, std::span<const std::byte> piece)>& use) {
  for (const RankId rank : workers.ranks()) {
    std::vector<std::byte> bytes;
    try {
      bytes = workers.readTrace(rank);
    } catch (const Error& error) {
      say(error.message());
    }
    for (size_t offset = 0; offset < std::max<size_t>(1, bytes.size()); offset += kMaxControlBytes) {
      use({{"rank", rank.index()}, {"offset", offset}, {"total", bytes.size()}},
          std::span(bytes).subspan(offset, std::min(kMaxControlBytes, bytes.size() - offset)));
    }
  }
}

nlohmann::json statesToJson(const WorkerGroup& workers) {
  nlohmann::json body = nlohmann::json::object();
  for (const RankId rank : workers.ranks()) {
    const ProcessState state = readProcessState(workers.pid(rank));
    if (state != ProcessState::kUnknown)
      body["states"].push_back({{"rank", rank.index()}, {"state", nameOf(state)}});
  }
  return body;
}

std::map<RankId, ProcessState> statesFromJson(const nlohmann::json& body) {
  std::map<RankId, ProcessState> states;
  if (!body.contains("states")) return states;
  for (const nlohmann::json& entry : body["states"]) {
    const auto name = entry.at("state").get<std::string>();
    const std::optional<ProcessState> state = processStateOf(name);
    if (!state) fail(ErrorCode::kInternal, "'{}' is no state of a process", name);
    states.emplace(entry.at("rank").get<size_t>(), *state);
  }
  return states;
}

}  // namespace pipeshard
