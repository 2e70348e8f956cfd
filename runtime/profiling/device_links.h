// What messages and collectives take straight between two GPUs of this machine, in processes like those of a
// job. Times are nanoseconds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/device/device.h"
#include "runtime/profiling/profiling_links.h"

namespace pipeshard {

struct DeviceLinks {
  std::optional<LinkTimes> times;  // nothing: they do not reach each other straight
  std::string text;                // by what, "NCCL 2.28.9"; or why not
};

// `open(k)` opens device number k; only helpers of this process call it, which are forked: it may not have
// used a GPU before. Errors: as DeviceCommunicator, in a helper, which says it; then kPeerUnavailable.
DeviceLinks measureDeviceLinks(const std::function<std::unique_ptr<Device>(int number)>& open,
                               int64_t most_bytes);

}  // namespace pipeshard
