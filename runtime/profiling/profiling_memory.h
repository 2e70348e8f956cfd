// What copies take on this machine. Times are nanoseconds.
#pragma once

#include "ir/cluster/cluster.h"

namespace pipeshard {

class Device;  // runtime/device/device.h

// Copies inside a device's memory, of growing size up to `most_bytes` of a copy: ns by bytes read and
// written.
CostCurve measureMemory(Device& device, size_t most_bytes = size_t{64} << 20);
// To the host's pinned memory and back, one behind the other: what a transfer between ranks takes on top of
// the message, ns by bytes of it. Nothing where the host reads the device's memory.
CostCurve measureStaging(Device& device, size_t most_bytes = size_t{64} << 20);

}  // namespace pipeshard
