// Executes one rank's Program. Everything is decided when it is loaded: kernels, offsets, pointers. A step
// does no allocation of its own and no lookup by name. Background collectives (Instruction::background) are
// done by a thread of the executor's own.
//
//   RankImage image = loadRank("gpt2.plan", RankId(3));
//   // kernels made, memory planned; Errors for what cannot run
//   Executor executor(std::move(image), options);
//   // an arena of executor.memory().total_bytes; weights are loaded
//   executor.attach(arena, communicator, data);
//   // state lives in the arena
//   for (int64_t step = 1; step <= n; ++step) executor.runStep(step);
//
// LocalProgram (local_program.h) does all of it for a program of one rank in this process.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/program/background.h"
#include "ir/program/program.h"
#include "runtime/data/data.h"
#include "runtime/device/device.h"
#include "runtime/device/device_transfers.h"
#include "runtime/execute/accumulation.h"
#include "runtime/execute/background_lane.h"
#include "runtime/execute/device_times.h"
#include "runtime/execute/memory_plan.h"
#include "runtime/execute/rank_image.h"
#include "runtime/execute/step_guard.h"
#include "runtime/execute/subgraph.h"
#include "runtime/kernels/base/kernel.h"
#include "runtime/trace/trace_recorder.h"
#include "transport/collectives/communicator.h"
#include "transport/collectives/random_delays.h"

namespace pipeshard {

struct ExecutorOptions {
  // a loss that is NaN or infinite ends the step with Error(kNotANumber)
  bool check_finite = true;
  const KernelRegistry* kernels = nullptr;  // nullptr: the device's
  uint64_t seed = 0;                        // of weights that no file has
  // nullptr: none. Else it is told about every node; for measurements
  NodeObserver* observer = nullptr;
  RandomDelays* delays = nullptr;  // nullptr: none. Else it pauses before instructions; for tests
  Device* device = nullptr;        // nullptr: cpuDevice()
  // the first value that is NaN ends the step with Error(kNotANumber) naming it (NanFinder); slow
  bool find_nan = false;
};

struct StepReport {
  std::optional<double> loss;  // on ranks whose program has a loss; the mean over `losses`
  // of the step, by name (Result::Kind::kMeasure), on ranks whose program lists them
  std::vector<std::pair<std::string, double>> measures;
  // false: the guard (Program::guard) was not finite; `not_finite` says what is the matter with this rank's
  // gradients, if anything
  bool applied = true;
  std::string not_finite;
  bool scale_spent = false;     // not applied, and the scale of the loss (Program::loss_scale) is under 1 now
  std::vector<double> losses;   // of every update of the step
  double seconds = 0;           // of the whole step
  double compute_seconds = 0;   // in kernels (but collectives), accumulation and copies
  double transfer_seconds = 0;  // in sends, receives, collectives and waiting for them
  // Of the background lane, at work or waiting for peers. What of it the step has waited for is in
  // transfer_seconds, too.
  double background_seconds = 0;
};

// What a watcher needs to tell a computing rank from one that is stuck, and both from one that waits for
// somebody else.
struct ExecutorProgress {
  uint64_t count = 0;    // grows with every instruction and every node of a subgraph
  bool waiting = false;  // in a send, receive or collective, or for a background one that is waiting
  bool running = false;  // inside a step
};

// What other threads look at while a step runs: a watcher's picture of where the rank is.
struct ExecutorWatch {
  std::atomic<size_t> instruction{0};
  std::atomic<int64_t> step{0};           // 0 between steps
  std::atomic<size_t> buffers_loaded{0};  // by attach: those that are persistent, of the first so many
  std::atomic<uint64_t> count{0};         // of ExecutorProgress, but what transfers between devices add
  std::atomic<bool> waiting{false};       // the step's thread, for other ranks
  std::atomic<bool> lane_waiting{false};  // the background lane, for other ranks
  std::atomic<bool> awaits_lane{false};   // the step's thread, for the lane

