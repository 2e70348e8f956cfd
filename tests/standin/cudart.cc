// libcudart, the part that the module calls. See README.md.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/standin/cuda_on_host.h"
#include "tests/standin/fibers.h"
#include "tests/standin/heap.h"
#include "tests/standin/host_guard.h"
#include "tests/standin/lines.h"
#include "tests/standin/sharing.h"

#define API extern "C" __attribute__((visibility("default")))

namespace standin {
namespace {

constexpr unsigned kMostThreads = 1024, kMostGridRows = 65535;
constexpr size_t kMostSharedBytes = 48 << 10;
constexpr size_t kMemory = size_t{1} << 30;
constexpr size_t kMostPitch = 0x7fffffff;  // of every GPU

struct Registered {
  std::map<std::string, KernelEntry> twins;                // by mangled name
  std::unordered_map<const void*, std::string> functions;  // by nvcc's host function
};

Registered& registered() {
  static Registered* const all = new Registered;
  return *all;
}

// The libraries that STANDIN_TWINS names, "a.so:b.so"; their kernels register themselves.
void loadTwins() {
  const char* names = std::getenv("STANDIN_TWINS");
  std::stringstream list(names == nullptr ? "" : names);
  for (std::string name; std::getline(list, name, ':');) {
    if (::dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL) != nullptr) continue;
    const std::lock_guard held(lock());
    report("cannot load the twin: " + std::string(::dlerror()));
  }
}

const KernelEntry* findTwin(const std::string& kernel) {
  static const bool loaded = (loadTwins(), true);
  static_cast<void>(loaded);
  const auto found = registered().twins.find(kernel);
  return found == registered().twins.end() ? nullptr : &found->second;
}

// Between <<< >>> and the launch.
struct Configuration {
  dim3 grid, block;
  size_t shared = 0;
  void* stream = nullptr;
};
thread_local Configuration configuration;
thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

// A device's number as CUDA_VISIBLE_DEVICES has it.
bool isNumberBelow(const std::string& text, int limit) {
  return !text.empty() && text.size() < 6 && text.find_first_not_of("0123456789") == std::string::npos &&
         std::stoi(text) < limit;
}

// As the machine counts, not the process.
int machineDevice(int device) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return device;
  std::stringstream list(visible);
  std::string one;
  for (int i = 0; i <= device; ++i) std::getline(list, one, ',');
  return std::atoi(one.c_str());
}

cudaError_t failed(cudaError_t code) { return last_error = code; }

// STANDIN_CUDA_ERROR=GPU:N:CODE: from the N-th kernel of this GPU on, whatever is asked of it ends with the
// code.
struct AskedError {
  int device = -1;
  long kernels = 0;
  int code = cudaSuccess;
  AskedError() {
    if (const char* text = std::getenv("STANDIN_CUDA_ERROR"))
      std::sscanf(text, "%d:%ld:%d", &device, &kernels, &code);
  }
};
std::atomic<long> kernels_launched = 0;  // of the GPU that is to fail

cudaError_t askedError(bool is_launch = false) {
  static const AskedError asked;
  if (asked.device < 0 || machineDevice(current_device) != asked.device) return cudaSuccess;
  const long launched = is_launch ? ++kernels_launched : kernels_launched.load();
  return launched < asked.kernels ? cudaSuccess : failed(static_cast<cudaError_t>(asked.code));
}

// nullptr after a report.
Stream* streamOf(cudaStream_t stream, const char* what) {
  auto* found = reinterpret_cast<Stream*>(stream);
  if (isStream(found)) return found;
  const std::lock_guard held(lock());
  report(std::string(what) +
         (stream == nullptr ? ": the default stream is used" : ": no stream, or destroyed"));
  return nullptr;
}

Event* eventOf(cudaEvent_t event, const char* what) {
  auto* found = reinterpret_cast<Event*>(event);
  if (isEvent(found)) return found;
  const std::lock_guard held(lock());
  report(std::string(what) + ": no event, or destroyed");
  return nullptr;
}

