#include "runtime/device/device_transfers.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/program/background.h"
#include "ir/program/program_print.h"

namespace pipeshard {

using Clock = std::chrono::steady_clock;

// A step of communication, with its place in the order.
struct DeviceTransfers::Entry {
  CommunicationStep step;
  InstructionKind kind = InstructionKind::kRun;
  RankId peer;                                 // of a message
  const std::vector<RankId>* group = nullptr;  // of a collective
  CollectiveCall call;                         // likewise
  std::span<std::byte> bytes;                  // of a message
  bool posted = false, left_out = false;       // in this step
  Lane* lane = nullptr;                        // whose it is
  std::optional<size_t> behind;                // of how many instructions the work it waits for
  std::unique_ptr<DeviceEvent> before, end;    // on the queue of who posts it; on this one
};

// A message that was posted.
class DeviceTransfers::Posted : public SendHandle, public ReceiveHandle {
 public:
  Posted(DeviceTransfers& transfers, size_t entry) : transfers_(transfers), entry_(entry) {}
  bool done() override { return true; }
  void wait() override { transfers_.await(entry_); }

 private:
  DeviceTransfers& transfers_;
  size_t entry_;
};

// The executor's view: of one of its threads, whose queue `origin` is.
class DeviceTransfers::Lane : public Communicator {
 public:
  Lane(DeviceTransfers& transfers, DeviceQueue& thread_queue) : origin(thread_queue), transfers_(transfers) {}

  RankId rank() const override { return transfers_.program_.rank; }
  int size() const override { return transfers_.program_.world_size; }

  std::unique_ptr<SendHandle> send(RankId, std::span<const std::byte> data) override {
    return post(InstructionKind::kSend, {const_cast<std::byte*>(data.data()), data.size()});
  }
  void receive(RankId, std::span<std::byte> data) override { post(InstructionKind::kReceive, data)->wait(); }
  std::unique_ptr<ReceiveHandle> postReceive(RankId, std::span<std::byte> data) override {
    return post(InstructionKind::kReceive, data);
  }

  void allReduce(const Group& group, DataType type, Reduction reduction, const void* input, void* output,
                 size_t count) override {
    call(group, CollectiveCall::Kind::kAllReduce, type, reduction, input, output, count);
  }
  void allGather(const Group& group, DataType type, const void* input, void* output, size_t count) override {
    call(group, CollectiveCall::Kind::kAllGather, type, Reduction::kSum, input, output, count);
  }
  void reduceScatter(const Group& group, DataType type, Reduction reduction, const void* input, void* output,
                     size_t count) override {
    call(group, CollectiveCall::Kind::kReduceScatter, type, reduction, input, output, count);
  }
  void allToAll(const Group& group, DataType type, const void* input, void* output, size_t count) override {
    call(group, CollectiveCall::Kind::kAllToAll, type, Reduction::kSum, input, output, count);
  }
  // Programs have none of these.
  void broadcast(const Group&, DataType, int, void*, size_t) override {
    PIPESHARD_CHECK(false, "a broadcast between devices");
  }
  void barrier(const Group&) override { PIPESHARD_CHECK(false, "a barrier between devices"); }

  void interrupt() override { transfers_.interrupt(); }

  DeviceQueue& origin;
  std::vector<size_t> entries;  // in the order of the program
  size_t next = 0;              // of this step
  size_t reached = 0;           // the transfers' queue is behind the work of so many of its instructions

 private:
  Entry& take() {
    PIPESHARD_CHECK(next < entries.size(), "more than the {} steps of communication", entries.size());
    return transfers_.entries_[entries[next]];
  }
  std::unique_ptr<Posted> post(InstructionKind kind, std::span<std::byte> data) {
    Entry& entry = take();
    PIPESHARD_CHECK(entry.kind == kind, "{} where {} is next", instructionKindName(kind),
                    transfers_.describe(entry));
    entry.bytes = data;
    transfers_.post(entries[next]);
    return std::make_unique<Posted>(transfers_, entries[next++]);
  }
  void call(const Group& group, CollectiveCall::Kind kind, DataType type, Reduction reduction,
            const void* input, void* output, size_t count) {
    Entry& entry = take();
    PIPESHARD_CHECK(entry.group != nullptr && *entry.group == group,
                    "a collective over [{}] where {} is next", fmt::join(group, ","),
                    transfers_.describe(entry));
    entry.call.kind = kind;
    entry.call.members = group.size();
    entry.call.type = type;
    entry.call.reduction = reduction;
    entry.call.input = input;
    entry.call.output = output;
    entry.call.count = count;
    transfers_.post(entries[next]);
    transfers_.await(entries[next++]);
  }

