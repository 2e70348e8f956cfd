#include "runtime/kernels/base/cudnn_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <limits>
#include <map>
#include <string_view>

#include "ir/base/error.h"

namespace pipeshard::kernels {
namespace {

constexpr const char* kLibrary = "libcudnn.so.9";
constexpr const char* kVariable = "PIPESHARD_CUDNN";

struct Loaded : CudnnFound {
  CudnnFunctions functions;
};

Loaded load() {
  Loaded loaded;
  if (const char* said = std::getenv(kVariable); said != nullptr && *said != 0) {
    if (std::string_view(said) != "off")
      fail(ErrorCode::kConfiguration, "{}={}: it may be 'off', or not set", kVariable, said);
    loaded.missing = fmt::format("{}=off", kVariable);
    return loaded;
  }
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    loaded.missing = ::dlerror();
    return loaded;
  }
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr && loaded.missing.empty())
      loaded.missing = fmt::format("{} has no {}", kLibrary, name);
  };
#define PIPESHARD_FUNCTION(function) find(#function, loaded.functions.function);
  PIPESHARD_CUDNN_FUNCTIONS(PIPESHARD_FUNCTION)
#undef PIPESHARD_FUNCTION
  if (!loaded.missing.empty()) return loaded;
  const size_t version = loaded.functions.cudnnGetVersion();
  loaded.name = fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  return loaded;
}

Loaded& library() {
  static Loaded loaded = load();
  return loaded;
}
}  // namespace

CudnnFound cudnnFound() { return library(); }

Cudnn* cudnnOfThisGpu() {
  static std::mutex mutex;
  static std::map<int, Cudnn*> of_gpus;
  const std::lock_guard held(mutex);
  Loaded& loaded = library();
  int gpu = 0;
  if (!loaded.missing.empty() || cudaGetDevice(&gpu) != cudaSuccess) return nullptr;
  const auto [at, is_new] = of_gpus.try_emplace(gpu, nullptr);
  if (!is_new) return at->second;
  cudnnHandle_t handle = nullptr;
  if (const cudnnStatus_t status = loaded.functions.cudnnCreate(&handle); status != CUDNN_STATUS_SUCCESS)
    loaded.missing =
        fmt::format("{}: cudnnCreate: {}", loaded.name, loaded.functions.cudnnGetErrorString(status));
  else
    at->second = new Cudnn(loaded.functions, handle);
  return at->second;
}

int CudnnSteps::number(int64_t value) {
  if (value < 0 || value > std::numeric_limits<int>::max()) good_ = false;
  return good_ ? static_cast<int>(value) : 0;
}

std::vector<int> CudnnSteps::numbers(const std::vector<int64_t>& values) {
  std::vector<int> result;
  for (int64_t value : values) result.push_back(number(value));
  return result;
}

std::shared_ptr<cudnnTensorStruct> CudnnSteps::tensor(const Cudnn& cudnn, cudnnDataType_t type,
                                                      const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t a = sizes.size() - 1; a > 0; --a) strides[a - 1] = strides[a] * sizes[a];
  number(strides[0] * sizes[0]);
  const std::vector<int> size_numbers = numbers(sizes);
  const std::vector<int> stride_numbers = numbers(strides);
  cudnnTensorDescriptor_t made = nullptr;
  if (!good_ || !take(cudnn.cudnnCreateTensorDescriptor(&made))) return nullptr;
  std::shared_ptr<cudnnTensorStruct> owned(made, cudnn.cudnnDestroyTensorDescriptor);
  take(cudnn.cudnnSetTensorNdDescriptor(made, type, static_cast<int>(sizes.size()), size_numbers.data(),
                                        stride_numbers.data()));
  return owned;
}

std::shared_ptr<cudnnFilterStruct> CudnnSteps::filter(const Cudnn& cudnn, cudnnDataType_t type,
                                                      const std::vector<int64_t>& sizes) {
  int64_t all = 1;
  for (int64_t size : sizes) all *= size;
  number(all);
  const std::vector<int> size_numbers = numbers(sizes);
  cudnnFilterDescriptor_t made = nullptr;
  if (!good_ || !take(cudnn.cudnnCreateFilterDescriptor(&made))) return nullptr;
  std::shared_ptr<cudnnFilterStruct> owned(made, cudnn.cudnnDestroyFilterDescriptor);
  take(cudnn.cudnnSetFilterNdDescriptor(made, type, CUDNN_TENSOR_NCHW, static_cast<int>(sizes.size()),
                                        size_numbers.data()));
  return owned;
}

}  // namespace pipeshard::kernels