cudaError_t allocateAs(void** place, size_t bytes, Memory kind) {
  const std::lock_guard held(lock());
  *place = allocate(bytes, kind);
  return *place == nullptr ? failed(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t releaseBehindAll(void* begin) {
  finishAll();
  const std::lock_guard held(lock());
  return release(begin) ? cudaSuccess : failed(cudaErrorInvalidValue);
}

bool isLaunchable(dim3 grid, dim3 block, size_t shared) {
  return grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.y <= kMostGridRows && grid.z <= kMostGridRows &&
         block.x > 0 && block.y > 0 && block.z > 0 && block.z <= 64 &&
         size_t{block.x} * block.y * block.z <= kMostThreads && shared <= kMostSharedBytes;
}

// Rows of `bytes`, as an operation sees them.
void copyRows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t bytes, size_t rows) {
  for (size_t row = 0; row < rows; ++row) {
    auto* const out = static_cast<std::byte*>(to) + row * to_pitch;
    const auto* const in = static_cast<const std::byte*>(from) + row * from_pitch;
    if (inHeap(in) || isOfAnother(in)) access(in, bytes, false);
    if (inHeap(out) || isOfAnother(out)) access(out, bytes, true);
    const AtWork reading(in, bytes), writing(out, bytes);
    std::memcpy(out, in, bytes);
  }
}

// The host's memory that is not pinned: what is copied from it is taken at once, and the call does not wait;
// what is copied into it is there when the call returns.
cudaError_t copyAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t bytes,
                      size_t rows, cudaStream_t stream, const char* what) {
  if (const cudaError_t asked = askedError(); asked != cudaSuccess) return asked;
  Stream* on = streamOf(stream, what);
  if (on == nullptr) return failed(cudaErrorInvalidResourceHandle);
  std::shared_ptr<std::vector<std::byte>> taken;
  if (!inHeap(from) && !isOfAnother(from) && inHeap(to)) {
    const auto* bytes_of = static_cast<const std::byte*>(from);
    taken = std::make_shared<std::vector<std::byte>>(bytes_of, bytes_of + bytes);
  }
  {
    const std::lock_guard held(lock());
    const Running op = enqueue(
        *on, what, [=] { copyRows(to, to_pitch, taken ? taken->data() : from, from_pitch, bytes, rows); });
    guard(from, bytes, false, op);  // rows are of device memory alone
    guard(to, bytes, true, op);
  }
  if (!inHeap(to)) finish(*on);
  return cudaSuccess;
}

}  // namespace

extern "C" void standin_register(const char* mangled, const KernelEntry* entry) {
  registered().twins[mangled] = *entry;
}
extern "C" void standin_atomic(const void* address, size_t bytes) {
  const std::lock_guard held(lock());
  if (inHeap(address)) access(address, bytes, true, true);
}
}  // namespace standin

using namespace standin;

// --- what nvcc's host code calls

API void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*, uint3*,
                                dim3*, dim3*, int*) {
  registered().functions[function] = name;
}
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<void**>(stream) = configuration.stream;
  return cudaSuccess;
}
API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                                   size_t shared, cudaStream_t stream) {
  if (const cudaError_t asked = askedError(true); asked != cudaSuccess) return asked;
  const std::string& name = registered().functions[kernel];
  Stream* on = streamOf(stream, name.c_str());
  if (on == nullptr) return failed(cudaErrorInvalidResourceHandle);
  const KernelEntry* twin = findTwin(name);
  if (twin == nullptr) {
    const std::lock_guard held(lock());
    report("no twin of the kernel " + name);
    return failed(cudaErrorInvalidDeviceFunction);
  }
  if (!isLaunchable(grid, block, shared)) {
    const std::lock_guard held(lock());
    report(name + ": a launch that no device takes: " + std::to_string(grid.x) + "," +
           std::to_string(grid.y) + "," + std::to_string(grid.z) + " blocks of " + std::to_string(block.x) +
           "," + std::to_string(block.y) + "," + std::to_string(block.z) + " threads, " +
           std::to_string(shared) + " bytes shared");
    return failed(cudaErrorInvalidConfiguration);
  }
  const KernelEntry entry = *twin;
  const std::shared_ptr<void> copied(entry.copy(arguments), entry.drop);
  enqueue(*on, name, [entry, copied, grid, block] { runGrid(entry, copied.get(), grid, block); });
  return cudaSuccess;
}

// --- memory

API cudaError_t cudaMalloc(void** place, size_t bytes) { return allocateAs(place, bytes, Memory::kDevice); }
API cudaError_t cudaMallocHost(void** place, size_t bytes) {
  return allocateAs(place, bytes, Memory::kPinned);
}
API cudaError_t cudaFree(void* begin) { return begin == nullptr ? cudaSuccess : releaseBehindAll(begin); }
API cudaError_t cudaFreeHost(void* begin) { return cudaFree(begin); }
API cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = *total_bytes = kMemory;
  return cudaSuccess;
}
API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                                cudaStream_t stream) {
  return copyAsync(to, 0, from, 0, bytes, 1, stream, "cudaMemcpyAsync");
}
API cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                  size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream) {
  if (width > to_pitch || width > from_pitch || std::max(to_pitch, from_pitch) > kMostPitch)
    return failed(cudaErrorInvalidPitchValue);
  return copyAsync(to, to_pitch, from, from_pitch, width, height, stream, "cudaMemcpy2DAsync");
}
API cudaError_t cudaMemsetAsync(void* begin, int value, size_t bytes, cudaStream_t stream) {
  Stream* on = streamOf(stream, "cudaMemsetAsync");
  if (on == nullptr) return failed(cudaErrorInvalidResourceHandle);
  enqueue(*on, "cudaMemsetAsync", [=] {
    if (bytes > 0) access(begin, bytes, true);
    std::memset(begin, value, bytes);
  });
  return cudaSuccess;
}

