
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "ir/base/error.h"
#include "runtime/profiling/operator_times.h"
#include "runtime/profiling/profiling_links.h"
#include "runtime/profiling/profiling_memory.h"
#include "runtime/profiling/profiling_passes.h"
#include "runtime/profiling/profiling_rank.h"
#include "tests/runtime/device/lazy_device.h"
#include "tests/runtime/pipeline_program.h"

namespace pipeshard {
namespace {

// Products of square matrices of these sizes, one behind the other; product i is work i unless said
// otherwise.
PassSample products(const std::vector<int64_t>& sizes, std::vector<int> works = {}) {
  PassSample sample;
  Program& program = sample.image.program;
  Graph graph;
  graph.opset_imports = {{"", 18}};
  GraphBuilder builder(graph);
  Instruction run;
  run.subgraph = SubgraphId(0);
  const auto value = [&](const std::string& name, int64_t size, std::vector<BufferId>& bound) {
    Buffer& buffer = program.buffers.emplace_back();
    buffer.name = name;
    buffer.kind = BufferKind::kParameter;
    buffer.data_type = DataType::kFloat32;
    buffer.shape = {size, size};
    bound.emplace_back(program.buffers.size() - 1);
    return builder.addValue(name, DataType::kFloat32, {size, size});
  };
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string number = std::to_string(i);
    const std::vector<ValueId> operands = {value("a" + number, sizes[i], run.inputs),
                                           value("b" + number, sizes[i], run.inputs)};
    graph.inputs.insert(graph.inputs.end(), operands.begin(), operands.end());
    graph.outputs.push_back(value("c" + number, sizes[i], run.outputs));
    builder.addNode("", "MatMul", operands, {graph.outputs.back()});
    if (works.size() <= i) works.push_back(i);
  }
  program.subgraphs.emplace_back().name = "products";
  program.instructions = {run};
  sample.image.subgraphs = {graph};
  sample.work = {works};
  return sample;
}

ProfilingOptions quick(int workers = 1) {
  ProfilingOptions options;
  options.workers = workers;
  options.sample_ns = 50'000'000;
  return options;
}

// Clocks of a busy machine: what is expected is seen in one of eight runs.
template <typename Run>
bool inOneOfEightRuns(const Run& run) {
  for (int attempt = 0; attempt < 8; ++attempt) {
    if (run()) return true;
  }
  return false;
}

TEST(Profiling, LargerProductsTakeLonger) {
  const PassSample sample = products({16, 128, 512});
  EXPECT_TRUE(inOneOfEightRuns([&] {
    size_t told = 0;
    const std::vector<OperatorTime> times =
        measurePasses({&sample, 1}, 3, quick(), [&](size_t done, size_t all) {
          EXPECT_EQ(all, 1U);
          EXPECT_EQ(done, ++told);
        });
    EXPECT_EQ(told, 1U);
    for (const OperatorTime& time : times) {
      EXPECT_EQ(time.busy_ns, 0);
      EXPECT_GT(time.repetitions, 0);
    }
    // Each is 64 times or more the work of the one before.
    return times.size() == 3 && 0 < times[0].ns && times[0].ns < times[1].ns && times[1].ns < times[2].ns;
  }));
}

TEST(Profiling, MeasuresBesideASecondWorker) {
  const std::vector<PassSample> samples = {products({32}, {0}), products({128}, {1})};
  for (const OperatorTime& time : measurePasses(samples, 2, quick(2))) {
    EXPECT_GT(time.ns, 0);
    EXPECT_GT(time.busy_ns, 0);
  }
}

// 512 is 32,768 times 16: the mean of both is about half of the large one, by itself or at its place beside
// the other.
TEST(Profiling, EqualWorkTakesTheMeanOverItsPlaces) {
  const std::vector<PassSample> samples = {products({16, 512}, {0, 0}), products({512}, {1}),
                                           products({16, 16}, {-1, 2})};
  EXPECT_TRUE(inOneOfEightRuns([&] {
    const std::vector<OperatorTime> times = measurePasses(samples, 4, quick());
    EXPECT_EQ(times[3].ns, 0);  // is nowhere
    EXPECT_EQ(times[3].repetitions, 0);
    return times[1].ns > times[0].ns && times[0].ns > 10 * times[2].ns;
  }));
}

// When there is no time: everything once, but no work twice.
TEST(Profiling, AStepThatIsTooLongIsRunOnceAndWithoutWhatIsKnown) {
  ProfilingOptions options = quick();
  options.budget_ns = 0;
  const std::vector<PassSample> samples = {products({64, 64, 64, 32}, {0, 0, 0, 1}),
                                           products({64, 16}, {0, 2})};
  const std::vector<OperatorTime> times = measurePasses(samples, 3, options);
  for (const OperatorTime& time : times) {
    EXPECT_GT(time.ns, 0);
    EXPECT_EQ(time.repetitions, 1);
  }
}

TEST(Profiling, AnOperatorWithoutKernelIsAnError) {
  PassSample sample = products({4});
  sample.image.subgraphs[0].nodes[0].domain = "nobody";
  sample.image.subgraphs[0].opset_imports["nobody"] = 1;
  EXPECT_THROW(measurePasses({&sample, 1}, 1, quick()), Error);
}

TEST(Profiling, MemoryIsThatOfTheArena) {
  EXPECT_GE(passBytes(products({64}), quick()), 3 * 64 * 64 * 4);
  EXPECT_LT(passBytes(products({64}), quick()), 4 * 64 * 64 * 4);
}

// Operators on a device that works late, on memory that the host cannot touch: each has its own time, not
// that of giving it.
TEST(Profiling, OperatorsOfADeviceHaveItsTimes) {
  const auto device = testing::makeLazyDevice();
  ProfilingOptions options = quick();
  options.device = device.get();
  const PassSample sample = products({16, 128, 512});
  EXPECT_TRUE(inOneOfEightRuns([&] {
    const std::vector<OperatorTime> times = measurePasses({&sample, 1}, 3, options);
    for (const OperatorTime& time : times) EXPECT_GT(time.repetitions, 0);
    return 0 < times[0].ns && times[0].ns < times[1].ns && 8 * times[1].ns < times[2].ns;
  }));
  EXPECT_GE(passBytes(sample, options), passBytes(sample, quick()));
}

TEST(Profiling, CopiesOfADeviceHaveItsTimes) {
  const auto device = testing::makeLazyDevice();
  const CostCurve inside = measureMemory(*device, 1 << 16), staged = measureStaging(*device, 1 << 16);
  for (const CostCurve* curve : {&inside, &staged}) {
    ASSERT_EQ(curve->points.size(), 5U);
    EXPECT_GT(curve->points.front().ns, 0);
    EXPECT_GE(curve->points.back().ns, curve->points.front().ns);
  }
  EXPECT_EQ(inside.points.front().amount, 512);  // read and written
  EXPECT_EQ(staged.points.front().amount, 256);
  EXPECT_TRUE(measureStaging(cpuDevice(), 1 << 16).points.empty());
}

// Stages of a pipeline, each without the other: nobody answers, and weights are not there.
TEST(StandaloneRank, RunsWithoutItsPeers) {
  for (RankImage& image : pipelineImages(2)) {
    for (Buffer& buffer : image.program.buffers) {
      if (buffer.source) buffer.source = WeightReference{"nowhere", 0, 8};
    }
    const RankId rank = image.program.rank;
    StandaloneRank alone(image, {});
    for (int step = 0; step < 3; ++step) alone.runStep();
    EXPECT_EQ(alone.program().rank, rank);
  }
}

class Recorded : public NodeObserver {
 public:
  std::vector<std::pair<size_t, size_t>> nodes;  // by instruction
  void beginRun(size_t instruction) override { instruction_ = instruction; }
  bool beginNodes(std::span<const size_t> run, DeviceQueue&) override {
    nodes.emplace_back(instruction_, run.back());
    return true;
  }
  void endNodes(std::span<const size_t> run, DeviceQueue&) override {
    EXPECT_EQ(nodes.back().second, run.back());
  }

