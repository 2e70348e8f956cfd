// GPUs: the module that knows them (device/cuda) is loaded when somebody asks for one, from the folder of the
// program.
#pragma once

#include <memory>
#include <string>

#include "runtime/device/device.h"

namespace pipeshard {

// What was loaded, and which build it says that it is of (runtime/identity/build_identity.h).
struct CudaModule {
  std::string path;
  std::string version, commit;
  const void* place = nullptr;  // an address in it
};

// GPU number `number` of those that this process sees; `shared`: counted round where there are fewer.
// `loaded`, which may be null: from where it comes. Error(kConfiguration) saying what was looked for and
// found: no module, one without its libraries, no driver, no such device.
std::unique_ptr<Device> openCudaDevice(int number, bool shared = false, CudaModule* loaded = nullptr);

// What program and module say to each other, and a number that changes with it and with Device.
inline constexpr int kCudaModuleVersion = 8;
struct OpenedCuda {
  int asked = kCudaModuleVersion;
  int number = 0;
  bool shared = false;
  int version = 0;  // the module's
  // of its sources (runtime/identity/source_version.h)
  const char* source_version = "";
  const char* source_commit = "";
  std::unique_ptr<Device> device;
};

}  // namespace pipeshard
