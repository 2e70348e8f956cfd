// Ranks of one machine, of which several may share a GPU, by CUDA IPC: who receives copies straight out of
// the sender's memory. What comes behind what is said by events that both processes have; that an event was
// recorded, by a word from host to host:
//
//   sender's queue      y is computed   record ready                              wait for done
//   sender's host                                    "y is there"    hears "done"
//   receiver's host                                  hears it        "done"
//   receiver's queue                                 wait for ready, copy, record done
//
// So hosts meet for every message and collective, and devices go on behind them. A wait for an event is given
// to a queue only when it was recorded. Each pair has events of its own: they are recorded again when the
// peer's word says that it has asked for what they stood for.
#pragma once

#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/device_communicator.h"

namespace pipeshard {

class IpcNetwork : public DeviceNetwork {
 public:
  explicit IpcNetwork(CudaDevice& device) : device_(device) {}
  std::string name() override { return "CUDA IPC"; }
  std::string newMeeting() override { return ""; }
  // Tries it, too: each rank reads what every other has written. At most 64 ranks.
  std::unique_ptr<DeviceCommunicator> meet(const DeviceMeeting& meeting) override;

 private:
  CudaDevice& device_;
};

}  // namespace pipeshard
