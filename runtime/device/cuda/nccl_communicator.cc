// Nothing in here waits inside NCCL: communicators do not block (ncclConfig_t::blocking = 0), so that every
// wait has a deadline and can be interrupted, and abort() meets no thread in there. Communicators are made in
// one order on all ranks: that of all, for messages, then those of the groups, by splits of it.
#include "runtime/device/cuda/nccl_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "runtime/device/cuda/nccl_library.h"
#include "runtime/kernels/base/cuda_launch.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLongestAbort{5}, kLongestLeave{3};
constexpr std::chrono::microseconds kLookAgain{50};

ncclDataType_t summedType(DataType type) {
  switch (type) {
    case DataType::kFloat32: return ncclFloat32;
    case DataType::kFloat64: return ncclFloat64;
    case DataType::kInt32: return ncclInt32;
    case DataType::kInt64: return ncclInt64;
    case DataType::kUint8: return ncclUint8;
    case DataType::kInt8: return ncclInt8;
    case DataType::kFloat16: return ncclFloat16;
    case DataType::kBfloat16: return ncclBfloat16;
    default:
      fail(ErrorCode::kBadModel,
           "tensors of type {} cannot be summed by NCCL (float32, float64, bfloat16, float16, int32, int64, "
           "uint8, int8 can); --transport staged can",
           dataTypeName(type));
  }
}

ncclRedOp_t operatorOf(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum: return ncclSum;
    case Reduction::kMax: return ncclMax;
    case Reduction::kMin: return ncclMin;
  }
  return ncclSum;
}

// Groups that have no rank in common are made by one split: by round, its groups.
std::vector<std::vector<std::vector<RankId>>> splitsOf(const std::vector<std::vector<RankId>>& groups,
                                                       int ranks) {
  std::vector<std::vector<std::vector<RankId>>> rounds;
  std::vector<std::vector<bool>> taken;
  for (const std::vector<RankId>& group : groups) {
    if (std::ssize(group) == ranks) continue;  // they have the communicator of all
    const auto is_free = [&](size_t round) {
      return std::none_of(group.begin(), group.end(),
                          [&](RankId rank) { return taken[round][rank.index()]; });
    };
    size_t round = 0;
    while (round < rounds.size() && !is_free(round)) ++round;
    if (round == rounds.size()) {
      rounds.emplace_back();
      taken.emplace_back(ranks, false);
    }
    rounds[round].push_back(group);
    for (const RankId rank : group) taken[round][rank.index()] = true;
  }
  return rounds;
}

class NcclCommunicator : public DeviceCommunicator {
 public:
  NcclCommunicator(CudaDevice& device, const DeviceMeeting& meeting)
      : nccl_(ncclLibrary()), device_(device), rank_(meeting.rank), timeout_(meeting.timeout) {
    try {
      device_.use();
      ncclUniqueId id{};
      if (meeting.id.size() != sizeof id.internal)
        fail(ErrorCode::kInternal, "an id of {} bytes for NCCL, expected {}", meeting.id.size(),
             sizeof id.internal);
      std::memcpy(id.internal, meeting.id.data(), sizeof id.internal);
      ncclConfig_t config = configuration();
      all_ = nullptr;
      const ncclResult_t result =
          nccl_.commInitRankConfig(&all_, meeting.ranks, id, static_cast<int>(rank_.index()), &config);
      if (all_ != nullptr) made_.push_back(all_);
      settle(all_, result, "to meet all ranks");
      for (const auto& round : splitsOf(meeting.groups, meeting.ranks)) split(round);
      for (const std::vector<RankId>& group : meeting.groups) {
        if (std::ssize(group) == meeting.ranks) groups_[group] = all_;
      }
    } catch (...) {
      abort();
      throw;
    }
  }
  ~NcclCommunicator() override {
    try {
      device_.use();
      if (std::uncaught_exceptions() > 0) abort();  // the others learn from it that this rank is gone
      if (!aborted_) leave();
    } catch (const Error&) {
      abort();
    }
  }

