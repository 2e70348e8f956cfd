// GPUs: the module that knows them (device/cuda) is loaded when somebody asks for one, from the folder of the
// program.
#pragma once

#include <memory>
#include <string>

#include "runtime/device/device.h"

namespace pipeshard {

// GPU number `number` of those that this process sees; `shared`: counted round where there are fewer.
// Error(kConfiguration) saying what was looked for and found: no module, one without its libraries, no
// driver, no such device.
std::unique_ptr<Device> openCudaDevice(int number, bool shared = false);

// What program and module say to each other, and a number that changes with it and with Device.
inline constexpr int kCudaModuleVersion = 1;
struct OpenedCuda {
  int asked = kCudaModuleVersion;
  int number = 0;
  bool shared = false;
  int version = 0;  // the module's
  std::unique_ptr<Device> device;
};

}  // namespace pipeshard
