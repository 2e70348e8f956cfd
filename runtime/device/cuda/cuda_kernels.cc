#include "runtime/device/cuda/cuda_kernels.h"

#include "runtime/kernels/base/families.h"

namespace pipeshard {
namespace {

const KernelRegistry& wideningKernels() {
  static const KernelRegistry registry = [] {
    KernelRegistry all;
    kernels::addAllKernels(all);
    return all;
  }();
  return registry;
}

}  // namespace

// Whoever has a registry calls the program's own KernelRegistry::create, whose widening is the host's: so
// this module's happens in the factories.
const KernelRegistry& cudaKernels() {
  static const KernelRegistry registry = [] {
    KernelRegistry all(KernelRegistry::OtherTypes::kRefused);
    for (const std::string& name : wideningKernels().operators()) {
      const size_t colons = name.rfind("::");
      all.add(name.substr(0, colons), name.substr(colons + 2),
              [](const KernelSpec& spec) { return wideningKernels().create(spec); });
    }
    return all;
  }();
  return registry;
}

}  // namespace pipeshard