  ExecutorProgress progress() const {
    const bool for_others =
        waiting.load(std::memory_order_relaxed) || (awaits_lane.load() && lane_waiting.load());
    return {count.load(std::memory_order_relaxed), for_others, step.load() != 0};
  }
};

// Thread rules: one thread uses an executor at a time. Between steps, and after an error, its own thread is
// idle.
class Executor {
 public:
  // Creates kernels, checks that buffers fit the subgraphs, plans memory. Errors: kBadModel (no kernel, wrong
  // type), kConfiguration (program and subgraphs contradict each other).
  Executor(RankImage image, const ExecutorOptions& options);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  ~Executor();

  const Program& program() const { return image_.program; }
  const MemoryPlan& memory() const { return memory_; }
  const Accumulation& accumulation() const { return accumulation_; }
  // How many different things its instructions do, once attached: those of a loop's iterations that are on
  // the same memory are one. For tests and the curious.
  size_t actionCount() const;
  // Constants of the subgraphs, bytes; they are beside the arena.
  int64_t constantBytes() const;

  // From device to device goes, then, what ranks give each other. Before attach, whose communicators are not
  // used for it.
  void communicateBy(DeviceTransfersPlan plan);

  // Gives it memory of its device (at least memory().total_bytes, aligned as the device has it), a
  // communicator (may be nullptr for one rank) and data (may be nullptr when nothing loads inputs). All are
  // used until destruction. Loads initial content. Call once. `background`: the rank's second communicator
  // (transport/collectives/communicator.h), needed where there are backgroundGroups(program()).
  void attach(std::span<std::byte> arena, Communicator* communicator, DataSource* data,
              Communicator* background = nullptr);
  // The same for a program that continues another's state in the same arena: that of the shorter last batch.
  // Nothing is loaded. Error(kConfiguration) when the two do not have equal persistent buffers in equal
  // places.
  void attachBeside(const Executor& other, std::span<std::byte> arena, Communicator* communicator,
                    DataSource* data, Communicator* background = nullptr);

  // The same for a program that works on some of the tensors that `host` keeps across steps: an evaluation.
  // Nothing is loaded, and between steps of the host all other memory is the guest's: the arena is at least
  // as large as `guestBytes` says. Error(kConfiguration) naming a tensor that the host does not keep so.
  void attachAsGuest(const Executor& host, std::span<std::byte> arena, Communicator* communicator,
                     DataSource* data, Communicator* background = nullptr);
  int64_t guestBytes(const Executor& host) const;

  // From the next step on, what runs when is recorded as program `number` of `recorder`; nullptr: no more.
  // Not inside a step.
  void record(TraceRecorder* recorder, uint32_t number = 0);

  // Runs all instructions. Errors carry rank, instruction and node as context; afterwards the state is
  // undefined, and the communicators are broken. When the background lane fails first, that is the error,
  // whatever this thread was doing.
  StepReport runStep(int64_t step);

  // Called in runStep before each kUpdate, whose gradients are complete then: in a window of several updates
  // the next one's take their place. nullptr: nothing is called.
  using UpdateObserver = std::function<void(const Instruction& update)>;
  void setUpdateObserver(UpdateObserver observer) { update_observer_ = std::move(observer); }

  // What is being executed, for reports about a hang: "step 3, rank 1, instruction 7: receive peer 0 ->
  // 'h@0'". This and progress() are what other threads may call meanwhile.
  std::string describeCurrent() const;
  ExecutorProgress progress() const;

  Device& device() const { return *device_; }

  // Content of a buffer; meaningful at the end of a step for persistent ones and results, and for gradients
  // in an update observer. Where the host reads the device's memory, a view is that memory: it is looked at
  // before the next step.
  HostView view(BufferId id) const;
  // The same into `out`, of as many bytes as it has from byte `first` on.
  void read(BufferId id, std::span<std::byte> out, size_t first = 0) const;
  // Sets it to what `fill` writes, between steps.
  void write(BufferId id, const std::function<void(std::span<std::byte>)>& fill);
  // The memory itself; only of a device whose memory the host reads (Error(kInternal)).
  std::span<std::byte> content(BufferId id) const;

 private:
  struct Action;
  class ActionMaker;
  class GroupCollectives;

