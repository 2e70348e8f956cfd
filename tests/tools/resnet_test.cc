// Convolutions and batch normalisation end to end: examples/resnet.onnx against one device, and against
// PyTorch in float64 (tests/oracle/golden, whose `microbatches` says into how many parts it normalised).

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/execute/dump.h"
#include "runtime/files/npz.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr size_t kStride = 37;  // the golden file holds every 37th element
constexpr double kBound = 1e-9;

std::vector<std::string> commandLine(const std::string& schedule, const std::string& precision,
                                     const std::string& microbatches, const std::string& model = "resnet") {
  return {"validate",       "examples/" + model + ".onnx",
          "--cluster",      "1x4",
          "--stages",       "uniform:4",
          "--schedule",     schedule,
          "--precision",    precision,
          "--optimizer",    "sgd:lr=0.1,momentum=0.9",
          "--steps",        "3",
          "--microbatches", microbatches};
}

TEST(ResNet, EqualsOneDeviceInEverySchedule) {
  for (const char* schedule : {"sequential", "gpipe", "1f1b"}) {
    for (const char* precision : {"float32", "float64"}) {
      const CommandResult result = runPipeshard(commandLine(schedule, precision, "8"));
      EXPECT_EQ(result.exit_code, 0) << schedule << " " << precision << result.output << result.errors;
      EXPECT_THAT(result.output, HasSubstr("PASS")) << schedule << " " << precision;
    }
  }
}

TEST(ResNet, RunningStatisticsEqualOneDeviceInEverySchedule) {
  for (const char* model : {"resnet", "resnet_torchscript"}) {
    for (const char* schedule : {"sequential", "gpipe", "1f1b"}) {
      const CommandResult result = runPipeshard(commandLine(schedule, "float32", "4", model));
      EXPECT_EQ(result.exit_code, 0) << model << " " << schedule << result.output << result.errors;
      EXPECT_THAT(result.output, ContainsRegex("forward state +96 .* ok ")) << "32 in each of 3 steps";
    }
  }
}

// Of a normalization only the bias is trained, or only the scale.
TEST(ResNet, EqualsOneDeviceWithHalfOfEachNormalizationFrozen) {
  for (const char* frozen : {"bn.*weight", "bn.*bias"}) {
    std::vector<std::string> line = commandLine("1f1b", "float64", "4");
    line.insert(line.end(), {"--freeze", frozen});
    const CommandResult result = runPipeshard(line);
    EXPECT_EQ(result.exit_code, 0) << frozen << result.output << result.errors;
    EXPECT_THAT(result.output, HasSubstr("PASS")) << frozen;
  }
}

std::vector<double> golden(const NpzFile& file, const std::string& name) {
  const NpzArray array = file.read(name);
  return numericElements(Constant{array.data_type, array.shape, array.bytes});
}

// Each tensor's sampled elements against its root mean square; returns how many tensors there are.
size_t compareKind(const std::string& kind, const StepDump& dump, const NpzFile& file) {
  size_t tensors = 0;
  for (const std::string& name : dump.names()) {
    if (!name.starts_with(kind + "/")) continue;
    ++tensors;
    const std::vector<double> got = dump.read(name).elements();
    const std::vector<double> want = golden(file, name);
    const double norm = golden(file, kind + "_norm/" + name.substr(kind.size() + 1)).at(0);
    const double scale = norm / std::sqrt(static_cast<double>(got.size()));
    EXPECT_EQ(want.size(), (got.size() + kStride - 1) / kStride) << name;
    double difference = 0;
    for (size_t i = 0; i < want.size(); ++i) difference += std::pow(got.at(i * kStride) - want[i], 2);
    EXPECT_LE(std::sqrt(difference / static_cast<double>(want.size())), kBound * scale) << name;
  }
  return tensors;
}

// The golden file holds them whole; PyTorch computed them as ONNX defines them, with the population variance.
size_t compareStatistics(const StepDump& dump, const NpzFile& file) {
  size_t tensors = 0;
  for (const std::string& name : dump.names()) {
    constexpr std::string_view kPrefix = "forward_state/";
    if (!name.starts_with(kPrefix)) continue;
    ++tensors;
    const std::vector<double> got = dump.read(name).elements();
    const std::vector<double> want = golden(file, "state/" + name.substr(kPrefix.size()));
    EXPECT_EQ(got.size(), want.size()) << name;
    double difference = 0;
    double square = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      difference += std::pow(got.at(i) - want[i], 2);
      square += want[i] * want[i];
    }
    EXPECT_LE(std::sqrt(difference), kBound * std::sqrt(square)) << name;
  }
  return tensors;
}

TEST(ResNet, AgreesWithPyTorchInFloat64) {
  const TemporaryFolder folder;
  const std::string data = std::string(PIPESHARD_SOURCE_DIR) + "/tests/oracle/golden/resnet.npz";
  const NpzFile file = NpzFile::open(data);
  const int64_t microbatches = golden(file, "microbatches").at(0);
  std::vector<std::string> line = commandLine("1f1b", "float64", std::to_string(microbatches));
  line.insert(line.end(), {"--data", data, "--dump", folder.path().string()});
  const CommandResult result = runPipeshard(line);
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  const StepDump first = StepDump::open(folder.file("planned"), 1, 4);
  EXPECT_NEAR(first.read("loss").elements().at(0), golden(file, "loss").at(0), 1e-12);
  EXPECT_EQ(compareKind("gradient", first, file), 50u);
  const StepDump third = StepDump::open(folder.file("planned"), 3, 4);
  EXPECT_EQ(compareKind("parameter", third, file), 50u);
  EXPECT_EQ(compareStatistics(third, file), 32u);
}

}  // namespace
}  // namespace pipeshard