  void send(DeviceQueue& queue, RankId peer, std::span<const std::byte> data) override {
    const std::lock_guard held(mutex_);
    device_.use();
    settle(all_,
           nccl_.send(data.data(), data.size(), ncclUint8, static_cast<int>(peer.index()), all_,
                      streamOf(queue)),
           "to send");
  }
  void receive(DeviceQueue& queue, RankId peer, std::span<std::byte> data) override {
    const std::lock_guard held(mutex_);
    device_.use();
    settle(all_,
           nccl_.recv(data.data(), data.size(), ncclUint8, static_cast<int>(peer.index()), all_,
                      streamOf(queue)),
           "to receive");
  }
  void collective(DeviceQueue& queue, const std::vector<RankId>& group, const CollectiveCall& call) override {
    const auto found = groups_.find(group);
    if (found == groups_.end())
      fail(ErrorCode::kInternal, "a collective over ranks [{}], which have no communicator",
           fmt::join(group, ","));
    if (call.count == 0) return;
    const std::lock_guard held(mutex_);
    device_.use();
    settle(found->second, begin(call, group.size(), found->second, streamOf(queue)), "a collective");
  }

  void check() override {
    const std::unique_lock held(mutex_, std::try_to_lock);
    if (!held.owns_lock()) return;
    if (interrupted_) failInterrupted();
    device_.use();
    for (ncclComm_t communicator : made_) requireGood(communicator, stateOf(communicator), "work under way");
  }
  bool hasFailedHere() const override { return first_failure_ == Failed::kHere; }
  void interrupt() override { interrupted_ = true; }

  void abort() noexcept override {
    interrupted_ = true;  // a thread that is in a call comes out of it
    if (std::exchange(aborted_, true) || made_.empty()) return;
    struct State {
      std::mutex mutex;
      std::condition_variable changed;
      bool done = false;
    };
    const auto state = std::make_shared<State>();
    std::thread thread([this, state] {
      {
        const std::lock_guard held(mutex_);
        device_.use();
        for (ncclComm_t communicator : made_) nccl_.commAbort(communicator);
      }
      const std::lock_guard held(state->mutex);
      state->done = true;
      state->changed.notify_all();
    });
    std::unique_lock held(state->mutex);
    if (state->changed.wait_for(held, kLongestAbort, [&] { return state->done; })) {
      thread.join();
      made_.clear();
      return;
    }
    ::_exit(static_cast<int>(ErrorCode::kPeerUnavailable));
  }

 private:
  static ncclConfig_t configuration() {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return config;
  }
  static cudaStream_t streamOf(const DeviceQueue& queue) { return kernels::streamOf(&queue); }

  void split(const std::vector<std::vector<RankId>>& groups) {
    int color = NCCL_SPLIT_NOCOLOR;
    for (size_t g = 0; g < groups.size(); ++g) {
      if (std::binary_search(groups[g].begin(), groups[g].end(), rank_)) color = static_cast<int>(g);
    }
    ncclConfig_t config = configuration();
    ncclComm_t child = nullptr;
    settle(all_, nccl_.commSplit(all_, color, static_cast<int>(rank_.index()), &child, &config),
           "to make a communicator of a group");
    if (child == nullptr) return;
    made_.push_back(child);
    settle(child, stateOf(child), "to make a communicator of a group");
    groups_[groups[color]] = child;
  }

  ncclResult_t begin(const CollectiveCall& call, size_t members, ncclComm_t communicator,
                     cudaStream_t stream) {
    const size_t bytes = call.count * dataTypeSize(call.type);
    switch (call.kind) {
      case CollectiveCall::Kind::kAllReduce:
        return nccl_.allReduce(call.input, call.output, call.count, summedType(call.type),
                               operatorOf(call.reduction), communicator, stream);
      case CollectiveCall::Kind::kReduceScatter:
        return nccl_.reduceScatter(call.input, call.output, call.count, summedType(call.type),
                                   operatorOf(call.reduction), communicator, stream);
      case CollectiveCall::Kind::kAllGather:
        return nccl_.allGather(call.input, call.output, bytes, ncclUint8, communicator, stream);
      case CollectiveCall::Kind::kAllToAll: break;
    }
    const auto* from = static_cast<const std::byte*>(call.input);
    auto* to = static_cast<std::byte*>(call.output);
    ncclResult_t result = nccl_.groupStart();
    for (size_t m = 0; m < members && result == ncclSuccess; ++m) {
      const int peer = static_cast<int>(m);
      result = nccl_.send(from + m * bytes, bytes, ncclUint8, peer, communicator, stream);
      if (result == ncclSuccess || result == ncclInProgress)
        result = nccl_.recv(to + m * bytes, bytes, ncclUint8, peer, communicator, stream);
      if (result == ncclInProgress) result = ncclSuccess;
    }
    const ncclResult_t end = nccl_.groupEnd();
    return result == ncclSuccess ? end : result;
  }

