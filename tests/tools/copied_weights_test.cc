// `plan --copy-weights`: plan directories that need the model no more.
#include <filesystem>

#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "runtime/execute/rank_image.h"
#include "runtime/files/tensor_file.h"
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

}  // namespace
}  // namespace pipeshard
