// Weights from elsewhere than the model's file: --weights.
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "ir/base/convert.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/format/writer.h"
#include "runtime/execute/dump.h"
#include "runtime/files/tensor_file.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

const std::string kMlp = PIPESHARD_SOURCE_DIR "/examples/mlp.onnx";

class GivenWeights : public ::testing::Test {
 protected:
  // The mlp example with its weights as inputs, as exports without parameters have them.
  std::string writeModelOfInputs() {
    Graph graph = readModel(kMlp);
    for (const auto& [id, initializer] : graph.initializers) {
      if (!graph.value(id).name.starts_with("dense")) continue;
      graph.value(id).metadata.clear();
      graph.inputs.push_back(id);
    }
    graph.metadata.clear();  // of the exporter: where the parameters are
    for (Node& node : graph.nodes) node.metadata.clear();
    std::erase_if(graph.initializers,
                  [&](const auto& entry) { return graph.value(entry.first).name.starts_with("dense"); });
    writeModel(graph, folder_.file("inputs.onnx"));
    return folder_.file("inputs.onnx");
  }

  // Under `prefix` + their names; each number times `factor`, rounded to `rounded` and written as `type`.
  std::string writeWeights(const std::string& prefix, float factor = 1, DataType type = DataType::kFloat32,
                           DataType rounded = DataType::kFloat32) {
    const Graph graph = readModel(kMlp);
    std::vector<std::vector<std::byte>> written;
    std::vector<std::vector<float>> numbers;
    std::vector<TensorView> tensors;
    for (const auto& [id, initializer] : graph.initializers) {
      if (!graph.value(id).name.starts_with("dense")) continue;
      std::vector<float>& tensor = numbers.emplace_back(elementCount(*graph.value(id).shape));
      if (const auto* reference = std::get_if<WeightReference>(&initializer)) {
        const std::string bytes = readFile(PIPESHARD_SOURCE_DIR "/examples/" + reference->location);
        std::memcpy(tensor.data(), bytes.data() + reference->offset, reference->length);
      } else {
        std::memcpy(tensor.data(), std::get<Constant>(initializer).bytes.data(),
                    tensor.size() * sizeof(float));
      }
      for (float& number : tensor) number *= factor;
      std::vector<double> wide(tensor.size());  // room for any type
      convertElements(DataType::kFloat32, tensor.data(), rounded, wide.data(), tensor.size());
      written.emplace_back(tensor.size() * dataTypeSize(type));
      convertElements(rounded, wide.data(), type, written.back().data(), tensor.size());
    }
    size_t next = 0;
    for (const auto& [id, initializer] : graph.initializers) {
      const Value& value = graph.value(id);
      if (!value.name.starts_with("dense")) continue;
      tensors.push_back({prefix + value.name, type, *value.shape, written[next++].data()});
    }
    writeTensorFile(folder_.file("weights.safetensors"), tensors);
    return folder_.file("weights.safetensors");
  }

  CommandResult plan(const std::string& model, const std::vector<std::string>& options) {
    std::vector<std::string> line = {"plan", model, "--external-data-root", "examples", "--dim", "batch=8",
                                     "-o",   plan_};
    line.insert(line.end(), options.begin(), options.end());
    return runPipeshard(line);
  }

  double firstLoss(const std::string& model, const std::vector<std::string>& options, int ranks,
                   const std::string& seed = "0") {
    const CommandResult planned = plan(model, options);
    EXPECT_EQ(planned.exit_code, 0) << planned.errors;
    const std::string dump = folder_.file("dump" + std::to_string(++runs_));
    const CommandResult ran = runPipeshard({"run", plan_, "--seed", seed, "--dump", dump});
    EXPECT_EQ(ran.exit_code, 0) << ran.errors;
    return StepDump::open(dump, 1, ranks).read("loss").elements().at(0);
  }

  const TemporaryFolder folder_;
  const std::string plan_ = folder_.file("plan");
  int runs_ = 0;
};

TEST_F(GivenWeights, MakeWeightsOfInputsByTheirNamesOrTheEndsOfThem) {
  const double want = firstLoss(kMlp, {"--cluster", "1x2"}, 2);
  const std::string model = writeModelOfInputs();
  EXPECT_EQ(firstLoss(model, {"--cluster", "1x2", "--weights", writeWeights("")}, 2), want);
  EXPECT_EQ(firstLoss(model, {"--cluster", "1x2", "--weights", writeWeights("model.")}, 2), want);
  const CommandResult validated =
      runPipeshard({"validate", model, "--dim", "batch=8", "--cluster", "1x4", "--stages", "uniform:2",
                    "--weights", folder_.file("weights.safetensors")});
  EXPECT_EQ(validated.exit_code, 0) << validated.output << validated.errors;
  EXPECT_NE(validated.output.find("trains 16704 of 16704"), std::string::npos) << validated.output;
}

TEST_F(GivenWeights, TakeThePlaceOfTheFilesOwn) {
  const double own = firstLoss(kMlp, {"--cluster", "1x1"}, 1);
  EXPECT_EQ(firstLoss(kMlp, {"--cluster", "1x1", "--weights", writeWeights("")}, 1), own);
  EXPECT_GT(std::abs(firstLoss(kMlp, {"--cluster", "1x1", "--weights", writeWeights("", 0.5F)}, 1) - own),
            1e-3);
}

