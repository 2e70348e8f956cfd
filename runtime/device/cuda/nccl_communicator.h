// Ranks with a GPU each, by NCCL.
#pragma once

#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/device_communicator.h"

namespace pipeshard {

class NcclNetwork : public DeviceNetwork {
 public:
  explicit NcclNetwork(CudaDevice& device) : device_(device) {}
  std::string name() override;
  std::string newMeeting() override;
  std::unique_ptr<DeviceCommunicator> meet(const DeviceMeeting& meeting) override;

 private:
  CudaDevice& device_;
};

}  // namespace pipeshard
