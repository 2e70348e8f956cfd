#include "tests/runtime/device/cuda/like_the_cpu.h"

#include <gtest/gtest.h>

#include <cmath>

#include <fmt/format.h>

#include "ir/base/error.h"

namespace pipeshard::testing {
namespace {

double boundOf(DataType type) {
  switch (type) {
    case DataType::kFloat32: return 1e-5;
    case DataType::kFloat16: return 1.25e-4;
    case DataType::kBfloat16: return 1e-3;
    default: return 1e-12;
  }
}

}  // namespace

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
    EXPECT_LE(std::sqrt(difference), boundOf(want[o].type) * std::sqrt(norm))
        << call.node.op_type << ", output " << o;
  }
}

std::string messageOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return fmt::format("{}: {}", static_cast<int>(error.code()), error.message());
  }
  return "";
}

}  // namespace pipeshard::testing
