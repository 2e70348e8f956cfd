// A rank's messages and collectives as work of its device, in the order that was proven when the job was
// loaded (ir/program/communication_order.h): one queue does all of them, each when those before it have
// ended. Instructions come to them in the order of the program, and may do so earlier. What is posted then
// waits for its turn; whoever waits for it makes his own queue wait. So the host goes on through a step while
// the device is behind, and never waits in here but for the rank's other thread.
//
//   order: receive dy@0, send y@1               instructions: send y@1; run; receive dy@0; free y@1
//   send       posted: not given to the queue, it is not its turn
//   receive    posted and given, and the send behind it; the compute queue waits for the receive
//   free       the compute queue waits for the send
//
// What the executor sees are two communicators on the device's memory, one for each of its threads.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/program/communication_order.h"
#include "ir/program/program.h"
#include "runtime/device/device.h"
#include "runtime/device/device_communicator.h"
#include "transport/collectives/communicator.h"

namespace pipeshard {

// What a rank's device transfers are made of. `order`: of the program's steps.
struct DeviceTransfersPlan {
  DeviceCommunicator* communicator = nullptr;
  std::vector<CommunicationStep> order;
  std::chrono::milliseconds timeout{};  // for peers, when it is this rank's turn
};

class DeviceTransfers {
 public:
  // Whoever runs the program gives its work to `compute`, and that of the lane to `lane`. `behind`, by
  // instruction: waitsOfMessages (empty: each waits for all that is before it). Error(kInternal) where the
  // order is not that of the program's steps.
  DeviceTransfers(const Program& program, DeviceTransfersPlan plan, DeviceQueue& compute, DeviceQueue& lane,
                  std::span<const std::optional<size_t>> behind = {});
  ~DeviceTransfers();

  // Their calls are those of the program's instructions, in its order. Pointers are the device's. Errors as
  // DeviceCommunicator. What is sent is waited for by the queue: a handle's wait() returns at once.
  Communicator& foreground();
  Communicator& background();

  // Before a step gives anything to its queues: nothing of the last one is under way.
  void beginStep();
  // An instruction is left out, on all ranks.
  void leaveOut(size_t instruction);
  // While the host waits for the device. Throws what has gone wrong: of the communicator, or Error(kHang)
  // when it has been this rank's turn for too long.
  void look();
  // The message or collective that the device is at waits for another rank, as far as look() has seen.
  bool isWaiting() const { return waiting_.load(std::memory_order_relaxed); }
  // Likewise the host, for a word of another rank's.
  bool isMeeting() const { return meeting_.load(std::memory_order_relaxed); }
  // How many have ended, of all steps; likewise.
  uint64_t ended() const { return ended_.load(std::memory_order_relaxed); }
  // No thread waits in here any more; what is under way on the device ends.
  void abort();

 private:
  class Lane;
  class Posted;
  struct Entry;
  using Lock = std::unique_lock<std::mutex>;

  void post(size_t entry);
  void giveToDevice(Lock& held);
  void start(Entry& entry);
  std::string describe(const Entry& entry) const;
  void await(size_t entry);
  void interrupt();

  const Program& program_;
  DeviceTransfersPlan plan_;
  std::unique_ptr<DeviceQueue> queue_;
  std::unique_ptr<DeviceEvent> begin_;  // of the step, on the compute queue
  std::vector<Entry> entries_;          // in the order
  std::unique_ptr<Lane> foreground_, background_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t given_ = 0;                            // of entries_, to the queue
  size_t seen_ = 0;                             // of them, seen to have ended
  bool interrupted_ = false;                    // guarded, like those before
  std::chrono::steady_clock::time_point turn_;  // since when it is that of entries_[seen_]; 0: it is not
  std::atomic<bool> waiting_ = false, meeting_ = false;
  std::atomic<uint64_t> ended_ = 0;
};

}  // namespace pipeshard
