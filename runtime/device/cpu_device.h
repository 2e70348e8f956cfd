// The host's processors as a device: kernels run in the thread that asks for them (and OpenMP's beside it),
// and all work is done when the call returns. Queues and events are nothing.
#pragma once

#include "runtime/device/device.h"

namespace pipeshard {

Device& cpuDevice();

}  // namespace pipeshard
