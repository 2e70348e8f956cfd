// Weights that a plan directory holds: those of `plan --copy-weights`, which needs the model no more, and
// large ones that the model's file writes as numbers, not as bytes.
#include <cstring>
#include <filesystem>

#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "runtime/execute/rank_image.h"
#include "runtime/files/tensor_file.h"
#include "tests/onnx_import/model_files.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

const std::string kExamples = PIPESHARD_SOURCE_DIR "/examples/";

class CopiedWeights : public ::testing::Test {
 protected:
  // A copy of the example, which can go.
  std::string takeModel(const std::string& name) {
    for (const char* ending : {".onnx", ".onnx.data"})
      fs::copy_file(kExamples + name + ending, folder_.file(name + ending),
                    fs::copy_options::overwrite_existing);
    return folder_.file(name + ".onnx");
  }
  void loseModel(const std::string& name) {
    for (const char* ending : {".onnx", ".onnx.data"}) fs::remove(folder_.file(name + ending));
  }

  void plan(const std::string& model, std::vector<std::string> options) {
    std::vector<std::string> line = {"plan", model, "-o", plan_};
    line.insert(line.end(), options.begin(), options.end());
    const CommandResult planned = runPipeshard(line);
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  }

  // What two steps leave on every rank, by file.
  std::map<std::string, std::string> trained(const std::string& plan) {
    const std::string dump = folder_.file("dump" + std::to_string(++runs_));
    const CommandResult ran = runPipeshard({"run", plan, "--steps", "2", "--dump", dump});
    EXPECT_EQ(ran.exit_code, 0) << ran.errors;
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(dump)) {
      if (entry.path().extension() == ".safetensors")
        files[entry.path().filename().string()] = readFile(entry.path().string());
    }
    EXPECT_FALSE(files.empty());
    return files;
  }

  const TemporaryFolder folder_;
  const std::string plan_ = folder_.file("plan");
  int runs_ = 0;
};

TEST_F(CopiedWeights, TrainWithoutTheModelToTheSameBits) {
  const std::vector<std::vector<std::string>> plans = {
      {"--cluster", "1x4", "--stages", "uniform:2", "--dim", "batch=8", "--microbatches", "2"},
      {"--cluster", "1x4", "--stages", "uniform:2", "--dim", "batch=8", "--method", "megatron:1,2",
       "--optimizer", "adamw:lr=0.01", "--ema", "0.9"},
      {"--cluster", "1x2", "--stages", "uniform:1", "--dim", "batch=8", "--method", "zero3", "--precision",
       "float64"}};
  for (std::vector<std::string> options : plans) {
    const std::string model = takeModel("gpt2");
    plan(model, options);
    const auto want = trained(plan_);
    options.emplace_back("--copy-weights");
    plan(model, options);
    loseModel("gpt2");
    const std::string moved = folder_.file("moved");
    fs::remove_all(moved);
    fs::rename(plan_, moved);  // it stands alone
    EXPECT_EQ(trained(moved), want) << options.back();
  }
}

// Each rank's file has what the model's has in the rank's box of the tensor, under the tensor's name.
TEST_F(CopiedWeights, AreTheRanksParts) {
  plan(takeModel("mlp"), {"--cluster", "1x2", "--stages", "uniform:1", "--dim", "batch=8", "--method",
                          "megatron:1,2", "--copy-weights"});
  const std::string reference = plan_ + "/reference";
  const Program whole = ProgramFolder(reference).program(RankId(0));
  int parts = 0;
  for (const RankId rank : {RankId(0), RankId(1)}) {
    const std::string expanded = folder_.file("rank" + std::to_string(rank.index()));
    ASSERT_EQ(runPipeshard({"plan", plan_, "--expand-rank", std::to_string(rank.index()), "-o", expanded})
                  .exit_code,
              0);
    const TensorFile copies = TensorFile::open(expanded + "/" + copiedWeightsFile(rank));
    for (const Buffer& buffer : ProgramFolder(plan_).program(rank).buffers) {
      if (!buffer.own_copy) continue;
      ++parts;
      const TensorEntry* entry = copies.find(buffer.value);
      ASSERT_NE(entry, nullptr) << buffer.value;
      EXPECT_EQ(std::get<WeightReference>(*buffer.source).offset, entry->offset);
      const auto all = std::find_if(whole.buffers.begin(), whole.buffers.end(), [&](const Buffer& other) {
        return other.kind == buffer.kind && other.value == buffer.value;
      });
      ASSERT_NE(all, whole.buffers.end());
      const auto& weight = std::get<WeightReference>(*all->source);
      const std::string content = readFile(weight.location).substr(weight.offset, weight.length);
      std::string box;
      forEachRun(wholeShape(buffer), boxOf(buffer), [&](int64_t first, int64_t count) {
        box += content.substr(first * sizeof(float), count * sizeof(float));
      });
      const std::vector<std::byte> copied = copies.read(*entry);
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(copied.data()), copied.size()), box);
    }
  }
  EXPECT_GT(parts, 8);
}

