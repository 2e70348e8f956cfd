// `plan DIR --expand-rank N --dialect ort`: collectives as ONNX Runtime has them.
#include <filesystem>
#include <map>

#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "onnx_import/format/reader.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

const std::string kMlp = PIPESHARD_SOURCE_DIR "/examples/mlp.onnx";

class OrtDialect : public ::testing::Test {
 protected:
  // Of the second rank's files: how many nodes of "domain::Type" there are; its last line of output.
  std::map<std::string, int> collectives(std::vector<std::string> options) {
    std::vector<std::string> line = {"plan", kMlp, "-o", folder_.file("plan"), "--dim", "batch=8"};
    line.insert(line.end(), options.begin(), options.end());
    EXPECT_EQ(runPipeshard(line).exit_code, 0);
    const std::string rank = folder_.file("rank" + std::to_string(++runs_));
    const CommandResult expanded =
        runPipeshard({"plan", folder_.file("plan"), "--expand-rank", "1", "--dialect", "ort", "-o", rank});
    EXPECT_EQ(expanded.exit_code, 0) << expanded.errors;
    said_ = expanded.output;
    std::map<std::string, int> found;
    for (const auto& entry : std::filesystem::directory_iterator(rank)) {
      if (entry.path().extension() != ".onnx") continue;
      const Graph graph = readModel(entry.path().string());
      for (const Node& node : graph.nodes) {
        for (const std::string type : {"AllReduce", "AllGather", "ReduceScatter", "AllToAll"})
          found[node.domain + "::" + type] += node.op_type == type ? 1 : 0;
        if (node.domain != "com.microsoft") continue;
        EXPECT_EQ(graph.opset_imports.at("com.microsoft"), 1);
        EXPECT_EQ(node.attributes.contains("group"), false);
        if (node.op_type == "AllGather") {
          EXPECT_EQ(node.intAttribute("group_size", 0), 2);
        }
      }
    }
    return found;
  }

  const TemporaryFolder folder_;
  std::string said_;
  int runs_ = 0;
};

TEST_F(OrtDialect, HasWhatMeetsOnAllRanks) {
  std::map<std::string, int> found = collectives(
      {"--cluster", "1x2", "--stages", "uniform:1", "--method", "zero2", "--optimizer", "adamw:lr=0.01"});
  EXPECT_GT(found["com.microsoft::AllGather"], 0);
  EXPECT_EQ(found["pipeshard::AllGather"], 0);
  EXPECT_GT(found["pipeshard::ReduceScatter"], 0);
  EXPECT_NE(said_.find("(ReduceScatter: ONNX Runtime has none)"), std::string::npos) << said_;
  found = collectives({"--cluster", "1x2", "--stages", "uniform:1", "--method", "megatron:1,2"});
  EXPECT_GT(found["com.microsoft::AllReduce"], 0);
  EXPECT_EQ(found["pipeshard::AllReduce"], 0);
}

TEST_F(OrtDialect, KeepsWhatMeetsOnSome) {
  std::map<std::string, int> found =
      collectives({"--cluster", "1x4", "--stages", "uniform:2", "--method", "megatron:1,2"});
  EXPECT_EQ(found["com.microsoft::AllReduce"], 0);
  EXPECT_GT(found["pipeshard::AllReduce"], 0);
  EXPECT_NE(said_.find("AllReduce: among some ranks, ONNX Runtime's is among all"), std::string::npos)
      << said_;
}

TEST_F(OrtDialect, NeedsARank) {
  const CommandResult refused = runPipeshard({"plan", kMlp, "--dialect", "ort", "-o", folder_.file("plan")});
  EXPECT_EQ(refused.exit_code, static_cast<int>(ErrorCode::kUsage));
  EXPECT_NE(refused.errors.find("--expand-rank"), std::string::npos) << refused.errors;
}

}  // namespace
}  // namespace pipeshard