// --- streams and events

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (flags != cudaStreamNonBlocking) {
    const std::lock_guard held(lock());
    report("a stream that waits for the default stream");
  }
  *stream = reinterpret_cast<cudaStream_t>(makeStream());
  return cudaSuccess;
}
API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Stream* on = streamOf(stream, "cudaStreamDestroy");
  if (on == nullptr) return failed(cudaErrorInvalidResourceHandle);
  if (askedError() == cudaSuccess) requireWaitedFor(*on);
  destroyStream(on);
  return cudaSuccess;
}
API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t asked = askedError(); asked != cudaSuccess) return asked;
  Stream* on = streamOf(stream, "cudaStreamSynchronize");
  if (on == nullptr) return failed(cudaErrorInvalidResourceHandle);
  synchronize(*on);
  return cudaSuccess;
}
API cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (const cudaError_t asked = askedError(); asked != cudaSuccess) return asked;
  Stream* on = streamOf(stream, "cudaStreamQuery");
  if (on == nullptr) return failed(cudaErrorInvalidResourceHandle);
  return isFinished(*on) ? cudaSuccess : cudaErrorNotReady;
}
API cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t asked = askedError(); asked != cudaSuccess) return asked;
  const Event* of = eventOf(event, "cudaEventQuery");
  if (of == nullptr) return failed(cudaErrorInvalidResourceHandle);
  return isFinished(*of) ? cudaSuccess : cudaErrorNotReady;
}
API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Event* of = eventOf(event, "cudaEventSynchronize");
  if (of == nullptr) return failed(cudaErrorInvalidResourceHandle);
  finish(*of);
  return cudaSuccess;
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Stream* on = streamOf(stream, "cudaStreamWaitEvent");
  Event* awaited = eventOf(event, "cudaStreamWaitEvent");
  if (on == nullptr || awaited == nullptr) return failed(cudaErrorInvalidResourceHandle);
  awaitEvent(*on, *awaited);
  return cudaSuccess;
}
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const bool timed = (flags & cudaEventDisableTiming) == 0,
             interprocess = (flags & cudaEventInterprocess) != 0;
  if (timed && interprocess) {
    const std::lock_guard held(lock());
    report("cudaEventCreateWithFlags: an event for other processes keeps no time");
    return failed(cudaErrorInvalidValue);
  }
  *event = reinterpret_cast<cudaEvent_t>(makeEvent(timed, interprocess));
  return cudaSuccess;
}
API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  const Event* first = eventOf(from, "cudaEventElapsedTime");
  const Event* second = eventOf(to, "cudaEventElapsedTime");
  if (first == nullptr || second == nullptr) return failed(cudaErrorInvalidResourceHandle);
  const std::optional<float> time = between(*first, *second);
  if (!time) return failed(cudaErrorNotReady);
  *milliseconds = *time;
  return cudaSuccess;
}
API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Event* of = eventOf(event, "cudaEventDestroy");
  if (of == nullptr) return failed(cudaErrorInvalidResourceHandle);
  destroyEvent(of);
  return cudaSuccess;
}
API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Event* of = eventOf(event, "cudaEventRecord");
  Stream* on = streamOf(stream, "cudaEventRecord");
  if (of == nullptr || on == nullptr) return failed(cudaErrorInvalidResourceHandle);
  recordEvent(*of, *on);
  return cudaSuccess;
}

// --- the device

API cudaError_t cudaGetDeviceCount(int* count) {
  const char* asked = std::getenv("STANDIN_DEVICES");
  *count = asked == nullptr ? 1 : std::atoi(asked);
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    int seen = 0;  // up to the first that is not there, as CUDA has it
    std::stringstream list(visible);
    for (std::string one; std::getline(list, one, ',') && isNumberBelow(one, *count);) ++seen;
    *count = seen;
  }
  return *count > 0 ? cudaSuccess : failed(cudaErrorNoDevice);
}
API cudaError_t cudaSetDevice(int device) {
  int count = 0;
  cudaGetDeviceCount(&count);
  if (device < 0 || device >= count) return failed(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
API cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  properties->uuid.bytes[0] = static_cast<char>(machineDevice(device) + 1);
  std::snprintf(properties->name, sizeof properties->name, "stand-in");
  properties->major = 9;
  properties->totalGlobalMem = kMemory;
  return cudaSuccess;
}
API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
API cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }
API cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
API const char* cudaGetErrorName(cudaError_t code) {
  return code == cudaErrorECCUncorrectable ? "cudaErrorECCUncorrectable" : "cudaErrorOfTheStandIn";
}
API const char* cudaGetErrorString(cudaError_t code) {
  switch (code) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorECCUncorrectable: return "uncorrectable ECC error encountered";
    default: return "an error that the stand-in reports";
  }
}
