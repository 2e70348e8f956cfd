// libcudart's memory and events of other processes. STANDIN_IPC=off: the device has none.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "tests/standin/heap.h"
#include "tests/standin/lines.h"
#include "tests/standin/sharing.h"

#define API extern "C" __attribute__((visibility("default")))

namespace standin {
namespace {

static_assert(sizeof(SharedHandle) <= sizeof(cudaIpcMemHandle_t) &&
              sizeof(SharedHandle) <= sizeof(cudaIpcEventHandle_t));

bool isOff() {
  const char* text = std::getenv("STANDIN_IPC");
  return text != nullptr && std::string(text) == "off";
}

cudaError_t refuse(const char* call, const std::string& why) {
  report(std::string(call) + ": " + why);
  return cudaErrorInvalidValue;
}

template <typename Handle>
SharedHandle sharedHandle(const Handle& handle) {
  SharedHandle shared;
  std::memcpy(static_cast<void*>(&shared), &handle, sizeof shared);
  return shared;
}

}  // namespace
}  // namespace standin

using namespace standin;

API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* begin) {
  if (isOff()) return cudaErrorNotSupported;
  const std::lock_guard held(lock());
  const size_t bytes = bytesOfBlock(begin);
  if (bytes == 0) return refuse("cudaIpcGetMemHandle", "no block of the device: " + describeAddress(begin));
  const SharedHandle shared = handleOfMemory(heapOffset(begin), bytes);
  std::memcpy(handle, &shared, sizeof shared);
  return cudaSuccess;
}

API cudaError_t cudaIpcOpenMemHandle(void** begin, cudaIpcMemHandle_t handle, unsigned flags) {
  if (isOff()) return cudaErrorNotSupported;
  const std::lock_guard held(lock());
  if (flags != cudaIpcMemLazyEnablePeerAccess) return refuse("cudaIpcOpenMemHandle", "no such flags");
  std::string why;
  *begin = openMemory(sharedHandle(handle), why);
  return *begin == nullptr ? refuse("cudaIpcOpenMemHandle", why) : cudaSuccess;
}

API cudaError_t cudaIpcCloseMemHandle(void* begin) {
  finishAll();
  const std::lock_guard held(lock());
  return closeMemory(begin) ? cudaSuccess : refuse("cudaIpcCloseMemHandle", "memory that is not open");
}

API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  if (isOff()) return cudaErrorNotSupported;
  const std::lock_guard held(lock());
  auto* of = reinterpret_cast<Event*>(event);
  if (!isEvent(of) || !isInterprocess(*of))
    return refuse("cudaIpcGetEventHandle", "no event that was made for other processes");
  auto [shared, as] = shareEvent();
  share(*of, std::move(as));
  std::memcpy(handle, &shared, sizeof shared);
  return cudaSuccess;
}

API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  if (isOff()) return cudaErrorNotSupported;
  const std::lock_guard held(lock());
  std::string why;
  auto of_another = openEvent(sharedHandle(handle), why);
  if (of_another == nullptr) return refuse("cudaIpcOpenEventHandle", why);
  Event* made = makeEvent(false);
  share(*made, std::move(of_another));
  *event = reinterpret_cast<cudaEvent_t>(made);
  return cudaSuccess;
}
