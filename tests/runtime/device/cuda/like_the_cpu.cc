#include "tests/runtime/device/cuda/like_the_cpu.h"

#include <gtest/gtest.h>

#include <cmath>

namespace pipeshard::testing {

std::vector<Tensor> runOnDevice(const KernelCall& call) {
  const std::unique_ptr<Kernel> kernel = cuda().kernels().create(CallSpec(call).spec);
  return runOnCuda(call, *kernel);
}

void expectLikeTheCpu(const KernelCall& call) {
  const std::vector<Tensor> want = runKernel(call);
  const std::vector<Tensor> got = runOnDevice(call);
  for (size_t o = 0; o < want.size(); ++o) {
    if (!isFloatingPoint(want[o].type)) {
      EXPECT_EQ(got[o].bytes, want[o].bytes) << call.node.op_type << ", output " << o;
      continue;
    }
    const std::vector<double> a = numbersOf(got[o]), b = numbersOf(want[o]);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < b.size(); ++i) {
      if ((std::isnan(a[i]) && std::isnan(b[i])) || (std::isinf(b[i]) && a[i] == b[i])) continue;
      difference += (a[i] - b[i]) * (a[i] - b[i]);
      norm += b[i] * b[i];
    }
    EXPECT_LE(std::sqrt(difference), (want[o].type == DataType::kFloat32 ? 1e-5 : 1e-12) * std::sqrt(norm))
        << call.node.op_type << ", output " << o;
  }
}

}  // namespace pipeshard::testing