  ncclResult_t stateOf(ncclComm_t communicator) const {
    ncclResult_t state = ncclInternalError;
    const ncclResult_t result = nccl_.commGetAsyncError(communicator, &state);
    return result == ncclSuccess ? state : result;
  }

  // Until what was called has been taken on.
  void settle(ncclComm_t communicator, ncclResult_t result, const char* what) {
    const Clock::time_point deadline = Clock::now() + timeout_;
    while (result == ncclInProgress) {
      if (interrupted_) failInterrupted();
      result = stateOf(communicator);
      if (result != ncclInProgress) break;
      if (Clock::now() > deadline) {
        fail(ErrorCode::kHang, "NCCL: {}: not done within {} s; a rank has not come, or cannot be reached",
             what, std::chrono::duration_cast<std::chrono::seconds>(timeout_).count());
      }
      std::this_thread::sleep_for(kLookAgain);
    }
    requireGood(communicator, result, what);
  }

  void requireGood(ncclComm_t communicator, ncclResult_t result, const char* what) const {
    if (result == ncclSuccess || result == ncclInProgress) return;
    Failed nothing = Failed::kNothing;
    first_failure_.compare_exchange_strong(nothing,
                                           result == ncclRemoteError ? Failed::kPeer : Failed::kHere);
    const bool is_ours = result == ncclInvalidArgument || result == ncclInvalidUsage;
    const char* last = nccl_.getLastError(communicator);
    fail(is_ours ? ErrorCode::kInternal : ErrorCode::kPeerUnavailable, "NCCL: {}: {}{}{}", what,
         nccl_.getErrorString(result), last == nullptr || *last == 0 ? "" : ": ",
         last == nullptr ? "" : last);
  }
  [[noreturn]] static void failInterrupted() {
    fail(ErrorCode::kPeerUnavailable, "communication between GPUs was interrupted");
  }

  // Where all went well. Children first, in one order on all ranks.
  void leave() {
    const std::lock_guard held(mutex_);
    timeout_ = std::min<std::chrono::milliseconds>(timeout_, kLongestLeave);
    std::reverse(made_.begin(), made_.end());
    for (ncclComm_t communicator : made_) settle(communicator, nccl_.commFinalize(communicator), "to leave");
    for (ncclComm_t communicator : std::exchange(made_, {})) nccl_.commDestroy(communicator);
  }

  const NcclLibrary& nccl_;
  CudaDevice& device_;
  RankId rank_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;  // for whoever is in NCCL
  ncclComm_t all_ = nullptr;
  std::vector<ncclComm_t> made_;
  std::map<std::vector<RankId>, ncclComm_t> groups_;
  enum class Failed : uint8_t { kNothing, kPeer, kHere };
  mutable std::atomic<Failed> first_failure_ = Failed::kNothing;
  std::atomic<bool> interrupted_ = false;
  bool aborted_ = false;
};

}  // namespace

std::string NcclNetwork::name() { return ncclLibrary().name; }

std::string NcclNetwork::newMeeting() {
  device_.use();
  ncclUniqueId id{};
  if (const ncclResult_t result = ncclLibrary().getUniqueId(&id); result != ncclSuccess) {
    fail(ErrorCode::kPeerUnavailable, "NCCL: to begin: {}: {}", ncclLibrary().getErrorString(result),
         ncclLibrary().getLastError(nullptr));
  }
  return {id.internal, sizeof id.internal};
}

std::unique_ptr<DeviceCommunicator> NcclNetwork::meet(const DeviceMeeting& meeting) {
  return std::make_unique<NcclCommunicator>(device_, meeting);
}

}  // namespace pipeshard
