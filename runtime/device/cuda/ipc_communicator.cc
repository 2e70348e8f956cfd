#include "runtime/device/cuda/ipc_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "runtime/device/cuda/cuda_error.h"
#include "runtime/device/cuda/cuda_reduce_ranks.h"
#include "runtime/device/cuda/ipc_memory.h"
#include "runtime/kernels/base/cuda_launch.h"
#include "transport/collectives/communicator.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLongestUnderWay{3};  // when it is aborted
constexpr std::chrono::seconds kLongestTrial{20};
constexpr std::chrono::microseconds kLookAtWork{50};
constexpr int kPhases = 3;
constexpr char kCan = '+', kCannot = '-';

// From host to host: the work before an event was given to a queue, and the event recorded.
struct Word {
  uint64_t number = 0;  // of the words to this rank, from 1
  int32_t what = 0;     // a message: -1; a collective: CollectiveCall::Kind
  int32_t phase = 0;
  uint64_t bytes = 0;  // of the message, or of a member's part
  IpcPlace input, output;
};
constexpr int32_t kMessage = -1;

// What a rank says of itself when all meet.
struct Card {
  uint64_t token = 0;  // what lies at `trial`
  IpcPlace trial;
  // By peer: what this rank records for it.
  std::array<std::array<cudaIpcEventHandle_t, kPhases>, kMostReducedRanks> events;
};

// Events of one rank: those that it records for a peer, and those that the peer records for it.
struct Peer {
  std::array<cudaEvent_t, kPhases> ours{}, theirs{};
  uint64_t told = 0, heard = 0;
  Word said;  // while it is under way
  std::unique_ptr<SendHandle> saying;
};

RankReduction rankReduction(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum: return RankReduction::kSum;
    case Reduction::kMax: return RankReduction::kMax;
    case Reduction::kMin: return RankReduction::kMin;
  }
  return RankReduction::kSum;
}

// By which this way tells what goes on; a caller that leaves it out is a mistake of ours.
Communicator& hostOf(const DeviceMeeting& meeting) {
  PIPESHARD_CHECK(meeting.host != nullptr && meeting.exchange, "CUDA IPC without the host's communicator");
  return *meeting.host;
}

class IpcCommunicator : public DeviceCommunicator {
 public:
  IpcCommunicator(CudaDevice& device, const DeviceMeeting& meeting)
      : device_(device), rank_(meeting.rank), peers_(meeting.ranks), memory_(device), host_(hostOf(meeting)) {
    try {
      open(meeting);
    } catch (...) {
      release();
      throw;
    }
  }
  ~IpcCommunicator() override {
    try {
      if (std::uncaught_exceptions() > 0 || interrupted_)
        abort();
      else
        leave();
    } catch (...) {
      abort();
    }
    release();
  }

  void send(DeviceQueue& queue, RankId peer, std::span<const std::byte> data) override {
    const Call call(*this, queue);
    Word word{0, kMessage, 0, data.size(), {}, {}};
    if (!data.empty()) word.input = memory_.placeOf(data.data());
    record(call, peer, 0);
    tell(peer, word);
    hear(peer, {0, kMessage, 1, data.size(), {}, {}});
    await(call, peer, 1);
    finishTelling(peer);
  }
  void receive(DeviceQueue& queue, RankId peer, std::span<std::byte> data) override {
    const Call call(*this, queue);
    const Word word = hear(peer, {0, kMessage, 0, data.size(), {}, {}});
    await(call, peer, 0);
    if (!data.empty()) copy(call, memory_.addressOf(peer, word.input), data.data(), data.size());
    record(call, peer, 1);
    tell(peer, {0, kMessage, 1, data.size(), {}, {}});
    finishTelling(peer);
  }
  void collective(DeviceQueue& queue, const std::vector<RankId>& group, const CollectiveCall& call) override;