 private:
  size_t instruction_ = 0;
};

TEST(NodeObserver, HearsOfEveryNodeInOrder) {
  Recorded heard;
  ExecutorOptions options;
  options.observer = &heard;
  StandaloneRank rank(pipelineImages(1)[0], options);
  rank.runStep();
  ASSERT_FALSE(heard.nodes.empty());
  EXPECT_TRUE(std::is_sorted(heard.nodes.begin(), heard.nodes.end()));
  std::set<size_t> expected, runs;
  for (size_t i = 0; i < rank.program().instructions.size(); ++i) {
    if (rank.program().instructions.form(i).subgraph.valid()) expected.insert(i);
  }
  for (const auto& [instruction, node] : heard.nodes) runs.insert(instruction);
  EXPECT_EQ(runs, expected);
}

TEST(NodeTimes, AreOfTheStepsBehindTheFirst) {
  NodeTimes times;
  ExecutorOptions options;
  options.observer = &times;
  StandaloneRank rank(pipelineImages(1)[0], options);
  rank.runStep();
  times.endStep(100);
  EXPECT_EQ(times.steps(), 1);
  const std::vector<NodeTime> first = times.rows(rank.program());
  for (int step = 0; step < 3; ++step) {
    rank.runStep();
    times.endStep(1);
  }
  EXPECT_EQ(times.steps(), 3);
  EXPECT_EQ(times.stepSeconds(), 3) << "not of the first";
  const std::vector<NodeTime> rows = times.rows(rank.program());
  ASSERT_EQ(rows.size(), first.size());
  ASSERT_FALSE(rows.empty());
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].runs, 3 * first[i].runs);
    EXPECT_GT(rows[i].seconds, 0);
  }
}

TEST(Profiling, CurvesOfLinksAndMemoryAscend) {
  const LinkTimes inside = measureInside(1 << 16);
  for (const CostCurve* curve :
       {&inside.send, &inside.all_reduce, &inside.all_gather, &inside.reduce_scatter, &inside.all_to_all}) {
    ASSERT_EQ(curve->points.size(), 5U);
    EXPECT_EQ(curve->points.front().amount, 256);
    EXPECT_GT(curve->points.front().ns, 0);
    for (size_t i = 1; i < curve->points.size(); ++i) EXPECT_GE(curve->points[i].ns, curve->points[i - 1].ns);
  }
  const LinkTimes of_four = measureInside(1 << 12, 4);
  for (const CostCurve* curve :
       {&of_four.all_reduce, &of_four.all_gather, &of_four.reduce_scatter, &of_four.all_to_all}) {
    ASSERT_EQ(curve->points.size(), 3U);
    EXPECT_GT(curve->points.front().ns, 0);
  }
  const CostCurve between = measureBetween(1 << 10);
  ASSERT_EQ(between.points.size(), 2U);
  EXPECT_GT(between.points[0].ns, 0);
  const CostCurve memory = measureMemory(cpuDevice());
  EXPECT_GT(memory.points.back().ns, memory.points.front().ns);
}

}  // namespace
}  // namespace pipeshard
