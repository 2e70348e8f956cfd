#include "runtime/device/cuda_loader.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr const char* kModule = "pipeshard_cuda.so";

// Beside the program, as a build has it, or in the lib folder beside its own.
std::string modulePath() {
  namespace fs = std::filesystem;
  if (const char* given = std::getenv("PIPESHARD_CUDA_MODULE"); given != nullptr) return given;
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  const fs::path places[] = {folder / kModule, folder.parent_path() / "lib" / "pipeshard" / kModule};
  for (const fs::path& place : places) {
    if (fs::exists(place, error)) return place.string();
  }
  fail(ErrorCode::kConfiguration,
       "--device cuda: this pipeshard was built without CUDA: neither {} nor {} exists (build it with the "
       "preset "
       "'cuda', which needs the CUDA Toolkit)",
       places[0].string(), places[1].string());
}

}  // namespace

std::unique_ptr<Device> openCudaDevice(int number, bool shared, CudaModule* loaded) {
  const std::string path = modulePath();
  void* module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr)
    fail(ErrorCode::kConfiguration, "--device cuda: {} cannot be loaded: {}", path, ::dlerror());
  auto* open = reinterpret_cast<void (*)(OpenedCuda*)>(::dlsym(module, "pipeshard_open_cuda"));
  OpenedCuda opened;
  opened.number = number;
  opened.shared = shared;
  if (open != nullptr) open(&opened);
  if (opened.version != kCudaModuleVersion) {
    fail(ErrorCode::kConfiguration,
         "--device cuda: {} belongs to another version of pipeshard; build both again", path);
  }
  if (loaded != nullptr) {
    *loaded = {path, opened.source_version, opened.source_commit, reinterpret_cast<const void*>(open)};
  }
  return std::move(opened.device);
}

}  // namespace pipeshard