  void check() override {
    if (interrupted_) failInterrupted();
  }
  bool hasFailedHere() const override { return false; }
  void interrupt() override {
    interrupted_ = true;
    host_.interrupt();
  }
  void abort() noexcept override;

 private:
  // Of one rank: work for one queue.
  struct Call {
    Call(IpcCommunicator& communicator, DeviceQueue& queue)
        : held(communicator.mutex_), of(communicator), stream(kernels::streamOf(&queue)) {
      if (of.interrupted_) failInterrupted();
      of.device_.use();
    }
    ~Call() { cudaEventRecord(of.last_, stream); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    const std::lock_guard<std::mutex> held;
    IpcCommunicator& of;
    const cudaStream_t stream;
  };
  // What a collective works on: by member, its tensors as this process sees them.
  struct Members {
    const std::vector<RankId>& ranks;
    size_t own = 0;  // the place of this rank
    std::vector<const std::byte*> inputs, outputs;
  };

  [[noreturn]] static void failInterrupted() {
    fail(ErrorCode::kPeerUnavailable, "communication between GPUs was interrupted");
  }
  void open(const DeviceMeeting& meeting);
  std::string offer();
  void take(const std::vector<std::string>& cards);
  void tryWith(const std::vector<std::string>& cards);
  void awaitTrial(std::unique_ptr<DeviceQueue>& queue, MemoryBlock& read) const;
  void leave();
  void release() noexcept;

  void record(const Call& call, RankId peer, int phase) const {
    checkCuda(cudaEventRecord(peers_[peer.index()].ours[phase], call.stream), "an event for another rank");
  }
  void await(const Call& call, RankId peer, int phase) const {
    checkCuda(cudaStreamWaitEvent(call.stream, peers_[peer.index()].theirs[phase], 0),
              "a wait for another rank's event");
  }
  static void copy(const Call& call, const void* from, void* to, size_t bytes) {
    if (from == to || bytes == 0) return;
    checkCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, call.stream),
              "a copy from another rank");
  }
  void tell(RankId peer, Word word) {
    Peer& to = peers_[peer.index()];
    word.number = ++to.told;
    to.said = word;
    to.saying = host_.send(peer, std::as_bytes(std::span(&to.said, 1)));
  }
  void finishTelling(RankId peer) {
    Peer& to = peers_[peer.index()];
    if (to.saying) to.saying->wait();
    to.saying.reset();
  }
  // The next word of this rank, which is to be like `expected`.
  Word hear(RankId peer, const Word& expected) {
    Word word;
    host_.receive(peer, std::as_writable_bytes(std::span(&word, 1)));
    if (word.number != ++peers_[peer.index()].heard || word.what != expected.what ||
        word.phase != expected.phase || word.bytes != expected.bytes) {
      fail(ErrorCode::kVersionMismatch,
           "rank {} gives rank {} {} bytes by call {} (word {}, phase {}), expected {} by {} (word {}, phase "
           "{})",
           peer, rank_, word.bytes, word.what, word.number, word.phase, expected.bytes, expected.what,
           peers_[peer.index()].heard, expected.phase);
    }
    return word;
  }
  // All members have come to this phase, and what they are given from now on is behind it.
  void meetAll(const Call& call, Members& members, const Word& word);
  void gather(const Call& call, const Members& members, std::byte* output, size_t part) const;
  void exchangeParts(const Call& call, const Members& members, std::byte* output, size_t part) const;
  void reduce(const Call& call, const Members& members, const CollectiveCall& what, size_t offset,
              std::byte* output, size_t count) const;

  CudaDevice& device_;
  RankId rank_;
  std::mutex mutex_;  // of whoever gives work
  std::vector<Peer> peers_;
  MemoryBlock trial_;
  IpcMemory memory_;
  Communicator& host_;
  cudaEvent_t last_ = nullptr;  // the end of what was given
  std::atomic<bool> interrupted_ = false;
};