TEST_F(GivenWeights, AreConvertedToTheModelsType) {
  const double own = firstLoss(kMlp, {"--cluster", "1x2"}, 2);
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat64}) {
    const std::string name(dataTypeName(type));
    const double rounded =
        firstLoss(kMlp, {"--cluster", "1x2", "--weights", writeWeights("", 1, DataType::kFloat32, type)}, 2);
    const std::string file = writeWeights("", 1, type, type);
    EXPECT_EQ(firstLoss(kMlp, {"--cluster", "1x2", "--weights", file}, 2), rounded) << name;
    if (type != DataType::kFloat64) {
      EXPECT_NE(rounded, own) << name;
    }
    EXPECT_EQ(firstLoss(writeModelOfInputs(), {"--cluster", "1x2", "--weights", file}, 2), rounded) << name;
    const CommandResult planned = plan(kMlp, {"--weights", file});
    EXPECT_NE(planned.output.find("8 weights of " + file + " converted from " + name + " to float32"),
              std::string::npos)
        << planned.output;
    const CommandResult validated =
        runPipeshard({"validate", kMlp, "--dim", "batch=8", "--cluster", "1x4", "--stages", "uniform:2",
                      "--precision", "float64", "--weights", file});
    EXPECT_EQ(validated.exit_code, 0) << validated.output << validated.errors;
  }
}

TEST_F(GivenWeights, AreDrawnTheSameForEveryPlan) {
  const std::string model = writeModelOfInputs();
  const std::vector<std::string> random = {"--weights", "random:^dense", "--precision", "float64"};
  const auto with = [&](std::vector<std::string> options) {
    options.insert(options.end(), random.begin(), random.end());
    return options;
  };
  const double alone = firstLoss(model, with({"--cluster", "1x1"}), 1);
  EXPECT_TRUE(std::isfinite(alone));
  EXPECT_EQ(firstLoss(model, with({"--cluster", "1x4", "--stages", "uniform:4"}), 4), alone);
  EXPECT_NEAR(
      firstLoss(model, with({"--cluster", "1x2", "--stages", "uniform:1", "--method", "megatron:1,2"}), 2),
      alone, 1e-12);
  EXPECT_GT(std::abs(firstLoss(model, with({"--cluster", "1x1"}), 1, "7") - alone), 1e-6);
}

TEST_F(GivenWeights, AreDrawnWhereTheFileOfTheWeightsIsMissing) {
  std::filesystem::copy(kMlp, folder_.file("mlp.onnx"));
  const CommandResult without =
      runPipeshard({"plan", folder_.file("mlp.onnx"), "--dim", "batch=8", "-o", plan_});
  EXPECT_NE(without.exit_code, 0);
  const CommandResult validated = runPipeshard({"validate", folder_.file("mlp.onnx"), "--dim", "batch=8",
                                                "--cluster", "1x2", "--weights", "random", "--seed", "3"});
  EXPECT_EQ(validated.exit_code, 0) << validated.output << validated.errors;
}

TEST_F(GivenWeights, AreRefusedWhereTheyDoNotFit) {
  const std::vector<float> numbers(12);
  const auto refused = [&](const std::string& name, const Shape& shape, const std::string& model) {
    const TensorView tensor{name, DataType::kFloat32, shape, numbers.data()};
    writeTensorFile(folder_.file("w.safetensors"), {&tensor, 1});
    return plan(model, {"--weights", folder_.file("w.safetensors")});
  };
  const CommandResult shape = refused("dense1.bias", {12}, kMlp);
  EXPECT_EQ(shape.exit_code, 78) << shape.errors;
  EXPECT_NE(shape.errors.find("'dense1.bias' is float32[12], but the model has float32[128]"),
            std::string::npos)
      << shape.errors;
  const std::vector<int32_t> integers(128);
  const TensorView counts{"dense1.bias", DataType::kInt32, {128}, integers.data()};
  writeTensorFile(folder_.file("w.safetensors"), {&counts, 1});
  const CommandResult type = plan(kMlp, {"--weights", folder_.file("w.safetensors")});
  EXPECT_EQ(type.exit_code, 78) << type.errors;
  EXPECT_NE(type.errors.find("'dense1.bias' is int32[128], but the model has float32[128]"),
            std::string::npos)
      << type.errors;
  const CommandResult strange = refused("dense9.bias", {12}, kMlp);
  EXPECT_EQ(strange.exit_code, 64) << strange.errors;
  EXPECT_NE(strange.errors.find("none of its 1 tensor is in the model"), std::string::npos) << strange.errors;
  const CommandResult ambiguous = refused("bias", {12}, kMlp);
  EXPECT_EQ(ambiguous.exit_code, 64) << ambiguous.errors;
  EXPECT_NE(ambiguous.errors.find("may be each of"), std::string::npos) << ambiguous.errors;
  const CommandResult no_file = plan(kMlp, {"--weights", folder_.file("gone.safetensors")});
  EXPECT_EQ(no_file.exit_code, 66) << no_file.errors;
  const CommandResult nothing = plan(kMlp, {"--weights", "random:nothing_like_this"});
  EXPECT_EQ(nothing.exit_code, 64) << nothing.errors;
}

}  // namespace
}  // namespace pipeshard
