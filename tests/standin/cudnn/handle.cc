// libcudnn, the part that the module calls: handles, and work that is given to their streams.
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "tests/standin/cudnn/descriptors.h"

struct cudnnContext {
  int gpu = 0;
  cudaStream_t stream = nullptr;
};

namespace standin::cudnn {
namespace {

constexpr size_t kAlignment = 16;

std::set<cudnnHandle_t>& handles() {
  static std::set<cudnnHandle_t> all;
  return all;
}

bool overlap(const Place& a, const Place& b) {
  const auto* from = static_cast<const std::byte*>(a.address);
  const auto* other = static_cast<const std::byte*>(b.address);
  return from < other + b.bytes && other < from + a.bytes;
}

// "": none.
std::string faultOf(const std::vector<Place>& places) {
  for (const Place& place : places) {
    if (place.bytes == 0) continue;
    if (!inHeap(place.address) || isPinned(place.address))
      return std::string(place.what) + " is not in the device's memory";
    if (reinterpret_cast<uintptr_t>(place.address) % kAlignment != 0)
      return std::string(place.what) + " is at no multiple of 16 bytes";
    for (const Place& other : places) {
      if (&other != &place && place.write && other.bytes > 0 && overlap(place, other))
        return std::string(place.what) + " overlaps with " + other.what;
    }
  }
  return "";
}

}  // namespace

cudnnStatus_t give(cudnnHandle_t handle, const char* call, const std::vector<Place>& places,
                   std::function<void()> work) {
  const std::lock_guard held(lock());
  if (const std::string fault = faultOf(places); !fault.empty()) return refuse(call + (": " + fault));
  if (!handles().contains(handle)) return refuse(std::string(call) + ": no handle");
  int gpu = -1;
  cudaGetDevice(&gpu);
  if (gpu != handle->gpu) return refuse(std::string(call) + ": the handle is another GPU's");
  auto* stream = reinterpret_cast<Stream*>(handle->stream);
  if (!isStream(stream)) return refuse(std::string(call) + ": the default stream, or none");
  enqueue(*stream, call, [places, work = std::move(work)] {
    for (const Place& place : places) {
      if (place.bytes > 0) access(place.address, place.bytes, place.write);
    }
    work();
  });
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace standin::cudnn

using namespace standin;
using namespace standin::cudnn;

API size_t cudnnGetVersion() { return CUDNN_VERSION; }
API const char* cudnnGetErrorString(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_SUCCESS) return "CUDNN_STATUS_SUCCESS";
  return status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                              : "a status that the stand-in reports";
}
API cudnnStatus_t cudnnCreate(cudnnHandle_t* place) {
  auto* handle = new cudnnContext();
  cudaGetDevice(&handle->gpu);
  const std::lock_guard held(lock());
  handles().insert(handle);
  *place = handle;
  return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  const std::lock_guard held(lock());
  if (!handles().contains(handle)) return refuse("cudnnSetStream: no handle");
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