void IpcCommunicator::meetAll(const Call& call, Members& members, const Word& word) {
  const bool is_first = word.phase == 0;
  for (const RankId peer : members.ranks) {
    if (peer == rank_) continue;
    record(call, peer, word.phase);
    tell(peer, word);
  }
  for (size_t m = 0; m < members.ranks.size(); ++m) {
    const RankId peer = members.ranks[m];
    if (peer == rank_) continue;
    const Word of_peer = hear(peer, word);
    if (is_first) {
      members.inputs[m] = memory_.addressOf(peer, of_peer.input);
      members.outputs[m] = memory_.addressOf(peer, of_peer.output);
    }
    await(call, peer, word.phase);
  }
  for (const RankId peer : members.ranks) finishTelling(peer);
}

void IpcCommunicator::gather(const Call& call, const Members& members, std::byte* output, size_t part) const {
  for (size_t m = 0; m < members.inputs.size(); ++m) copy(call, members.inputs[m], output + m * part, part);
}

void IpcCommunicator::exchangeParts(const Call& call, const Members& members, std::byte* output,
                                    size_t part) const {
  for (size_t m = 0; m < members.inputs.size(); ++m)
    copy(call, members.inputs[m] + members.own * part, output + m * part, part);
}

void IpcCommunicator::reduce(const Call& call, const Members& members, const CollectiveCall& what,
                             size_t offset, std::byte* output, size_t count) const {
  if (count == 0) return;
  RankInputs inputs{};
  for (const std::byte* input : members.inputs) inputs.of[inputs.ranks++] = input + offset;
  if (inputs.ranks == 1) return copy(call, inputs.of[0], output, count * dataTypeSize(what.type));
  if (reduceRanksOnDevice(call.stream, what.type, rankReduction(what.reduction), inputs, output, count))
    return;
  fail(ErrorCode::kConfiguration,
       "reductions between GPUs are done in float32, float64, bfloat16, float16, int32 or int64, not {}; "
       "convert first",
       dataTypeName(what.type));
}

// Nobody's tensors are changed while another reads them. In phase 0 all inputs are there; a sum over all is
// cut: each member reduces a part of it where it belongs, in the output, which may be the input, and takes
// the other parts from there when they are there (phase 1). In the last phase all have read.
void IpcCommunicator::collective(DeviceQueue& queue, const std::vector<RankId>& group,
                                 const CollectiveCall& what) {
  if (what.count == 0) return;
  const Call call(*this, queue);
  const size_t size = dataTypeSize(what.type), part = what.count * size;
  auto* const output = static_cast<std::byte*>(what.output);
  Members members{group, 0, {}, {}};
  members.own = std::find(group.begin(), group.end(), rank_) - group.begin();
  members.inputs.assign(group.size(), static_cast<const std::byte*>(what.input));
  members.outputs.assign(group.size(), output);
  Word word{0,    static_cast<int32_t>(what.kind), 0,
            part, memory_.placeOf(what.input),     memory_.placeOf(what.output)};
  meetAll(call, members, word);
  switch (what.kind) {
    case CollectiveCall::Kind::kAllGather: gather(call, members, output, part); break;
    case CollectiveCall::Kind::kAllToAll: exchangeParts(call, members, output, part); break;
    case CollectiveCall::Kind::kReduceScatter:
      reduce(call, members, what, members.own * part, output, what.count);
      break;
    case CollectiveCall::Kind::kAllReduce: {
      const size_t each = (what.count + group.size() - 1) / group.size();
      const auto begin = [&](size_t m) { return std::min(m * each, what.count); };
      const size_t own = begin(members.own);
      reduce(call, members, what, own * size, output + own * size, begin(members.own + 1) - own);
      ++word.phase;
      meetAll(call, members, word);
      for (size_t m = 0; m < group.size(); ++m)
        copy(call, members.outputs[m] + begin(m) * size, output + begin(m) * size,
             (begin(m + 1) - begin(m)) * size);
      break;
    }
  }
  ++word.phase;
  meetAll(call, members, word);
}

