#include "runtime/execute/executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "runtime/data/batch_check.h"
#include "runtime/device/cpu_device.h"
#include "runtime/execute/executor_parts.h"

namespace pipeshard {
namespace {

// Its time is the transfer's; a free waits for what a peer still reads.
bool mayWaitForPeers(InstructionKind kind) {
  return kind == InstructionKind::kSend || kind == InstructionKind::kReceive ||
         kind == InstructionKind::kAllReduce || kind == InstructionKind::kFree;
}

// Of a step that makes several updates, and whose loss is not finite.
std::string describeMadeUpdates(const std::vector<double>& losses) {
  if (losses.size() < 2) return "";
  const auto first = std::find_if(losses.begin(), losses.end(), [](double x) { return !std::isfinite(x); });
  return fmt::format(", from update {} of {} on: those before it have been made", first - losses.begin() + 1,
                     losses.size());
}

}  // namespace

// Loading decides everything, and a step follows it:
//   constructor   a CompiledSubgraph per subgraph; which results are computed in their accumulators; a place
//                 in the arena for every buffer and for what runs make for themselves; behind them the lane's
//                 workspace, as large as its neediest run
//   attach        Actions: pointers, sizes, the kernel calls of subgraphs, copies (executor_actions.cc)
//   runStep       the instructions' actions in order
//
// What holds while a step runs:
//   * An instruction begins when the background ones that it needs are done (waits_), and when no send of a
//     buffer that it writes is under way. Sends are kept by the memory that is sent (pending_sends_); freeing
//     it, or the end of the step, waits for them too. So a step ends with no send, receive or lane work under
//     way.
//   * watch_ is all that other threads look at.
//   * After an error the step is given up as a whole (failStep): posted receives are withdrawn first, so that
//     nothing is written into the arena any more, then the lane is interrupted and has come to rest.
Executor::Executor(RankImage image, const ExecutorOptions& options)
    : image_(std::move(image)),
      options_(options),
      device_(options.device == nullptr ? &cpuDevice() : options.device),
      compute_(device_->makeQueue()),
      lane_queue_(device_->makeQueue()) {
  if (options_.find_nan) finder_.emplace();
  if (image_.subgraphs.size() != program().subgraphs.size()) {
    fail(ErrorCode::kConfiguration, "rank {}: {} subgraphs, but {} graphs", program().rank,
         program().subgraphs.size(), image_.subgraphs.size());
  }
  try {
    last_reads_ = lastReads(program());
    compileSubgraphs(options_.kernels == nullptr ? device_->kernels() : *options_.kernels);
    std::vector<const CompiledSubgraph*> ready;
    for (const auto& subgraph : subgraphs_) ready.push_back(subgraph.get());
    accumulation_ = accumulationOf(program(), ready);
    placeMemory();
  } catch (Error& error) {
    error.addContext(fmt::format("rank {}", program().rank));
    throw;
  }
}

Executor::~Executor() = default;

// By instruction; nullptr for what is no run of the foreground (or, `of_lane`, of the background lane).
std::vector<const RunMemory*> Executor::memoryOfRuns(bool of_lane) {
  std::vector<const RunMemory*> runs(program().instructions.size());
  size_t next = 0;
  for (const Instruction& instruction : program().instructions) {
    const size_t position = next++;
    if (!instruction.subgraph.valid() || isOfLane(instruction) != of_lane) continue;
    CompiledSubgraph& subgraph = *subgraphs_.at(instruction.subgraph.index());
    runs[position] = &subgraph.memory(aliasingOf(instruction, position));
  }
  return runs;
}

void Executor::placeMemory() {
  int64_t lane_bytes = 0;  // of the neediest
  for (const RunMemory* run : memoryOfRuns(true))
    lane_bytes = std::max(lane_bytes, run == nullptr ? 0 : run->apart.total_bytes);
  const std::vector<const RunMemory*> runs = memoryOfRuns();
  const FineIntervals intervals = fineIntervals(program(), accumulation_, runs);
  memory_ = planMemory(program(), accumulation_, intervals, runs, lane_bytes, device_->alignment());
}

void Executor::compileSubgraphs(const KernelRegistry& kernels) {
  const Fusion fusion = options_.find_nan ? Fusion::kNone : Fusion::kElementwise;
  for (size_t s = 0; s < image_.subgraphs.size(); ++s) {
    subgraphs_.push_back(std::make_unique<CompiledSubgraph>(std::move(image_.subgraphs[s]),
                                                            program().subgraphs[s].name, kernels, *device_,
                                                            compute_.get(), fusion));
  }
  image_.subgraphs.clear();
}

int64_t Executor::constantBytes() const {
  int64_t bytes = 0;
  for (const auto& subgraph : subgraphs_) bytes += subgraph->constantBytes();
  return bytes;
}

CompiledSubgraph::Aliasing Executor::aliasingOf(const Instruction& instruction, size_t position) const {
  // Numbered by first occurrence, so that equal patterns over different microbatches' buffers share a layout.
  CompiledSubgraph::Aliasing aliasing;
  std::map<BufferId, int> numbers;
  const auto number = [&](BufferId id) {
    return numbers.try_emplace(id, static_cast<int>(numbers.size())).first->second;
  };
  for (const BufferId id : instruction.inputs) aliasing.inputs.push_back(number(id));
  for (const BufferId id : instruction.outputs) aliasing.outputs.push_back(number(id));
  for (const BufferId id : instruction.inputs) aliasing.ending.push_back(last_reads_[id.index()] == position);
  return aliasing;
}

std::string Executor::describeCurrent() const {
  const int64_t step = watch_.step.load();
  const size_t loaded = watch_.buffers_loaded.load();
  if (step == 0 && loaded > 0 && loaded < program().buffers.size())
    return fmt::format("rank {} reads its weights, tensor {} of {}", program().rank, loaded + 1,
                       program().buffers.size());
  if (step == 0) return fmt::format("rank {}, between steps", program().rank);
  std::string text = fmt::format("step {}, {}", step, describePlace(program(), watch_.instruction.load()));
  if (watch_.awaits_lane.load())
    text +=
        fmt::format("; it waits for {}",
                    describePlace(program(), waits_.lane[std::min(lane_->done(), waits_.lane.size() - 1)]));
  return text;
}

ExecutorProgress Executor::progress() const {
  ExecutorProgress progress = watch_.progress();
  if (transfers_ != nullptr) {
    progress.count += transfers_->ended();
    progress.waiting |= transfers_->isMeeting();
  }
  return progress;
}

void Executor::record(TraceRecorder* recorder, uint32_t number) {
  const bool beside_host = recorder != nullptr && !device_->isHostMemory();
  record_.recordInto(
      recorder, number,
      beside_host ? std::make_unique<DeviceTimes>(*compute_, *lane_queue_, *recorder) : nullptr);
  DeviceTimes* const times = record_.deviceTimes();
  if (collectives_) collectives_->record(recorder, TraceLane::kForeground, times);
  if (background_collectives_) background_collectives_->record(recorder, TraceLane::kBackground, times);
}

void Executor::beginStep(int64_t step, Clock::time_point start) {
  record_.beginStep(step, start);
  watch_.instruction.store(0);
  watch_.step.store(step);
  awaitKeeper();
  beginTransfers();
  giveStepNumbers(step);
  if (guard_) guard_->begin();
  if (finder_) lookAtWeights();
  if (lane_) lane_->begin();
}

// Returns what kernels have recorded of wrong data; nothing where none of them does.
std::optional<HostView> Executor::awaitStep(int64_t step, StepReport& report) {
  std::optional<HostView> faults;
  try {
    waitForBackground(action_of_.size());
    for (uint32_t slot = 0; slot < pending_sends_.size(); ++slot) waitForSends(slot);
    // The host waits once: a download is a wait, and all is done then, the lane's as well, which compute_ has
    // awaited. Where there is nothing to see it waits for that alone.
    if (!faults_.bytes.empty()) faults.emplace(*compute_, faults_.bytes);
    report.losses = readLosses();
    report.measures = readMeasures();
    compute_->synchronize();
    record_.resolveStep();
    device_->watchWaits({});
    watch_.waiting.store(false, std::memory_order_relaxed);
  } catch (Error& error) {
    error.addContext(fmt::format("step {}, rank {}, the end of the step", step, program().rank));
    failStep(error);
  }
  return faults;
}

StepReport Executor::runStep(int64_t step) {
  PIPESHARD_CHECK(action_of_.size() == program().instructions.size(), "attach was not called");
  const Clock::time_point start = Clock::now();
  StepReport report;
  beginStep(step, start);
  for (size_t i = 0; i < action_of_.size(); ++i) {
    watch_.instruction.store(i, std::memory_order_relaxed);
    watch_.count.fetch_add(1, std::memory_order_relaxed);
    try {
      runInstruction(i, step, report);
    } catch (Error& error) {
      failInstruction(i, step, std::move(error));
    }
  }
  const Clock::time_point end_of_work = Clock::now();
  const std::optional<HostView> faults = awaitStep(step, report);
  if (faults) throwFaults(step, faults->bytes());
  if (lane_) report.background_seconds = lane_->seconds();
  watch_.count.fetch_add(1, std::memory_order_relaxed);
  report.transfer_seconds += secondsSince(end_of_work);
  if (!report.losses.empty()) {
    report.loss = std::accumulate(report.losses.begin(), report.losses.end(), 0.0) /
                  static_cast<double>(report.losses.size());
  }
  if (guard_ && !guard_->isFinite()) {
    guard_->takeBack();
    report.applied = false;
    report.not_finite = guard_->finding();
    report.scale_spent = program().loss_scale.valid() && readNumber(program().loss_scale) < 1;
  }
  if (options_.check_finite && report.loss && !std::isfinite(*report.loss)) {
    fail(ErrorCode::kNotANumber, "rank {}: the loss of step {} is {}{}{}; {}{}", program().rank, step,
         describeNotFinite(*report.loss), describeMadeUpdates(report.losses),
         finder_ ? finder_->firstInfinite() : "",
         data_ == nullptr ? "" : explainNotFiniteLoss(program(), *data_, step),
         finder_ ? "" : "; `pipeshard run --on-nan find` names the first value that is not a number");
  }
  watch_.step.store(0);
  record_.endStep();
  report.seconds = secondsSince(start);
  return report;
}

// By a kernel, with what the data say about it.
void Executor::failInstruction(size_t position, int64_t step, Error error) {
  const bool by_kernel = actionAt(position).form->kind == InstructionKind::kRun && data_ != nullptr;
  const std::string fault = by_kernel ? explainFailedStep(program(), *data_, step) : "";
  if (!fault.empty() && error.code() == ErrorCode::kBadModel)  // not the model's fault
    failStep(Error(ErrorCode::kConfiguration,
                   fmt::format("{}; step {} failed: {}", fault, step, error.message())));
  error.addContext(fmt::format("step {}, {}", step, describePlace(program(), position)));
  failStep(Error(error.code(), error.message() + (fault.empty() ? "" : "; " + fault)));
}

void Executor::execute(size_t position, int64_t step, StepReport& report) {
  Action& action = actionAt(position);
  const Instruction& form = *action.form;
  const Clock::time_point start = Clock::now();
  const bool recorded = record_.isOn() && form.kind != InstructionKind::kFree && !action.done;
  if (recorded) record_.begin(TraceLane::kForeground, position, start);
  const size_t pair = recorded ? record_.beginOnDevice(TraceLane::kForeground) : 0;
  switch (form.kind) {
    case InstructionKind::kLoadInput:
      watch_.waiting.store(data_->mayWait(), std::memory_order_relaxed);
      data_->fill(action.data_input, step, action.box, hostSide(action));
      watch_.waiting.store(false, std::memory_order_relaxed);
      if (finder_) lookAtInput(action);
      upload(action, *compute_);
      break;
    case InstructionKind::kUpdate: update(position); break;
    case InstructionKind::kRun: runNodes(position); break;
    case InstructionKind::kAccumulate:
      if (action.done) break;
      if (form.overwrite) {
        compute_->copy(action.input, action.output, action.bytes);
      } else {
        compute_->add(action.data_type, action.input, action.output, action.elements);
      }
      break;
    case InstructionKind::kSend:
    case InstructionKind::kReceive:
    case InstructionKind::kAllReduce: transfer(action); break;
    case InstructionKind::kFree: waitForSends(action); break;
    case InstructionKind::kSlice:
    case InstructionKind::kConcatenate:
      for (const RowCopy& copy : action.copies) compute_->copyRows(copy);
      break;
    case InstructionKind::kZero: compute_->zero(action.output, action.bytes); break;
  }
  const Clock::time_point end = Clock::now();
  if (recorded) recordEnd(action, pair, end);
  const double seconds = std::chrono::duration<double>(end - start).count();
  const double in_collectives = collectives_ == nullptr ? 0 : collectives_->takeSeconds();
  report.transfer_seconds += mayWaitForPeers(form.kind) ? seconds : in_collectives;
  report.compute_seconds += mayWaitForPeers(form.kind) ? 0 : seconds - in_collectives;
}

void Executor::recordEnd(const Action& action, size_t pair, Clock::time_point end) {
  const InstructionKind kind = action.form->kind;
  const bool meets = kind == InstructionKind::kReceive || kind == InstructionKind::kAllReduce;
  const std::chrono::nanoseconds waited = meets ? communicator_->waited() : std::chrono::nanoseconds();
  record_.end(TraceLane::kForeground, end, waited);
  record_.endOnDevice(TraceLane::kForeground, pair, meets ? called_ + waited : Clock::time_point());
}

void Executor::update(size_t position) {
  if (update_observer_) update_observer_(program().instructions.copyAt(position));
  if (!guard_ || guard_->isFinite()) return finder_ ? lookAtUpdate(position) : runNodes(position);
  guard_->leaveOut(program().instructions.copyAt(position));
  if (transfers_) transfers_->leaveOut(position);
}

void Executor::runNodes(size_t position) {
  if (options_.observer != nullptr) options_.observer->beginRun(position);
  actionAt(position).run.run(watch_.count, options_.observer, finder_ ? &*finder_ : nullptr);
}

void Executor::transfer(Action& action) {
  const Instruction& form = *action.form;
  PIPESHARD_CHECK(communicator_ != nullptr, "a transfer without communicator");
  if (form.kind != InstructionKind::kReceive) download(action, *compute_);
  called_ = record_.callsPeers();
  watch_.waiting.store(true, std::memory_order_relaxed);
  if (form.kind == InstructionKind::kSend) {
    pending_sends_[action.sends[0]].push_back(communicator_->send(form.peer, hostSide(action)));
  } else if (form.kind == InstructionKind::kReceive) {
    communicator_->receive(form.peer, hostSide(action));
  } else {
    allReduce(action, *communicator_);
  }
  watch_.waiting.store(false, std::memory_order_relaxed);
  if (form.kind != InstructionKind::kSend) upload(action, *compute_);
}

// Of what the host has of it, in place where that is staging.
void Executor::allReduce(const Action& action, Communicator& communicator) const {
  const std::vector<RankId>& group = program().groups.at(action.form->group);
  const std::byte* input = action.host == nullptr ? action.input : action.host;
  communicator.allReduce(group, action.data_type, Reduction::kSum, input, hostSide(action).data(),
                         action.elements);
}

void Executor::waitForSends(const Action& action) {
  for (const uint32_t slot : action.sends) waitForSends(slot);
}

void Executor::waitForSends(uint32_t slot) {
  std::vector<std::unique_ptr<SendHandle>>& sends = pending_sends_[slot];
  if (sends.empty()) return;
  watch_.waiting.store(true, std::memory_order_relaxed);
  for (const auto& send : sends) send->wait();
  watch_.waiting.store(false, std::memory_order_relaxed);
  sends.clear();
}

}  // namespace pipeshard