TEST_F(CopiedWeights, AreCheckedBeforeTheFirstStep) {
  plan(takeModel("mlp"), {"--cluster", "1x2", "--stages", "uniform:2", "--dim", "batch=8", "--copy-weights"});
  const std::string file = plan_ + "/" + copiedWeightsFile(RankId(1));
  std::string content = readFile(file);
  content.back() = static_cast<char>(content.back() ^ 1);
  writeFile(file, content);
  const CommandResult changed = runPipeshard({"run", plan_});
  EXPECT_EQ(changed.exit_code, static_cast<int>(ErrorCode::kConfiguration));
  EXPECT_NE(changed.errors.find("weights/0001.safetensors has other content"), std::string::npos)
      << changed.errors;
  fs::remove(file);
  const CommandResult lost = runPipeshard({"run", plan_});
  EXPECT_EQ(lost.exit_code, static_cast<int>(ErrorCode::kMissingInput));
  EXPECT_NE(lost.errors.find("weights/0001.safetensors does not exist"), std::string::npos) << lost.errors;
}

// y = x w, where w (80,000 numbers) is of `type`, in the field that ONNX has for its numbers, or as bytes.
std::string writeNumbers(const std::string& path, onnx::TensorProto::DataType type, bool as_bytes) {
  using Tensor = onnx::TensorProto;
  onnx::ModelProto model = testing::parseText(R"(
    <ir_version: 8, opset_import: ["" : 18]>
    numbers (float[batch, 200] x) => (float[batch, 400] y) { y = MatMul(x, w) })");
  for (auto* values : {model.mutable_graph()->mutable_input(), model.mutable_graph()->mutable_output()})
    values->Mutable(0)->mutable_type()->mutable_tensor_type()->set_elem_type(type);
  Tensor& weight = *model.mutable_graph()->add_initializer();
  weight.set_name("w");
  weight.set_data_type(type);
  for (const int64_t size : {200, 400}) weight.add_dims(size);
  std::string bytes;
  for (int i = 0; i < 80000; ++i) {
    const float number = static_cast<float>(i % 17 - 8) / 64;
    if (type == Tensor::FLOAT) {
      if (!as_bytes) weight.add_float_data(number);
      bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
    } else {
      const Constant half = makeScalar(DataType::kFloat16, number);
      uint16_t bits = 0;
      std::memcpy(&bits, half.bytes.data(), sizeof bits);
      if (!as_bytes) weight.add_int32_data(bits);
      bytes.append(reinterpret_cast<const char*>(&bits), sizeof bits);
    }
  }
  if (as_bytes) weight.set_raw_data(bytes);
  writeFile(path, model.SerializeAsString());
  return path;
}

// A file's numbers train as its bytes do, to the bit, wherever the plan lies, and are exported again.
TEST_F(CopiedWeights, LargeNumbersOfAFileTrainAsItsBytes) {
  const std::string model = folder_.file("numbers.onnx"), saved = folder_.file("saved");
  for (const auto type : {onnx::TensorProto::FLOAT, onnx::TensorProto::FLOAT16}) {
    for (const std::string method : {"auto", "megatron:1,2"}) {
      SCOPED_TRACE(std::to_string(type) + " " + method);
      const std::vector<std::string> options = {"--loss", "mse:y,t",  "--dim",     "batch=4",  "--cluster",
                                                "1x2",    "--stages", "uniform:1", "--method", method};
      plan(writeNumbers(model, type, true), options);
      const auto want = trained(plan_);
      plan(writeNumbers(model, type, false), options);
      const std::string moved = folder_.file("moved");
      fs::remove_all(moved);
      fs::rename(plan_, moved);
      EXPECT_EQ(trained(moved), want);
      EXPECT_EQ(fs::exists(moved + "/weights/constants.safetensors"), type == onnx::TensorProto::FLOAT16);
      const CommandResult validated = runPipeshard({"validate", moved});
      EXPECT_EQ(validated.exit_code, 0) << validated.output << validated.errors;
      fs::remove_all(saved);
      ASSERT_EQ(runPipeshard({"run", moved, "--steps", "1", "--checkpoint", saved}).exit_code, 0);
      const CommandResult exported = runPipeshard({"export", saved, "-o", folder_.file("trained.onnx")});
      EXPECT_EQ(exported.exit_code, 0) << exported.errors;
      EXPECT_EQ(runPipeshard({"run", moved, "--steps", "2", "--checkpoint", saved}).exit_code, 0);
    }
  }
}

TEST_F(CopiedWeights, LargeNumbersOfAFileAreCheckedAndComeWithARank) {
  plan(writeNumbers(folder_.file("numbers.onnx"), onnx::TensorProto::FLOAT16, false),
       {"--loss", "mse:y,t", "--dim", "batch=4", "--cluster", "1x1"});
  const std::string expanded = folder_.file("rank0"), name = "/weights/constants.safetensors";
  ASSERT_EQ(runPipeshard({"plan", plan_, "--expand-rank", "0", "-o", expanded}).exit_code, 0);
  EXPECT_EQ(readFile(expanded + name), readFile(plan_ + name));
  std::string content = readFile(plan_ + name);
  content.back() = static_cast<char>(content.back() ^ 1);
  writeFile(plan_ + name, content);
  const CommandResult changed = runPipeshard({"run", plan_});
  EXPECT_EQ(changed.exit_code, static_cast<int>(ErrorCode::kConfiguration)) << changed.errors;
  EXPECT_NE(changed.errors.find("constants.safetensors has other content"), std::string::npos)
      << changed.errors;
}

}  // namespace
}  // namespace pipeshard
