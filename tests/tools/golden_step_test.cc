// Three steps against PyTorch in float64: tests/oracle/golden holds what PyTorch computed (make_golden.py).

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "runtime/execute/dump.h"
#include "runtime/files/npz.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

constexpr size_t kStride = 37;
constexpr double kBound = 1e-9;

std::vector<double> golden(const NpzFile& file, const std::string& name) {
  const NpzArray array = file.read(name);
  return numericElements(Constant{array.data_type, array.shape, array.bytes});
}

// Every 37th element, judged against the tensor's root mean square (with a floor over all tensors, as
// runtime/validation/validate.h has it), and the norm.
void compareKind(const std::string& kind, const StepDump& dump, const NpzFile& file,
                 size_t expected_tensors) {
  double squares = 0;
  double elements = 0;
  size_t tensors = 0;
  for (const std::string& name : dump.names()) {
    if (!name.starts_with(kind + "/")) continue;
    ++tensors;
    squares += std::pow(golden(file, kind + "_norm/" + name.substr(kind.size() + 1)).at(0), 2);
    elements += static_cast<double>(dump.read(name).elements().size());
  }
  EXPECT_EQ(tensors, expected_tensors);
  const double all_root_mean_square = std::sqrt(squares / elements);
  for (const std::string& name : dump.names()) {
    if (!name.starts_with(kind + "/")) continue;
    const std::vector<double> got = dump.read(name).elements();
    const std::vector<double> want = golden(file, name);
    const double norm = golden(file, kind + "_norm/" + name.substr(kind.size() + 1)).at(0);
    const double size = std::sqrt(static_cast<double>(got.size()));
    const double scale = std::max(norm / size, 1e-4 * all_root_mean_square);
    double got_norm = 0;
    for (double x : got) got_norm += x * x;
    EXPECT_NEAR(std::sqrt(got_norm), norm, kBound * scale * size) << name;
    ASSERT_EQ(want.size(), (got.size() + kStride - 1) / kStride) << name;
    double difference = 0;
    for (size_t i = 0; i < want.size(); ++i) difference += std::pow(got[i * kStride] - want[i], 2);
    EXPECT_LE(std::sqrt(difference / static_cast<double>(want.size())), kBound * scale) << name;
  }
}

struct GoldenCase {
  std::string model;
  std::string microbatches;
  std::string widths = "1,1,1,1";  // devices of each stage
};
void PrintTo(const GoldenCase& c, std::ostream* stream) {
  *stream << c.model << " in " << c.microbatches << " on " << c.widths;
}

class GoldenStep : public ::testing::TestWithParam<GoldenCase> {};

// The golden step is that of the whole batch of 8: equal and unequal microbatches must give it.
TEST_P(GoldenStep, AgreesWithPyTorchInFloat64) {
  const auto& [model, microbatches, widths] = GetParam();
  const TemporaryFolder folder;
  const std::string data = std::string(PIPESHARD_SOURCE_DIR) + "/tests/oracle/golden/" + model + ".npz";
  const CommandResult result = runPipeshard(
      {"validate", "examples/" + model + ".onnx", "--cluster", "1x4", "--stage-devices", widths,
       "--microbatches", microbatches, "--precision", "float64", "--optimizer", "sgd:lr=0.1,momentum=0.9",
       "--steps", "3", "--data", data, "--dump", folder.path().string()});
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  const NpzFile file = NpzFile::open(data);
  const size_t parameters = model == "mlp" ? 8 : model == "gpt2" ? 52 : 39;
  const StepDump first = StepDump::open(folder.file("planned"), 1, 4);
  EXPECT_NEAR(first.read("loss").elements().at(0), golden(file, "loss").at(0), 1e-12);
  compareKind("gradient", first, file, parameters);
  compareKind("parameter", StepDump::open(folder.file("planned"), 3, 4), file, parameters);
}

INSTANTIATE_TEST_SUITE_P(Examples, GoldenStep,
                         ::testing::Values(GoldenCase{"mlp", "8"}, GoldenCase{"gpt2", "8"},
                                           GoldenCase{"llama", "8"}, GoldenCase{"mlp", "3"},
                                           GoldenCase{"gpt2", "3"}, GoldenCase{"llama", "5"},
                                           GoldenCase{"gpt2", "5"}, GoldenCase{"mlp", "2", "1,3"},
                                           GoldenCase{"gpt2", "3", "2,2"}, GoldenCase{"gpt2", "2", "3,1"},
                                           GoldenCase{"llama", "1", "4"}, GoldenCase{"llama", "3", "1,2,1"}),
                         [](const auto& info) {
                           std::string name = info.param.model + "_microbatches_" + info.param.microbatches +
                                              "_on_" + info.param.widths;
                           std::replace(name.begin(), name.end(), ',', '_');
                           return name;
                         });

// What PyTorch 2.9 wrote, with masks and rotary angles of its own; the weights are those of the examples.
TEST(FilesOfPyTorch29, AreTrainedAsBefore) {
  const std::string folder = "tests/golden/torch_2_9/";
  const auto validated = [&](const std::string& name, std::vector<std::string> options) {
    options.insert(options.begin(), {"validate", folder + name, "--external-data-root", "examples",
                                     "--cluster", "1x4", "--microbatches", "8"});
    return runPipeshard(options);
  };
  const TemporaryFolder work;
  const std::string data = PIPESHARD_SOURCE_DIR "/tests/oracle/golden/gpt2.npz";
  const CommandResult gpt2 =
      validated("gpt2.onnx", {"--precision", "float64", "--data", data, "--dump", work.path()});
  ASSERT_EQ(gpt2.exit_code, 0) << gpt2.output << gpt2.errors;
  const StepDump dump = StepDump::open(work.file("planned"), 1, 4);
  const NpzFile file = NpzFile::open(data);
  EXPECT_NEAR(dump.read("loss").elements().at(0), golden(file, "loss").at(0), 1e-12);
  compareKind("gradient", dump, file, 52);
  for (const auto& [name, trains] : {std::pair("gpt2_torchscript.onnx", "trains 220544 of 220544"),
                                     std::pair("llama.onnx", "trains 180800 of 180800")}) {
    const CommandResult result = validated(name, {});
    EXPECT_EQ(result.exit_code, 0) << name << result.output << result.errors;
    EXPECT_NE(result.output.find(trains), std::string::npos) << name << result.output;
  }
}

}  // namespace
}  // namespace pipeshard