  void compileSubgraphs(const KernelRegistry& kernels);
  std::vector<const RunMemory*> memoryOfRuns(bool of_lane = false);
  void placeMemory();
  CompiledSubgraph::Aliasing aliasingOf(const Instruction& instruction, size_t position) const;
  Action& actionAt(size_t position);
  void awaitKeeper() const;
  void makeActions();
  void bind(std::span<std::byte> arena, Communicator* communicator, DataSource* data,
            Communicator* background);
  void startLane();
  std::span<std::byte> place(BufferId id) const;
  std::unique_ptr<GroupCollectives> makeCollectives(Communicator& communicator, std::atomic<bool>& waiting,
                                                    DeviceQueue& queue) const;
  // What ranks give each other goes through the host's memory.
  bool isStaged() const { return !device_->isHostMemory() && transfers_ == nullptr; }
  bool isOfHost(const Instruction& form) const;
  void placeStaging();
  void placeFaults();
  void giveStepNumbers(int64_t step);
  void throwFaults(int64_t step, std::span<const std::byte> recorded);
  void comeToRest() noexcept;
  std::span<std::byte> hostSide(const Action& action) const;
  void download(const Action& action, DeviceQueue& queue) const;
  void upload(const Action& action, DeviceQueue& queue) const;
  [[noreturn]] void failInstruction(size_t position, int64_t step, Error error);
  void execute(size_t position, int64_t step, StepReport& report);
  void update(size_t position);
  void recordEnd(const Action& action, size_t pair, std::chrono::steady_clock::time_point end);
  void runNodes(size_t position);
  void lookAtWeights();
  void lookAtInput(const Action& action);
  void lookAtUpdate(size_t position);
  void transfer(Action& action);
  void allReduce(const Action& action, Communicator& communicator) const;
  void runInstruction(size_t position, int64_t step, StepReport& report);
  void beginStep(int64_t step, std::chrono::steady_clock::time_point start);
  std::optional<HostView> awaitStep(int64_t step, StepReport& report);
  void beginTransfers();
  void waitForBackground(size_t position);
  void performInBackground(size_t position);
  [[noreturn]] void failStep(const Error& error);
  void waitForSends(const Action& action);
  void waitForSends(uint32_t slot);
  double readNumber(BufferId id) const;
  std::vector<double> readLosses() const;
  std::vector<std::pair<std::string, double>> readMeasures() const;
  int64_t persistentBytes() const;

  RankImage image_;
  ExecutorOptions options_;
  Device* device_;
  std::unique_ptr<DeviceQueue> compute_;     // of the thread that runs the step
  std::unique_ptr<DeviceQueue> lane_queue_;  // of the background lane
  UpdateObserver update_observer_;
  std::vector<std::unique_ptr<CompiledSubgraph>> subgraphs_;
  Accumulation accumulation_;
  std::vector<size_t> last_reads_;  // lastReads(program())
  MemoryPlan memory_;
  std::span<std::byte> arena_;
  const Executor* keeper_ = nullptr;  // of the tensors that live across steps; nullptr: this one
  MemoryBlock staging_;  // what the host and the device give each other; empty where both see the same memory
  MemoryBlock step_numbers_;  // the host's, of every kStep buffer
  MemoryBlock faults_;        // the device's: of all runs of this thread, in their order
  std::optional<DeviceTransfersPlan> transfers_plan_;
  Communicator* communicator_ = nullptr;
  Communicator* background_ = nullptr;
  std::unique_ptr<GroupCollectives> collectives_;  // of the communicator, for nodes inside subgraphs
  std::unique_ptr<GroupCollectives> background_collectives_;
  DataSource* data_ = nullptr;
  std::optional<StepGuard> guard_;
  std::optional<NanFinder> finder_;
  bool weights_looked_at_ = false;
  StepRecord record_;
  StepRecord::Time called_;  // the communicator, by the foreground, last; for record_
  std::vector<Action> actions_;
  std::vector<uint32_t> action_of_;  // by instruction
  // By what is sent from: buffers that begin at one place of the arena.
  std::vector<std::vector<std::unique_ptr<SendHandle>>> pending_sends_;
  ExecutorWatch watch_;
  std::unique_ptr<DeviceTransfers> transfers_;
  BackgroundWaits waits_;
  std::vector<std::unique_ptr<ReceiveHandle>> posted_receives_;  // by instruction
  // last: idle and gone before what it works on
  std::unique_ptr<BackgroundLane> lane_;
};

}  // namespace pipeshard