  DeviceTransfers& transfers_;
};

DeviceTransfers::DeviceTransfers(const Program& program, DeviceTransfersPlan plan, DeviceQueue& compute,
                                 DeviceQueue& lane, std::span<const std::optional<size_t>> behind)
    : program_(program),
      plan_(std::move(plan)),
      queue_(compute.device().makeQueue()),
      begin_(compute.device().makeEvent()),
      foreground_(std::make_unique<Lane>(*this, compute)),
      background_(std::make_unique<Lane>(*this, lane)) {
  for (const CommunicationStep& step : plan_.order) {
    const Instruction& instruction = program.instructions.form(step.instruction);
    Entry entry;
    entry.step = step;
    entry.kind = instruction.kind;
    entry.peer = instruction.peer;
    entry.before = compute.device().makeEvent();
    entry.end = compute.device().makeEvent();
    if (instruction.subgraph.valid()) {
      const auto& collectives = program.subgraphs.at(instruction.subgraph.index()).collectives;
      entry.group = &program.groups.at(collectives.at(step.collective));
    } else if (instruction.group.valid()) {
      entry.group = &program.groups.at(instruction.group);
    }
    entry.lane = isOfLane(instruction) ? background_.get() : foreground_.get();
    entry.behind = behind.empty() ? step.instruction + 1 : behind[step.instruction];
    entry.lane->entries.push_back(entries_.size());
    entries_.push_back(std::move(entry));
  }
  for (const auto& one : {foreground_.get(), background_.get()}) {
    std::sort(one->entries.begin(), one->entries.end(), [&](size_t a, size_t b) {
      const CommunicationStep &first = entries_[a].step, &second = entries_[b].step;
      return std::pair(first.instruction, first.collective) <
             std::pair(second.instruction, second.collective);
    });
  }
}

DeviceTransfers::~DeviceTransfers() = default;

std::string DeviceTransfers::describe(const Entry& entry) const {
  return describeInstruction(program_, program_.instructions.copyAt(entry.step.instruction));
}

Communicator& DeviceTransfers::foreground() { return *foreground_; }
Communicator& DeviceTransfers::background() { return *background_; }

void DeviceTransfers::beginStep() {
  const Lock held(mutex_);
  foreground_->origin.record(*begin_);
  PIPESHARD_CHECK(given_ == 0 || given_ == entries_.size(),
                  "a step begins while {} of {} messages were given", given_, entries_.size());
  for (Entry& entry : entries_) entry.posted = entry.left_out = false;
  for (Lane* lane : {foreground_.get(), background_.get()}) lane->next = lane->reached = 0;
  ended_ += given_ - seen_;
  given_ = seen_ = 0;
  turn_ = {};
  waiting_.store(false, std::memory_order_relaxed);
}

void DeviceTransfers::leaveOut(size_t instruction) {
  Lock held(mutex_);
  Lane& lane = *foreground_;
  for (; lane.next < lane.entries.size(); ++lane.next) {
    Entry& entry = entries_[lane.entries[lane.next]];
    if (entry.step.instruction != instruction) break;
    entry.posted = entry.left_out = true;
  }
  giveToDevice(held);
}

// Any of the two threads gives what may be given: the queue is whose turn it is.
void DeviceTransfers::post(size_t number) {
  Lock held(mutex_);
  Entry& entry = entries_[number];
  entry.lane->origin.record(*entry.before);
  entry.posted = true;
  giveToDevice(held);
}

void DeviceTransfers::giveToDevice(Lock&) {
  for (; given_ < entries_.size() && entries_[given_].posted; ++given_) {
    Entry& entry = entries_[given_];
    try {
      if (!entry.left_out) start(entry);
    } catch (Error& error) {
      error.addContext(describe(entry));
      throw;
    }
  }
  changed_.notify_all();
}

void DeviceTransfers::start(Entry& entry) {
  Lane& lane = *entry.lane;
  if (entry.behind == 0) queue_->wait(*begin_);
  if (entry.behind > lane.reached) {  // nothing is less than 0
    queue_->wait(*entry.before);
    lane.reached = std::max(lane.reached, entry.step.instruction);
  }
  meeting_.store(true, std::memory_order_relaxed);
  if (entry.group != nullptr)
    plan_.communicator->collective(*queue_, *entry.group, entry.call);
  else if (entry.kind == InstructionKind::kSend)
    plan_.communicator->send(*queue_, entry.peer, entry.bytes);
  else
    plan_.communicator->receive(*queue_, entry.peer, entry.bytes);
  meeting_.store(false, std::memory_order_relaxed);
  queue_->record(*entry.end);
}

// By proof its turn comes with what has been posted so far, and with what the other thread posts next.
void DeviceTransfers::await(size_t number) {
  Lock held(mutex_);
  changed_.wait(held, [&] { return given_ > number || interrupted_; });
  if (given_ <= number) fail(ErrorCode::kPeerUnavailable, "communication between GPUs was interrupted");
  entries_[number].lane->origin.wait(*entries_[number].end);
}

void DeviceTransfers::look() {
  plan_.communicator->check();
  const Lock held(mutex_, std::try_to_lock);
  if (!held.owns_lock()) return;
  if (interrupted_) fail(ErrorCode::kPeerUnavailable, "communication between GPUs was interrupted");
  Device& device = queue_->device();
  while (seen_ < given_ && (entries_[seen_].left_out || device.hasHappened(*entries_[seen_].end))) {
    ++seen_;
    ended_.fetch_add(1, std::memory_order_relaxed);
    turn_ = {};
  }
  const bool is_turn = seen_ < given_ && device.hasHappened(*entries_[seen_].before);
  waiting_.store(is_turn, std::memory_order_relaxed);
  if (!is_turn) return;
  if (turn_ == Clock::time_point()) turn_ = Clock::now();
  if (Clock::now() - turn_ < plan_.timeout) return;
  fail(ErrorCode::kHang, "{}: no rank has met it on the device for {} s",
       describeAt(program_, entries_[seen_].step.instruction),
       std::chrono::duration_cast<std::chrono::seconds>(plan_.timeout).count());
}

void DeviceTransfers::interrupt() {
  plan_.communicator->interrupt();
  const Lock held(mutex_);
  interrupted_ = true;
  changed_.notify_all();
}

void DeviceTransfers::abort() {
  interrupt();
  plan_.communicator->abort();
}

}  // namespace pipeshard
