// Gradients in buckets, with real models and real workers: the bits are those without buckets, and one
// device's numbers.
#include <gtest/gtest.h>

#include <algorithm>

#include "ir/program/background.h"
#include "runtime/execute/dump.h"
#include "runtime/execute/rank_image.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

struct BucketCase {
  std::string model;
  int ranks;
  std::vector<std::string> options;
};
void PrintTo(const BucketCase& c, std::ostream* stream) {
  *stream << c.model << " " << ::testing::PrintToString(c.options);
}

class Buckets : public ::testing::TestWithParam<BucketCase> {};

// Positions of the background collectives and of the runs of pass segments, of rank 0.
void expectOverlap(const Program& program) {
  const std::vector<size_t> lane = backgroundWaits(program).lane;
  ASSERT_FALSE(lane.empty());
  size_t last_segment = 0;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction instruction = program.instructions.copyAt(i);
    if (!instruction.subgraph.valid()) continue;
    if (program.subgraphs[instruction.subgraph.index()].name.find("_part") != std::string::npos)
      last_segment = i;
  }
  EXPECT_LT(lane.front(), last_segment);
}

TEST_P(Buckets, ChangeNoBit) {
  const auto& [model, ranks, options] = GetParam();
  const TemporaryFolder folder;
  for (const std::string bucket : {"off", "2kB"}) {
    const std::string plan = folder.file("plan_" + bucket);
    std::vector<std::string> arguments{
        "plan",        "examples/" + model + ".onnx", "-o", plan, "--bucket", bucket,
        "--optimizer", "sgd:lr=0.1,momentum=0.9"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const CommandResult planned = runPipeshard(arguments);
    ASSERT_EQ(planned.exit_code, 0) << planned.output << planned.errors;
    const CommandResult run =
        bucket == "off" ? runPipeshard({"run", plan, "--steps", "2", "--dump", folder.file(bucket)})
                        : runPipeshard({"validate", plan, "--steps", "2", "--dump", folder.file(bucket)});
    ASSERT_EQ(run.exit_code, 0) << run.output << run.errors;
    const Program program = loadProgram(plan, RankId(0));
    if (bucket == "off") {
      EXPECT_TRUE(backgroundWaits(program).lane.empty());
    } else {
      expectOverlap(program);
    }
  }
  for (const int64_t step : {1, 2}) {
    const StepDump off = StepDump::open(folder.file("off"), step, ranks);
    const StepDump on = StepDump::open(folder.file("2kB") + "/planned", step, ranks);
    size_t compared = 0;
    for (const std::string& name : off.names()) {
      ++compared;
      EXPECT_TRUE(on.read(name).bytes == off.read(name).bytes) << "step " << step << ", " << name;
    }
    EXPECT_GT(compared, 5u);
  }
}

const std::vector<std::string> kOneStage{"--cluster", "1x2", "--stages", "uniform:1", "--microbatches", "2"};
std::vector<std::string> oneStage(const std::string& method) {
  std::vector<std::string> options = kOneStage;
  options.insert(options.end(), {"--method", method});
  return options;
}

INSTANTIATE_TEST_SUITE_P(
    Examples, Buckets,
    ::testing::Values(BucketCase{"gpt2", 2, kOneStage}, BucketCase{"gpt2", 2, oneStage("zero2")},
                      BucketCase{"gpt2", 2, oneStage("zero3")}, BucketCase{"resnet", 2, kOneStage},
                      BucketCase{"llama",
                                 4,
                                 {"--cluster", "1x4", "--stage-devices", "2,2", "--schedule", "1f1b",
                                  "--microbatches", "4"}},
                      BucketCase{
                          "mlp", 3, {"--cluster", "1x3", "--stages", "uniform:1", "--microbatches", "1"}}));

}  // namespace
}  // namespace pipeshard