// What is under way waits only for what other processes were given before: it ends, where these are alive.
void IpcCommunicator::abort() noexcept {
  interrupt();
  if (last_ == nullptr) return;
  const Clock::time_point deadline = Clock::now() + kLongestUnderWay;
  while (cudaEventQuery(last_) == cudaErrorNotReady) {
    cudaGetLastError();  // it is none
    if (Clock::now() > deadline) ::_exit(static_cast<int>(ErrorCode::kPeerUnavailable));
    std::this_thread::sleep_for(kLookAtWork);
  }
}

// All have closed what they had open before anybody's memory is given back.
void IpcCommunicator::leave() {
  device_.use();
  memory_.close();
  const std::byte word{1};
  std::vector<std::unique_ptr<SendHandle>> saying;
  for (const RankId peer : idsBelow<RankId>(peers_.size())) {
    if (peer != rank_) saying.push_back(host_.send(peer, std::span(&word, 1)));
  }
  for (const RankId peer : idsBelow<RankId>(peers_.size())) {
    std::byte heard{};
    if (peer != rank_) host_.receive(peer, std::span(&heard, 1));
  }
  for (const auto& one : saying) one->wait();
}

void IpcCommunicator::release() noexcept {
  memory_.close();
  for (Peer& peer : peers_) {
    for (cudaEvent_t event : peer.ours) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    for (cudaEvent_t event : peer.theirs) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    peer.ours = peer.theirs = {};
  }
  if (last_ != nullptr) cudaEventDestroy(std::exchange(last_, nullptr));
}

// This rank's card, and what the others need to try it.
std::string IpcCommunicator::offer() {
  if (peers_.size() > kMostReducedRanks)
    fail(ErrorCode::kConfiguration, "{} ranks, it can do {}", peers_.size(), kMostReducedRanks);
  device_.use();
  Card card{};
  std::random_device random;
  card.token = uint64_t{random()} << 32 | random();
  trial_ = device_.allocate(sizeof card.token);
  card.trial = memory_.placeOf(trial_.bytes.data());
  checkCuda(cudaEventCreateWithFlags(&last_, cudaEventDisableTiming), "an event");
  const std::unique_ptr<DeviceQueue> queue = device_.makeQueue();
  queue->upload(reinterpret_cast<const std::byte*>(&card.token), trial_.bytes.data(), sizeof card.token);
  for (size_t p = 0; p < peers_.size(); ++p) {
    if (p == rank_.index()) continue;
    for (int phase = 0; phase < kPhases; ++phase) {
      cudaEvent_t& event = peers_[p].ours[phase];
      checkCuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess),
                "an event for another rank");
      checkCuda(cudaIpcGetEventHandle(&card.events[p][phase], event), "a handle of an event");
    }
    checkCuda(cudaEventRecord(peers_[p].ours[0], kernels::streamOf(queue.get())),
              "an event for another rank");
  }
  queue->synchronize();
  return {reinterpret_cast<const char*>(&card), sizeof card};
}

Card cardOf(const std::string& said) {
  Card card{};
  if (said.size() != 1 + sizeof card)
    fail(ErrorCode::kVersionMismatch, "a card of {} bytes, expected {}", said.size() - 1, sizeof card);
  std::memcpy(&card, said.data() + 1, sizeof card);
  return card;
}

void IpcCommunicator::take(const std::vector<std::string>& cards) {
  device_.use();
  for (const RankId peer : idsBelow<RankId>(peers_.size())) {
    if (peer == rank_) continue;
    const Card card = cardOf(cards[peer.index()]);
    try {
      memory_.addressOf(peer, card.trial);
      for (int phase = 0; phase < kPhases; ++phase)
        checkCuda(
            cudaIpcOpenEventHandle(&peers_[peer.index()].theirs[phase], card.events[rank_.index()][phase]),
            "to open another rank's event");
    } catch (Error& error) {
      error.addContext(fmt::format("what rank {} has", peer));
      throw;
    }
  }
  tryWith(cards);
}

