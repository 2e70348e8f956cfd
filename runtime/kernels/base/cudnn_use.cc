#include "runtime/kernels/base/cudnn_use.h"

#include <atomic>

#include <fmt/format.h>

#ifdef PIPESHARD_CUDNN
#include "runtime/kernels/base/cudnn_library.h"
#endif

namespace pipeshard::kernels {
namespace {

std::atomic<int> asked = 0;
std::atomic<int> done = 0;

}  // namespace

void noteCudnn(bool used) {
  ++asked;
  if (used) ++done;
}

std::string cudnnUse() {
  if (asked == 0) return "";
#ifdef PIPESHARD_CUDNN
  const CudnnFound found = cudnnFound();
  if (!found.missing.empty()) return fmt::format("no cuDNN ({})", found.missing);
  if (done == asked) return found.name;
  return fmt::format("{} for {} of {} convolutions, pools and batch normalisations", found.name, done.load(),
                     asked.load());
#else
  return "no cuDNN (built without its header)";
#endif
}

std::string cudnnVersion() {
  if (asked == 0) return "";
#ifdef PIPESHARD_CUDNN
  if (const CudnnFound found = cudnnFound(); found.missing.empty()) return found.name;
#endif
  return "no cuDNN";
}

}  // namespace pipeshard::kernels
