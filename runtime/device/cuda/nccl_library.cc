#include "runtime/device/cuda/nccl_library.h"

#include <dlfcn.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";
constexpr const char* kHint = "--transport staged goes through the host's memory instead";

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr)
    fail(ErrorCode::kConfiguration, "--device cuda: {} has no {}: it is too old; {}", kLibrary, name, kHint);
}

NcclLibrary load() {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fail(ErrorCode::kConfiguration,
         "--device cuda: {}, by which GPUs reach each other, cannot be loaded: {}; {}", kLibrary, ::dlerror(),
         kHint);
  }
  NcclLibrary nccl;
  decltype(&::ncclGetVersion) version_of = nullptr;
  find(library, "ncclGetVersion", version_of);
  int version = 0;
  version_of(&version);
  nccl.name = fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  find(library, "ncclGetUniqueId", nccl.getUniqueId);
  find(library, "ncclGetErrorString", nccl.getErrorString);
  find(library, "ncclGetLastError", nccl.getLastError);
  find(library, "ncclCommInitRankConfig", nccl.commInitRankConfig);
  find(library, "ncclCommSplit", nccl.commSplit);
  find(library, "ncclCommGetAsyncError", nccl.commGetAsyncError);
  find(library, "ncclCommFinalize", nccl.commFinalize);
  find(library, "ncclCommDestroy", nccl.commDestroy);
  find(library, "ncclCommAbort", nccl.commAbort);
  find(library, "ncclGroupStart", nccl.groupStart);
  find(library, "ncclGroupEnd", nccl.groupEnd);
  find(library, "ncclSend", nccl.send);
  find(library, "ncclRecv", nccl.recv);
  find(library, "ncclAllReduce", nccl.allReduce);
  find(library, "ncclAllGather", nccl.allGather);
  find(library, "ncclReduceScatter", nccl.reduceScatter);
  return nccl;
}

}  // namespace

const NcclLibrary& ncclLibrary() {
  static const NcclLibrary library = load();
  return library;
}

}  // namespace pipeshard
