// Training steps on the CUDA module, on the stand-in of NVIDIA's libraries (tests/standin), against the CPU
// by `validate`'s measure: the four examples on one device, gpt2 as a pipeline, mlp also with gradients
// summed beside the backward pass. The process ends with code 99 when the stand-in has reported anything.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "runtime/device/cuda_loader.h"
#include "runtime/execute/executor.h"
#include "runtime/validation/validate.h"
#include "tests/runtime/device/planned_ranks.h"

namespace pipeshard::testing {
namespace {

std::vector<double> doublesOf(const LeftTensor& tensor) {
  std::vector<double> numbers(tensor.bytes.size() / dataTypeSize(tensor.type));
  convertElements(tensor.type, tensor.bytes.data(), DataType::kFloat64, numbers.data(), numbers.size());
  return numbers;
}

double normOf(const std::vector<double>& numbers) {
  double squares = 0;
  for (const double x : numbers) squares += x * x;
  return std::sqrt(squares);
}

// norm(got - want) / max(norm(want), 1e-4 norm(all) sqrt(size / total size)), over all tensors of a step and
// rank.
double worstOf(const Outcome& got, const Outcome& want, std::string& name) {
  double squares = 0, total = 0, worst = 0;
  for (const auto& [of, tensor] : want) {
    const std::vector<double> numbers = doublesOf(tensor);
    squares += std::pow(normOf(numbers), 2);
    total += static_cast<double>(numbers.size());
  }
  for (const auto& [of, tensor] : want) {
    const std::vector<double> a = doublesOf(got.at(of)), b = doublesOf(tensor);
    if (b.empty()) continue;
    std::vector<double> difference(b.size());
    std::transform(a.begin(), a.end(), b.begin(), difference.begin(), std::minus<>());
    const double floor = 1e-4 * std::sqrt(squares * static_cast<double>(b.size()) / total);
    const double error = normOf(difference) / std::max(normOf(b), floor);
    if (!(error <= worst)) worst = error, name = of;
  }
  return worst;
}

class CudaStepTest : public ::testing::TestWithParam<PlannedCase> {};

TEST_P(CudaStepTest, ComputesWhatTheCpuDoes) {
  const PlannedTraining planned = plan(GetParam());
  const Outcomes want = run(planned, {});
  const Outcomes got = run(planned, [] { return openCudaDevice(0); });
  for (size_t step = 0; step < want.size(); ++step) {
    for (size_t rank = 0; rank < want[step].size(); ++rank) {
      std::string name;
      const double worst = worstOf(got[step][rank], want[step][rank], name);
      EXPECT_LE(worst, 1e-5) << fmt::format("step {}, rank {}: {}", step + 1, rank, name);
      RecordProperty(fmt::format("step{}rank{}", step + 1, rank), fmt::format("{:.1e} {}", worst, name));
    }
  }
}

std::vector<PlannedCase> cudaCases() {
  const auto sgd = [](PlanRequest& request) {
    request.given.optimizer = parseOptimizer("sgd:lr=0.1,momentum=0.9");
  };
  // With larger steps a number within rounding of 0 comes before a ReLU in the second one.
  const auto slowly = [](PlanRequest& request) { request.given.optimizer = parseOptimizer("sgd:lr=0.01"); };
  const auto in_buckets = [sgd](PlanRequest& request) {
    sgd(request);
    request.given.bucket_bytes = 1024;
  };
  return {
      {"Mlp", "mlp", "1x1", "uniform:1", "", "", 2, sgd},
      {"MlpBuckets", "mlp", "1x4", "uniform:1", "", "", 1, in_buckets},
      {"Gpt2", "gpt2", "1x1", "uniform:1", "", "", 2, sgd},
      {"Gpt2OneForwardOneBackward", "gpt2", "1x4", "uniform:4", "1f1b", "", 4, sgd},
      {"Llama", "llama", "1x1", "uniform:1", "", "", 1, sgd},
      {"Resnet", "resnet", "1x1", "uniform:1", "", "", 1, slowly},
  };
}

INSTANTIATE_TEST_SUITE_P(Examples, CudaStepTest, ::testing::ValuesIn(cudaCases()),
                         [](const auto& info) { return info.param.name; });

TEST(CudaStep, AnOperatorWithoutAKernelIsRefusedWhenTheProgramIsLoaded) {
  const PlannedTraining planned = plan({"Mlp", "mlp"});
  RankProgram program = planned.whole.ranks.of(RankId(0));
  program.subgraphs.at(0).nodes.at(0).op_type = "NoSuchOperator";
  const auto device = openCudaDevice(0);
  ExecutorOptions options;
  options.device = device.get();
  try {
    Executor({program.program, program.subgraphs, ""}, options);
    FAIL() << "it was loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadModel);
    EXPECT_NE(error.message().find("there is no kernel for this operator on this device"), std::string::npos)
        << error.message();
  }
}

}  // namespace
}  // namespace pipeshard::testing
