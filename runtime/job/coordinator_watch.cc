#include "runtime/job/coordinator_parts.h"

#include <limits>

#include <nlohmann/json.hpp>

#include "ir/base/ids_format.h"
#include "runtime/files/content_hash.h"
#include "runtime/job/control_types.h"
#include "transport/control/control_message.h"

// What the coordinator hears while it waits, and what follows from it: messages, ends of processes, silence.
namespace pipeshard {
namespace {

using std::chrono::milliseconds;

// A worker's link answers twice a second, whatever the worker computes; silence means stopped or swapped out.
// Longer than a node's, so that a node that is lost is named rather than its workers.
constexpr milliseconds kSilence{5'000};

constexpr int kMessagesAtOnce = 256;

int64_t wholeSeconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::seconds>(duration).count();
}

}  // namespace

// Nobody was silent while the coordinator itself did not listen (suspended, or in the caller's callback).
Coordinator::Clock::duration Coordinator::forgiveAbsence() {
  const Clock::time_point now = Clock::now();
  const auto absence = now - last_look_;
  last_look_ = now;
  if (absence < std::chrono::seconds(1)) return Clock::duration::zero();
  for (Worker& worker : workers_) {
    worker.last_heard += absence;
    worker.last_progress += absence;
  }
  return absence;
}

std::optional<Failure> Coordinator::lookAround() {
  std::vector<int> descriptors = placement_->descriptors();
  if (signals_) descriptors.push_back(signals_->descriptor());
  ControlEvent event = server_->poll(kLookAround, descriptors);
  // a coordinator that is suspended is, mostly, while it waits
  const Clock::duration absence = forgiveAbsence();
  if (signals_) {
    if (const int signal = signals_->take();
        signal != 0 && keeper_ && interrupted_by_ == 0 && granted_ > result_.resumed_step) {
      endEarly(signal);
    } else if (signal == SIGUSR1 && interrupted_by_ != 0) {
      // schedulers send it to all processes, and node daemons pass theirs on: it asks once
    } else if (signal != 0) {
      const bool loses_nothing = keeper_ && granted_ == result_.resumed_step;
      const JobInterrupted interrupted(signal,
                                       loses_nothing ? std::optional(result_.checkpoint) : std::nullopt);
      stopWorkers(static_cast<int>(interrupted.code()), interrupted.message());
      throw interrupted;
    }
  }
  if (const auto notice = server_->takeNotice())
    report({.kind = JobProgress::Kind::kNotice, .text = *notice});
  std::optional<Failure> failure;
  // Messages first: what a worker said before it ended explains its end. Not all of them, or workers with
  // very short steps would keep the coordinator from looking at anything else.
  for (int taken = 1; event.message; ++taken) {
    keepFirstCause(failure, handleMessage(*event.message));
    event.message = taken < kMessagesAtOnce ? server_->receive(milliseconds(0)) : std::nullopt;
  }
  for (const WorkerEnd& end : placement_->takeEnds()) {
    const std::string& where = workers_[end.rank].where;
    keepFirstCause(failure,
                   Failure{ErrorCode::kPeerUnavailable,
                           fmt::format("{} {}; last seen: {}", nameOf(end.rank), end.description, where)});
  }
  keepFirstCause(failure, placement_->look(absence));
  if (!failure) failure = findStuckWorker();
  return failure;
}

std::optional<Failure> Coordinator::handleMessage(const ControlMessage& message) {
  try {
    if (message.rank >= kFirstNodeRank) return placement_->handleMessage(message);
    if (message.rank >= 0 && message.rank < ranks_) return handleWorker(RankId(message.rank), message);
  } catch (const nlohmann::json::exception& error) {
    return Failure{ErrorCode::kInternal, fmt::format("rank {}: malformed '{}' message: {}", message.rank,
                                                     message.type, error.what())};
  }
  return std::nullopt;
}

std::optional<Failure> Coordinator::handleWorker(RankId rank, const ControlMessage& message) {
  Worker& worker = workers_[rank];
  const nlohmann::json& body = message.body;
  worker.last_heard = Clock::now();
  if (message.lost_before > 0) {
    return Failure{ErrorCode::kPeerUnavailable,
                   fmt::format("{}: {} control messages were lost", nameOf(rank), message.lost_before)};
  }
  if (message.type == kFault) {
    return Failure{ErrorCode::kInternal,
                   fmt::format("{}: {}", nameOf(rank), body.at("message").get<std::string>())};
  }
  if (message.type == kRegister) {
    handleRegister(rank);
  } else if (message.type == "heartbeat") {
    handleHeartbeat(worker, body);
  } else if (message.type == "store") {
    handleStored(rank, body);
  } else if (message.type == "loaded") {
    handleLoaded(rank, body);
  } else if (message.type == "step") {
    return handleStep(rank, worker, body);
  } else if (message.type == "saved") {
    handleSaved(rank, body);
  } else if (message.type == "finished") {
    worker.finished = true;
    result_.ranks[rank].peak_resident_bytes = body.at("peak_resident_bytes").get<int64_t>();
  } else if (message.type == "error") {
    const ErrorCode code = knownErrorCode(body.at("code").get<int>());
    return Failure{code, fmt::format("{}: {}", nameOf(rank), body.at("message").get<std::string>()),
                   code != ErrorCode::kPeerUnavailable && code != ErrorCode::kHang};
  }
  return std::nullopt;
}

// What other workers have stored before this one came.
void Coordinator::handleRegister(RankId rank) {
  for (const nlohmann::json& entry : stored_) send(rank, "store", entry);
}

void Coordinator::handleStored(RankId sender, const nlohmann::json& body) {
  stored_.push_back(body);
  for (RankId rank : workers_.ids()) {
    if (rank != sender && server_->isRegistered(rank.index())) send(rank, "store", body);
  }
}

void Coordinator::handleHeartbeat(Worker& worker, const nlohmann::json& body) {
  worker.where = body.at("where").get<std::string>();
  const auto progress = body.at("progress").get<uint64_t>();
  const bool may_take_its_time = !body.at("computing").get<bool>();
  if (progress != worker.progress || may_take_its_time) worker.last_progress = Clock::now();
  worker.progress = progress;
}

void Coordinator::handleLoaded(RankId rank, const nlohmann::json& body) {
  Worker& worker = workers_[rank];
  RankResult& result = result_.ranks[rank];
  worker.loaded = true;
  worker.last_progress = Clock::now();
  worker.where = "loaded";
  result.arena_bytes = body.at("arena_bytes").get<int64_t>();
  result.constant_bytes = body.at("constant_bytes").get<int64_t>();
  result.communicator_bytes = body.at("communicator_bytes").get<int64_t>();
  const nlohmann::json& memory = body.at("memory");
  result.memory = {memory.at("parameters"),  memory.at("states"),    memory.at("gradients"),
                   memory.at("activations"), memory.at("workspace"), memory.at("padding")};
  report({.kind = JobProgress::Kind::kLoaded, .rank = rank});
}

void Coordinator::handleSaved(RankId rank, const nlohmann::json& body) {
  PIPESHARD_CHECK(keeper_.has_value(), "rank {} has saved what nobody asked for", rank);
  SavedPart part{body.at("step").get<int64_t>(),
                 {body.at("file").get<std::string>(), body.at("bytes").get<int64_t>(),
                  hashFromText(body.at("hash").get<std::string>()).value_or(0)},
                 body.value("error", "")};
  const std::optional<Checkpoint> checkpoint = keeper_->take(rank, std::move(part));
  if (!checkpoint) return;
  result_.checkpoint = checkpoint->directory;
  report({.kind = JobProgress::Kind::kCheckpoint, .step = checkpoint->step, .text = checkpoint->directory});
}

std::optional<Failure> Coordinator::handleStep(RankId rank, Worker& worker, const nlohmann::json& body) {
  const auto step = body.at("step").get<int64_t>();
  if (step != worker.steps_done + 1 || step > granted_) {
    return Failure{ErrorCode::kInternal,
                   fmt::format("rank {}: reported step {} after step {}", rank, step, worker.steps_done)};
  }
  worker.steps_done = step;
  worker.where = fmt::format("step {} done", step);
  const size_t index = step - result_.resumed_step - result_.steps_done - 1;
  while (open_steps_.size() <= index) {
    OpenStep& open = open_steps_.emplace_back();
    open.result.compute_seconds.resize(ranks_);
    open.result.transfer_seconds.resize(ranks_);
    open.dumps.resize(ranks_);
  }
  StepResult& result = open_steps_[index].result;
  result.compute_seconds[rank] = body.at("compute_seconds").get<double>();
  result.transfer_seconds[rank] = body.at("transfer_seconds").get<double>();
  result.seconds = std::max(result.seconds, body.at("seconds").get<double>());
  if (body.contains("loss")) {
    result.loss =
        body["loss"].is_null() ? std::numeric_limits<double>::quiet_NaN() : body["loss"].get<double>();
  }
  if (body.contains("losses")) {
    for (const nlohmann::json& loss : body["losses"]) {
      result.losses.push_back(loss.is_null() ? std::numeric_limits<double>::quiet_NaN() : loss.get<double>());
    }
  }
  if (body.contains("dump")) open_steps_[index].dumps[rank.index()] = body["dump"].get<std::string>();
  return std::nullopt;
}

std::optional<Failure> Coordinator::findStuckWorker() const {
  const Clock::time_point now = Clock::now();
  for (RankId rank : workers_.ids()) {
    const Worker& worker = workers_[rank];
    if (!worker.started) continue;
    if (now - worker.last_heard >= kSilence) {
      return Failure{ErrorCode::kPeerUnavailable,
                     fmt::format("{} has not answered for {} s{}; last seen: {}", nameOf(rank),
                                 wholeSeconds(kSilence), placement_->processState(rank), worker.where)};
    }
    if (worker.loaded && !worker.finished && now - worker.last_progress >= spec_.progress_timeout) {
      return Failure{ErrorCode::kHang,
                     fmt::format("{} answers, but its computation has made no progress for {} s; it is at: "
                                 "{}. If one operator may take so long, raise --progress-timeout",
                                 nameOf(rank), wholeSeconds(spec_.progress_timeout), worker.where)};
    }
  }
  return std::nullopt;
}

}  // namespace pipeshard
