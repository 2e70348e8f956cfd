// A device that does nothing before it must, on memory that the host cannot touch: for tests of what runs
// above a device. Queues keep their work until a synchronisation or an awaited event forces it, and memory is
// accessible while work runs only, so that the host crashes that reaches into it. Kernels are the CPU's; what
// they throw is recorded as a fault (Kernel::recordsFaults). What forgets to wait finds what was there
// before.
#pragma once

#include <memory>

#include "runtime/device/device.h"

namespace pipeshard::testing {

// For one rank, whose threads share it.
std::unique_ptr<Device> makeLazyDevice();

}  // namespace pipeshard::testing