// Reads what all others have written.
void IpcCommunicator::tryWith(const std::vector<std::string>& cards) {
  std::unique_ptr<DeviceQueue> queue = device_.makeQueue();
  MemoryBlock read = device_.allocateHost(peers_.size() * sizeof(uint64_t));
  const cudaStream_t stream = kernels::streamOf(queue.get());
  for (const RankId peer : idsBelow<RankId>(peers_.size())) {
    if (peer == rank_) continue;
    const IpcPlace place = cardOf(cards[peer.index()]).trial;
    checkCuda(cudaStreamWaitEvent(stream, peers_[peer.index()].theirs[0], 0),
              "a wait for another rank's event");
    queue->download(memory_.addressOf(peer, place), read.bytes.data() + peer.index() * sizeof(uint64_t),
                    sizeof(uint64_t));
  }
  awaitTrial(queue, read);
  for (const RankId peer : idsBelow<RankId>(peers_.size())) {
    uint64_t found = 0;
    std::memcpy(&found, read.bytes.data() + peer.index() * sizeof found, sizeof found);
    if (peer != rank_ && found != cardOf(cards[peer.index()]).token)
      fail(ErrorCode::kConfiguration, "what rank {} has written is not what rank {} reads", peer, rank_);
  }
}

// `read`: into which the queue's work copies.
void IpcCommunicator::awaitTrial(std::unique_ptr<DeviceQueue>& queue, MemoryBlock& read) const {
  const cudaStream_t stream = kernels::streamOf(queue.get());
  const Clock::time_point deadline = Clock::now() + kLongestTrial;
  while (true) {
    const cudaError_t code = cudaStreamQuery(stream);
    if (code != cudaErrorNotReady) {
      checkCuda(code, "to read another rank's memory");
      return queue->synchronize();
    }
    cudaGetLastError();  // it is none
    if (Clock::now() < deadline) {
      std::this_thread::sleep_for(kLookAtWork);
      continue;
    }
    // The end of both would be waited for, and a copy may still come.
    static_cast<void>(queue.release());
    static_cast<void>(new MemoryBlock(std::move(read)));
    fail(ErrorCode::kConfiguration, "an event of another rank does not happen within {} s",
         kLongestTrial.count());
  }
}

// The first that says why it cannot, with its rank; "": all can.
std::string firstReason(const std::vector<std::string>& said) {
  for (size_t k = 0; k < said.size(); ++k) {
    if (!said[k].starts_with(kCan)) return fmt::format("rank {}: {}", k, said[k].substr(1));
  }
  return "";
}

// What `attempt` gives, for all; why not, where it cannot be.
template <typename Attempt>
std::string said(Attempt&& attempt) {
  try {
    return kCan + attempt();
  } catch (const Error& error) {
    if (deviceIsLost() || error.code() == ErrorCode::kOutOfMemory) throw;
    cudaGetLastError();
    return kCannot + error.message();
  }
}

// Whatever goes wrong with one of them, all learn of it, and none waits for one that has gone.
void IpcCommunicator::open(const DeviceMeeting& meeting) {
  const std::vector<std::string> cards = meeting.exchange(said([&] { return offer(); }));
  std::string reason = firstReason(cards);
  if (reason.empty()) {
    reason = firstReason(meeting.exchange(said([&] {
      take(cards);
      return std::string();
    })));
  }
  if (reason.empty()) return;
  memory_.close();
  meeting.exchange("closed");
  fail(ErrorCode::kConfiguration, "{}", reason);
}

}  // namespace

std::unique_ptr<DeviceCommunicator> IpcNetwork::meet(const DeviceMeeting& meeting) {
  return std::make_unique<IpcCommunicator>(device_, meeting);
}

}  // namespace pipeshard
