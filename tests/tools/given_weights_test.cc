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
const std::string kTied = PIPESHARD_SOURCE_DIR "/tests/golden/traps/tied.onnx";  // head.weight, words.weight

// Of a float32 initializer of the mlp example.
std::vector<float> numbersOf(const Graph& graph, ValueId id) {
  const Initializer& initializer = graph.initializers.at(id);
  std::vector<float> numbers(elementCount(graph.shape(id)));
  if (const auto* reference = std::get_if<WeightReference>(&initializer)) {
    const std::string bytes = readFile(PIPESHARD_SOURCE_DIR "/examples/" + reference->location);
    std::memcpy(numbers.data(), bytes.data() + reference->offset, reference->length);
  } else {
    std::memcpy(numbers.data(), std::get<Constant>(initializer).bytes.data(), numbers.size() * sizeof(float));
  }
  return numbers;
}

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
      std::vector<float>& tensor = numbers.emplace_back(numbersOf(graph, id));
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

  // The mlp example as half-precision training leaves it.
  std::string writeModelOfHalves() {
    Graph graph = readModel(kMlp);
    const auto half = [](DataType type) { return type == DataType::kFloat32 ? DataType::kBfloat16 : type; };
    for (auto& [id, initializer] : graph.initializers) {
      if (graph.dataType(id) != DataType::kFloat32) continue;
      const std::vector<float> numbers = numbersOf(graph, id);
      Constant narrow{DataType::kBfloat16, graph.shape(id), std::vector<std::byte>(2 * numbers.size())};
      convertElements(DataType::kFloat32, numbers.data(), narrow.data_type, narrow.bytes.data(),
                      std::ssize(numbers));
      initializer = std::move(narrow);
    }
    for (Value& value : graph.values) value.data_type = half(value.data_type);
    writeModel(graph, folder_.file("halves.onnx"));
    return folder_.file("halves.onnx");
  }

  // Tensors of the tied example's embedding, each number times its factor.
  std::string writeTied(const std::map<std::string, float>& factors) {
    std::vector<std::vector<float>> numbers;
    for (const auto& [name, factor] : factors) {
      std::vector<float>& tensor = numbers.emplace_back(24);
      for (size_t i = 0; i < tensor.size(); ++i) tensor[i] = factor * std::sin(static_cast<float>(i));
    }
    std::vector<TensorView> tensors;
    for (const auto& [name, factor] : factors)
      tensors.push_back({name, DataType::kFloat32, {6, 4}, numbers[tensors.size()].data()});
    const std::string file = folder_.file("tied" + std::to_string(++runs_) + ".safetensors");
    writeTensorFile(file, tensors);
    return file;
  }

  CommandResult planTied(const std::vector<std::string>& files, const std::string& model = kTied) {
    std::vector<std::string> line = {"plan", model, "--cluster", "1x1", "-o", plan_};
    for (const std::string& file : files) line.insert(line.end(), {"--weights", file});
    if (model != kTied) line.insert(line.end(), {"--freeze", "^shared"});  // nothing reads it
    return runPipeshard(line);
  }

  double lossOfTied(const std::vector<std::string>& files, const std::string& model = kTied) {
    const CommandResult planned = planTied(files, model);
    EXPECT_EQ(planned.exit_code, 0) << planned.errors;
    return lossOfPlan(1, "0");
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
    return lossOfPlan(ranks, seed);
  }

  double lossOfPlan(int ranks, const std::string& seed) {
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

// Such a model is trained in float32: from the file's numbers, not rounded to those of the model.
TEST_F(GivenWeights, OfAModelInHalfPrecisionAreTakenAsTheyAre) {
  const std::string model = writeModelOfHalves();
  const double own = firstLoss(kMlp, {"--cluster", "1x2"}, 2);
  EXPECT_NE(firstLoss(model, {"--cluster", "1x2"}, 2), own);
  EXPECT_EQ(firstLoss(model, {"--cluster", "1x2", "--weights", writeWeights("")}, 2), own);
}

TEST_F(GivenWeights, OfATiedParameterGoByAnyOfItsNames) {
  const double want = lossOfTied({writeTied({{"head.weight", 1}})});
  EXPECT_GT(std::abs(lossOfTied({}) - want), 1e-4);
  EXPECT_EQ(lossOfTied({writeTied({{"words.weight", 1}})}), want);
  EXPECT_EQ(lossOfTied({writeTied({{"model.words.weight", 1}})}), want);
  EXPECT_EQ(lossOfTied({writeTied({{"head.weight", 1}, {"words.weight", 1}})}), want);
  EXPECT_EQ(lossOfTied({writeTied({{"head.weight", 1}}), writeTied({{"words.weight", 1}})}), want);
  const CommandResult refused = planTied({writeTied({{"head.weight", 1}, {"words.weight", 2}})});
  EXPECT_EQ(refused.exit_code, 78) << refused.errors;
  EXPECT_NE(refused.errors.find("'words.weight' is not the same as 'head.weight'"), std::string::npos)
      << refused.errors;
  const CommandResult twice = planTied({writeTied({{"head.weight", 1}}), writeTied({{"head.weight", 1}})});
  EXPECT_EQ(twice.exit_code, 64) << twice.errors;
}

// As T5's shared.weight, under which the checkpoint has the embedding.
TEST_F(GivenWeights, UnderANameThatNoCallGoesByAreTheParameterThatIsMissing) {
  Graph graph = readModel(kTied);
  for (auto& [key, text] : graph.metadata) {
    const size_t line = key.ends_with("graph_signature") ? text.find("p_words_weight") : std::string::npos;
    if (line != std::string::npos) text.insert(line, "p_shared_weight: PARAMETER target='shared.weight'\n");
  }
  const std::string model = folder_.file("shared.onnx");
  writeModel(graph, model);
  const double want = lossOfTied({writeTied({{"head.weight", 1}})}, model);
  const std::string shared = writeTied({{"shared.weight", 1}});
  EXPECT_EQ(lossOfTied({shared}, model), want);
  EXPECT_NE(planTied({shared}, model).output.find("shared.weight of " + shared + " taken for head.weight"),
            std::string::npos);
  const CommandResult both = planTied({writeTied({{"shared.weight", 1}, {"words.weight", 2}})}, model);
  EXPECT_EQ(both.exit_code, 0) << both.errors;
  EXPECT_NE(both.output.find("not in the model, and left out: shared.weight"), std::string::npos)
      << both.output;
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
  const CommandResult folder = plan(kMlp, {"--weights", folder_.path()});
  EXPECT_EQ(folder.exit_code, 66) << folder.errors;
  EXPECT_NE(folder.errors.find("a folder; give the .safetensors file in it"), std::string::npos)
      << folder.errors;
  const CommandResult no_file = plan(kMlp, {"--weights", folder_.file("gone.safetensors")});
  EXPECT_EQ(no_file.exit_code, 66) << no_file.errors;
  const CommandResult nothing = plan(kMlp, {"--weights", "random:nothing_like_this"});
  EXPECT_EQ(nothing.exit_code, 64) << nothing.errors;
}

}  // namespace
}  // namespace pipeshard
