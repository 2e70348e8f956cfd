#include "runtime/job/coordinator_parts.h"

#include <algorithm>
#include <limits>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ir/base/ids_format.h"
#include "runtime/files/content_hash.h"
#include "runtime/identity/build_identity.h"
#include "runtime/job/node_pool.h"
#include "runtime/messages/control_types.h"
#include "runtime/rendezvous/host_wire.h"
#include "transport/control/control_message.h"

// What the coordinator hears while it waits, and what follows from it: messages, ends of processes, silence.
namespace pipeshard {
namespace {

using std::chrono::milliseconds;

// A worker's link answers twice a second, whatever the worker computes; silence means stopped or swapped out.
// Longer than a node's, so that a node that is lost is named rather than its workers.
constexpr milliseconds kSilence{5'000};
// That one which has not registered yet may be seen to wait for a disk: it may be frozen, too.
constexpr milliseconds kLongestDisk{15'000};

constexpr int kMessagesAtOnce = 256;

// When nobody moves and some wait: in the first step; later at least this, and so many times the longest wait
// that ended well.
constexpr std::chrono::seconds kFirstStall{120};
constexpr std::chrono::seconds kLeastStall{30};
constexpr int kPausesOfStall = 20;

constexpr std::chrono::seconds kFirstNotice{2};  // while workers load
constexpr std::chrono::seconds kNextNotice{5};

// null: not finite.
double numberOf(const nlohmann::json& number) {
  return number.is_null() ? std::numeric_limits<double>::quiet_NaN() : number.get<double>();
}

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
    worker.last_moved += absence;
  }
  return absence;
}

std::optional<Failure> Coordinator::lookAround() {
  std::vector<int> descriptors = placement_->descriptors();
  if (signals_) descriptors.push_back(signals_->descriptor());
  if (keeper_) descriptors.push_back(keeper_->descriptor());
  if (feed_ && spec_.nodes != nullptr) descriptors.push_back(feed_->newsDescriptor());
  ControlEvent event = server_->poll(kLookAround, descriptors);
  const Clock::duration absence = forgiveAbsence();  // who is suspended is, mostly, while it waits
  heedSignals();
  if (keeper_) tellWhatIsSaved();
  if (feed_) {
    feed_->takeNews();
    if (const auto notice = feed_->takeNotice())
      report({.kind = JobProgress::Kind::kNotice, .text = *notice});
    placement_->sendBatches();
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
    keepFirstCause(failure, Failure{end.code, fmt::format("{} {}; last seen: {}", nameOf(end.rank),
                                                          end.description, where)});
  }
  if (feed_) {
    // nobody stalls who waits for the loader: that has a deadline of its own
    for (Worker& worker : workers_) {
      if (feed_->isAwaited()) worker.last_moved = Clock::now();
    }
    if (const std::optional<Error> fault = feed_->failure())
      keepFirstCause(failure, Failure{fault->code(), fault->message()});
  }
  keepFirstCause(failure, placement_->look(absence));
  if (!failure) failure = findSpoiledWeights();
  if (!failure) failure = findStuckWorker();
  if (!failure) failure = findStall();
  return failure;
}

// Those of this process, and what nodes ask for that were sent one.
void Coordinator::heedSignals() {
  NodePool* const nodes = spec_.nodes;
  int signal = signals_ == nullptr ? 0 : signals_->take();
  // Schedulers signal all processes of a job: what this one is sent after its nodes is the same request.
  // Every line for a reader that is gone is a SIGPIPE.
  bool is_repeated = (signal == SIGUSR1 || signal == SIGPIPE) && interrupted_by_ != 0;
  if (signal != 0 && nodes != nullptr) {
    is_repeated |= interrupted_by_ != 0 && !nodes->wasAskedItself();
    nodes->setAskedItself();
  }
  if (signal == 0 && nodes != nullptr && interrupted_by_ == 0) signal = nodes->takeRequestToEnd().value_or(0);
  if (signal == 0 || is_repeated) return;
  if (keeper_ && interrupted_by_ == 0 && granted_ > result_.resumed_step) return endEarly(signal);
  const bool is_before_any = keeper_ && granted_ == result_.resumed_step;
  const JobInterrupted interrupted(signal, is_before_any ? std::optional(result_.checkpoint) : std::nullopt);
  stopWorkers(interrupted.exitCode(), interrupted.message());
  throw interrupted;
}

// Before there is anything to stop. Where nodes wait, or a checkpoint may be there to go on from, it is heard
// soon after, by who knows of those.
void Coordinator::endWhileReading() {
  if (signals_ == nullptr || spec_.nodes != nullptr || !spec_.checkpoint.directory.empty()) return;
  if (const int signal = signals_->take(); signal != 0) throw JobInterrupted(signal);
}

std::optional<Failure> Coordinator::handleMessage(const ControlMessage& message) {
  try {
    if (isNodeRank(message.rank)) return placement_->handleMessage(message);
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
    return handleRegister(rank, body);
  } else if (message.type == control::kHeartbeat) {
    handleHeartbeat(worker, body);
  } else if (message.type == control::kStore) {
    handleStored(rank, body);
  } else if (message.type == control::kUnreached) {
    return placement_->handleMessage(message);
  } else if (message.type == control::kLoaded) {
    return handleLoaded(rank, body);
  } else if (message.type == control::kStep) {
    return handleStep(rank, worker, body);
  } else if (message.type == control::kEvaluated) {
    handleEvaluated(worker, body);
  } else if (message.type == control::kHashes) {
    return handleHashes(rank, body);
  } else if (message.type == control::kSaved) {
    handleSaved(rank, body);
  } else if (message.type == control::kOperators) {
    handleOperators(rank, body);
  } else if (message.type == control::kFinished) {
    worker.finished = true;
    result_.ranks[rank].peak_resident_bytes = body.at("peak_resident_bytes").get<int64_t>();
    result_.ranks[rank].peak_device_bytes = body.value("peak_device_bytes", int64_t{0});
  } else if (message.type == control::kError) {
    return failureOf(body, nameOf(rank), worker.steps_done,
                     worker.loaded ? "" : placement_->describeUnreached());
  }
  return std::nullopt;
}

// Tells it what other workers have stored before it came. One of an earlier attempt, on a host that was out
// of reach, has nothing to do any more.
std::optional<Failure> Coordinator::handleRegister(RankId rank, const nlohmann::json& body) {
  if (body.value("attempt", 0) != attempt()) {
    send(rank, control::kAbort, nlohmann::json::object());
    server_->forget(rank.index());
    return std::nullopt;
  }
  if (const std::optional<std::string> other = findBuildDifference(body))
    return Failure{ErrorCode::kVersionMismatch, fmt::format("{}: {}", nameOf(rank), *other)};
  for (const nlohmann::json& entry : stored_) send(rank, control::kStore, entry);
  return std::nullopt;
}

void Coordinator::handleStored(RankId sender, const nlohmann::json& body) {
  stored_.push_back(body);
  for (RankId rank : workers_.ids()) {
    if (rank != sender && server_->isRegistered(rank.index())) send(rank, control::kStore, body);
  }
}

void Coordinator::handleHeartbeat(Worker& worker, const nlohmann::json& body) {
  worker.where = body.at("where").get<std::string>();
  const auto progress = body.at("progress").get<uint64_t>();
  const bool may_take_its_time = !body.at("computing").get<bool>();
  if (progress != worker.progress || may_take_its_time) worker.last_progress = Clock::now();
  const bool waiting = body.at("waiting").get<bool>(), idle = body.at("idle").get<bool>();
  const bool moved = progress != worker.progress || waiting != worker.waiting || idle != worker.idle;
  if (worker.waiting && moved) longest_pause_ = std::max(longest_pause_, Clock::now() - worker.last_moved);
  if (moved || (!waiting && !idle)) worker.last_moved = Clock::now();
  worker.waiting = waiting;
  worker.idle = idle;
  worker.progress = progress;
}

std::optional<Failure> Coordinator::handleLoaded(RankId rank, const nlohmann::json& body) {
  const auto programs = body.at("programs").get<std::string>();
  if (programs != programs_[rank]) {
    return Failure{ErrorCode::kVersionMismatch,
                   fmt::format("{} has loaded other programs (digest {}) than the coordinator has looked at "
                               "(digest {}) in {}: another plan was put there, or hosts have different ones; "
                               "start again",
                               nameOf(rank), programs, programs_[rank], spec_.plan_directory)};
  }
  if (const std::optional<std::string> other = compared_.add(nameOf(rank), body))
    return Failure{ErrorCode::kVersionMismatch, *other};
  Worker& worker = workers_[rank];
  RankResult& result = result_.ranks[rank];
  worker.loaded = true;
  worker.last_progress = Clock::now();
  worker.where = "loaded";
  result.arena_bytes = body.at("arena_bytes").get<int64_t>();
  result.constant_bytes = body.at("constant_bytes").get<int64_t>();
  result.communicator_bytes = body.at("communicator_bytes").get<int64_t>();
  result.device = body.value("device", "");
  const nlohmann::json& memory = body.at("memory");
  result.memory = {memory.at("parameters"),  memory.at("states"),    memory.at("gradients"),
                   memory.at("activations"), memory.at("workspace"), memory.at("padding")};
  report({.kind = JobProgress::Kind::kLoaded, .rank = rank, .text = result.device});
  if (rank == RankId(0) && body.contains("transport")) {
    result_.transport = body.at("transport").get<std::string>();
    report({.kind = JobProgress::Kind::kNotice, .text = result_.transport});
  }
  return std::nullopt;
}

std::optional<Failure> Coordinator::handleHashes(RankId rank, const nlohmann::json& body) {
  PIPESHARD_CHECK(replica_check_.has_value(), "rank {} sends hashes that nobody asked for", rank);
  const bool was_known = replica_check_->hasNoCopies();
  std::optional<std::string> difference =
      replica_check_->take(rank, body.at("step").get<int64_t>(),
                           body.at("parts").get<std::vector<std::string>>(), body.at("last").get<bool>());
  if (!was_known && replica_check_->hasNoCopies()) {
    report(
        {.kind = JobProgress::Kind::kNotice,
         .text = "no two ranks of this plan hold copies of the same weights: there is nothing to compare"});
  }
  if (!difference) return std::nullopt;
  if (keeper_) *difference += "; checkpoints since the last good comparison may have it too";
  return Failure{ErrorCode::kReplicasDiffer, std::move(*difference)};
}

void Coordinator::handleOperators(RankId rank, const nlohmann::json& body) {
  RankOperators& operators = result_.ranks[rank].operators;
  operators.steps = body.at("steps").get<int64_t>();
  operators.step_seconds = body.at("seconds").get<double>();
  operators.rates = {body.at("flops").get<double>(), body.at("bytes").get<double>()};
  for (const nlohmann::json& node : body.at("nodes")) {
    operators.nodes.push_back({SubgraphId(node.at("subgraph").get<int>()), node.at("node").get<size_t>(),
                               node.at("runs").get<int64_t>(), node.at("seconds").get<double>()});
  }
}

void Coordinator::handleSaved(RankId rank, const nlohmann::json& body) {
  PIPESHARD_CHECK(keeper_.has_value(), "rank {} has saved what nobody asked for", rank);
  SavedPart part{body.at("step").get<int64_t>(),
                 {body.at("file").get<std::string>(), body.at("bytes").get<int64_t>(),
                  hashFromText(body.at("hash").get<std::string>()).value_or(0)},
                 body.value("error", ""),
                 body.value("not_finite", false)};
  if (!part.not_finite) return keeper_->take(rank, std::move(part), placement_->diskOf(rank));
  if (spoiled_ && spoiled_->done <= part.step) return;
  spoiled_ = Failure{ErrorCode::kNotANumber, keeper_->describeSpoiled(rank, part, result_.checkpoint), true,
                     part.step};
}

// What weights hold is the consequence of a step; the rank that has its loss says more, but its message may
// come later than one that another rank has not written.
std::optional<Failure> Coordinator::findSpoiledWeights() const {
  return spoiled_ && isDone(spoiled_->done) ? spoiled_ : std::nullopt;
}

void Coordinator::tellWhatIsSaved() {
  const CheckpointKeeper::Ended ended = keeper_->takeEnded();
  for (const int64_t step : ended.dropped) placement_->drop(step);
  for (const Checkpoint& checkpoint : ended.committed) {
    placement_->publish(checkpoint);
    result_.checkpoint = checkpoint.directory;
    report({.kind = JobProgress::Kind::kCheckpoint, .step = checkpoint.step, .text = checkpoint.directory});
  }
}

void Coordinator::handleEvaluated(Worker& worker, const nlohmann::json& body) {
  worker.batches_done = body.at("last").get<int64_t>();
  worker.where = fmt::format("evaluation, {} batches done", worker.batches_done);
  if (body.contains("losses"))
    evaluated_.add(WeightedLoss{numberOf(body["losses"]), numberOf(body.at("weight"))});
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
  if (body.contains("loss")) result.loss = numberOf(body["loss"]);
  if (body.contains("losses")) {
    for (const nlohmann::json& loss : body["losses"]) result.losses.push_back(numberOf(loss));
  }
  if (body.contains("not_finite")) {
    result.applied = false;
    const auto reason = body["not_finite"].get<std::string>();
    if (!reason.empty()) result.not_finite.push_back(fmt::format("{} (rank {})", reason, rank));
  }
  if (body.contains("measures")) {
    for (const nlohmann::json& measure : body["measures"])
      result.measures.emplace_back(measure.at("name").get<std::string>(), numberOf(measure.at("value")));
  }
  result.size = {body.value("last_batch", false), body.value("length", size_t{0})};
  worker.resident_bytes = body.value("resident_bytes", worker.resident_bytes);
  for (const Worker& other : workers_)
    result.resident_bytes = std::max(result.resident_bytes, other.resident_bytes);
  if (body.contains("dump")) open_steps_[index].dumps[rank.index()] = body["dump"].get<std::string>();
  return std::nullopt;
}

// Until it has registered the kernel loads the program, which a slow disk or a busy machine holds up:
// --load-timeout is the limit of that.
bool Coordinator::isStarting(RankId rank) const {
  if (server_->isRegistered(static_cast<int>(rank.index()))) return false;
  const ProcessState state = placement_->processState(rank);
  if (state == ProcessState::kInsideKernel) return Clock::now() - workers_[rank].last_heard < kLongestDisk;
  return state == ProcessState::kUnknown;
}

std::optional<Failure> Coordinator::findStuckWorker() const {
  const Clock::time_point now = Clock::now();
  for (RankId rank : workers_.ids()) {
    const Worker& worker = workers_[rank];
    if (!worker.started) continue;
    // Of a cut link the node tells, and more; so it is given the time to.
    const milliseconds silence = std::max(kSilence, placement_->patience() + kNodeHeartbeat * 2);
    if (now - worker.last_heard >= silence && !isStarting(rank)) {
      return Failure{
          ErrorCode::kPeerUnavailable,
          fmt::format("{} has not answered for {} s{}; last seen: {}", nameOf(rank), wholeSeconds(silence),
                      describe(placement_->processState(rank)), worker.where),
          /*is_cause=*/true, /*done=*/0, worker.last_heard};
    }
    if (worker.loaded && !worker.finished && now - worker.last_progress >= spec_.progress_timeout) {
      return Failure{ErrorCode::kHang,
                     fmt::format("{} answers, but its computation has made no progress for {} s; it is at: "
                                 "{}. If one operator may take so long, raise --progress-timeout",
                                 nameOf(rank), wholeSeconds(spec_.progress_timeout), worker.where),
                     /*is_cause=*/true, /*done=*/0, worker.last_progress};
    }
  }
  return std::nullopt;
}

// Before anything was learned, a step may begin with a transfer of any size.
Coordinator::Clock::duration Coordinator::stallLimit() const {
  if (spec_.stall_timeout.count() > 0) return spec_.stall_timeout;
  if (result_.steps_done == 0) return kFirstStall;
  // What a cut link holds up moves on when TCP tries again, which is as late again.
  const auto cut = std::max<milliseconds>(placement_->patience() - kNodeSilence, milliseconds(0));
  const Clock::duration learned =
      std::max<Clock::duration>(kPausesOfStall * longest_pause_, kLeastStall + 2 * cut);
  return std::min<Clock::duration>(learned, spec_.transfer_timeout);
}

// Everybody waits for somebody else: nothing is computed, read or saved, and no instruction ends.
std::optional<Failure> Coordinator::findStall() const {
  Clock::time_point last = Clock::time_point::min();
  bool anybody_waits = false;
  for (const Worker& worker : workers_) {
    if (!worker.loaded || (!worker.waiting && !worker.idle)) return std::nullopt;
    anybody_waits |= worker.waiting;
    last = std::max(last, worker.last_moved);
  }
  if (!anybody_waits || Clock::now() - last < stallLimit()) return std::nullopt;
  return Failure{
      ErrorCode::kHang,
      fmt::format("no worker has moved for {} s, and each said last that it waits; the longest wait before "
                  "was {:.1f} s. If a transfer may take so long, raise --transfer-timeout. Where they are:{}",
                  wholeSeconds(stallLimit()), std::chrono::duration<double>(longest_pause_).count(),
                  whereAllAre()),
      /*is_cause=*/true, /*done=*/0, last};
}

std::string Coordinator::whereAllAre() const {
  std::string text;
  for (const RankId rank : workers_.ids()) {
    const Worker& worker = workers_[rank];
    text += fmt::format("\n  {}{}: {}", nameOf(rank), worker.idle ? ", done with what was asked" : "",
                        worker.where);
  }
  return text;
}

// Of steps that an earlier run, or an attempt on more ranks, has done. Before the first step of this one.
void Coordinator::clearDumps() {
  if (!dumps_) return;
  std::string taken_out;
  try {
    taken_out = dumps_->clear(result_.resumed_step + 1, last_step_);
  } catch (const Error& error) {
    failJob({error.code(), error.message()});
  }
  if (!taken_out.empty()) report({.kind = JobProgress::Kind::kNotice, .text = taken_out});
}

// Says how far it is, from two seconds on.
void Coordinator::waitForLoading(Clock::time_point start) {
  Clock::time_point next = start + kFirstNotice;
  const auto is_loaded = [](const Worker& worker) { return worker.loaded; };
  while (!std::all_of(workers_.begin(), workers_.end(), is_loaded) &&
         Clock::now() < start + spec_.load_timeout) {
    if (std::optional<Failure> failure = lookAround()) failJob(std::move(*failure));
    if (Clock::now() < next) continue;
    const std::string unreached = placement_->describeUnreached();
    next = Clock::now() + (unreached.empty() ? kNextNotice : kUnanswered);
    const auto late = std::find_if_not(workers_.begin(), workers_.end(), is_loaded);
    if (late == workers_.end()) break;
    report({.kind = JobProgress::Kind::kNotice,
            .text = fmt::format("loading: {} of {} workers are ready; {}",
                                std::count_if(workers_.begin(), workers_.end(), is_loaded), workers_.size(),
                                unreached.empty() ? late->where : unreached)});
  }
  if (std::string text = placement_->describeUnreached();
      !text.empty() && !std::all_of(workers_.begin(), workers_.end(), is_loaded))
    failJob({ErrorCode::kPeerUnavailable, std::move(text)});
  waitFor(is_loaded, start + spec_.load_timeout, "loading the program (--load-timeout raises the limit)");
}

// A step whose gradients have no finite norm; no rank has applied it.
void Coordinator::leaveOut(const StepResult& result) {
  constexpr size_t kMost = 3;  // reasons
  const size_t count = std::min(result.not_finite.size(), kMost);
  const std::vector<std::string> reasons(result.not_finite.begin(), result.not_finite.begin() + count);
  const std::string what = fmt::format(
      "step {} was not applied on any rank: the norm of its gradients is not finite{}{}{}", result.step,
      reasons.empty() ? "" : "; ", fmt::join(reasons, ", "), result.not_finite.size() > kMost ? ", ..." : "");
  const std::optional<double> scale = result.measure("loss_scale");
  if (scale && *scale / 2 < 1) {
    failJob(
        {ErrorCode::kNotANumber,
         fmt::format("{}; the scale of the loss has fallen under 1, so it is not the scale that is too "
                     "large: float16 holds no more than 65504. Keep operators with larger numbers in float32 "
                     "(plan --keep-float32), take --precision bfloat16, or have the first value named that "
                     "is not a number (run --on-nan find)",
                     what)});
  }
  if (spec_.check_finite) {
    failJob(
        {ErrorCode::kNotANumber,
         what +
             "; lower the learning rate, look at the data, leave such steps out (run --on-nan skip), or have "
             "the first value named that is not a number (run --on-nan find)"});
  }
  ++result_.steps_left_out;
  report({.kind = JobProgress::Kind::kNotice,
          .text = fmt::format("{}; it is left out ({} so far){}", what, result_.steps_left_out,
                              scale ? fmt::format("; the scale of the loss is {:g} now", *scale / 2) : "")});
}

}  // namespace pipeshard
