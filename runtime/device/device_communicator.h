// Tensors straight from device to device, as work of queues: the host says what is to go, and goes on. A send
// is a rendezvous: it ends when its receive has met it, and holds up what is behind it in its queue. So who
// calls these keeps to one order (ir/program/communication_order.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/base/ids.h"
#include "runtime/kernels/base/kernel.h"

namespace pipeshard {

class Communicator;  // transport/collectives/communicator.h
class DeviceQueue;

// Of one rank. All ranks of a communicator make the same calls on each other in one order. After an Error
// only interrupt(), abort() and the destruction are allowed. Thread rules: one thread at a time; check() and
// interrupt() are for any.
class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;

  // Work of the queue, on the device's memory. The first message of two ranks may wait until the other has
  // called, too. Errors: kPeerUnavailable (a peer, or the network, is gone), kHang (a deadline), kBadModel or
  // kConfiguration (a type that cannot be summed).
  virtual void send(DeviceQueue& queue, RankId peer, std::span<const std::byte> data) = 0;
  virtual void receive(DeviceQueue& queue, RankId peer, std::span<std::byte> data) = 0;
  // Over one of the groups that were said when it was made. `call.group` means nothing here.
  virtual void collective(DeviceQueue& queue, const std::vector<RankId>& group,
                          const CollectiveCall& call) = 0;

  // Throws Error(kPeerUnavailable) with what has gone wrong since, beside the host, or when it was
  // interrupted. Nothing while another thread makes a call.
  virtual void check() = 0;
  // What went wrong first did so here, and not with a peer, which may be gone because of something else.
  virtual bool hasFailedHere() const = 0;
  // Every wait of the host in here ends with Error(kPeerUnavailable).
  virtual void interrupt() = 0;
  // What is under way on the device ends, whatever becomes of it. Where that takes more than 5 seconds the
  // process ends, with the code of kPeerUnavailable.
  virtual void abort() noexcept = 0;
};

// All ranks say the same, but for `rank`.
struct DeviceMeeting {
  std::string id;  // of newMeeting() of one of them
  RankId rank;
  int ranks = 0;
  std::vector<std::vector<RankId>> groups{};  // ascending
  std::chrono::milliseconds timeout{};        // for all to have come, and for each wait of the host later
  // By which hosts tell each other what goes on: of these ranks, for nothing else meanwhile; and what each
  // says to all, by rank, when it has come from all. Of Device::nearNetwork() alone.
  Communicator* host = nullptr;
  std::function<std::vector<std::string>(const std::string& said)> exchange{};
};

// How devices of a kind reach each other. Errors of all: kConfiguration where its library is missing.
class DeviceNetwork {
 public:
  virtual ~DeviceNetwork() = default;
  virtual std::string name() = 0;        // "NCCL 2.28.9"
  virtual std::string newMeeting() = 0;  // bytes
  // Waits for all ranks, each of which has a device of its own, but for Device::nearNetwork(). Errors as
  // DeviceCommunicator.
  virtual std::unique_ptr<DeviceCommunicator> meet(const DeviceMeeting& meeting) = 0;
};

}  // namespace pipeshard
