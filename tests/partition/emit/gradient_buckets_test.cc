// Buckets of gradients: where a pass is cut, what is posted when. (That programs with buckets compute what
// those without do: emit_family_random_test.cc, and tests/tools/gradient_buckets_test.cc with real models.)
#include "partition/emit/gradient_buckets.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/plan/plan.h"
#include "ir/program/background.h"
#include "ir/program/program_print.h"
#include "ir/program/program_verify.h"
#include "partition/emit/graph_segments.h"
#include "partition/emit/rank_program.h"
#include "tests/ir/program/program_writer.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// dw = xt d; dv = yt d, where y = Relu(x) and d = Mul(dy, dy); xt and yt are transposed.
struct Backward {
  Graph graph;
  ValueId x, dy, xt, d, dw, y, yt, dv;

  Backward() {
    graph.name = "backward_weight";
    graph.opset_imports[""] = 18;
    GraphBuilder builder(graph);
    const auto value = [&](const char* name) { return builder.addValue(name, DataType::kFloat32, {4, 4}); };
    x = value("x"), dy = value("dy"), xt = value("xt"), d = value("d"), dw = value("dw"), y = value("y"),
    yt = value("yt"), dv = value("dv");
    builder.addNode("", "Transpose", {x}, {xt});
    builder.addNode("", "Mul", {dy, dy}, {d});
    builder.addNode("", "MatMul", {xt, d}, {dw});
    builder.addNode("", "Relu", {xt}, {y});
    builder.addNode("", "Transpose", {y}, {yt});
    builder.addNode("", "MatMul", {yt, d}, {dv});
    graph.inputs = {x, dy};
    graph.outputs = {dw, dv};
  }
};

std::vector<size_t> numbers(const std::vector<NodeId>& nodes) {
  std::vector<size_t> result;
  for (NodeId node : nodes) result.push_back(node.index());
  return result;
}

TEST(CutIntoSegments, PutsNodesWhereTheyAreFirstNeededAndRepeatsWhatOnlyShows) {
  const Backward b;
  const std::vector<GraphSegment> segments = cutIntoSegments(b.graph, {0, 1}, 2);
  EXPECT_THAT(numbers(segments[0].nodes), ElementsAre(0, 1, 2));
  EXPECT_THAT(numbers(segments[1].nodes), ElementsAre(0, 3, 4, 5));  // the Transpose again
  EXPECT_THAT(segments[0].inputs, ElementsAre(b.x, b.dy));
  EXPECT_THAT(segments[0].outputs, ElementsAre(b.dw, b.d));
  EXPECT_THAT(segments[1].inputs, ElementsAre(b.x, b.d));
  EXPECT_THAT(segments[1].outputs, ElementsAre(b.dv));
}

TEST(CutIntoSegments, HandsOnWhatIsAnOutputToo) {
  Backward b;
  b.graph.outputs = {b.d, b.dv, b.x};
  const std::vector<GraphSegment> segments = cutIntoSegments(b.graph, {0, 1, 1}, 2);
  EXPECT_THAT(numbers(segments[0].nodes), ElementsAre(1));
  EXPECT_THAT(numbers(segments[1].nodes), ElementsAre(0, 2, 3, 4, 5));  // nobody needs dw: at the end
  EXPECT_THAT(segments[0].outputs, ElementsAre(b.d));
  EXPECT_THAT(segments[1].inputs, ElementsAre(b.x, b.d));
  EXPECT_THAT(segments[1].outputs, ElementsAre(b.dv, b.x));
}

// A data-parallel rank with two microbatches, as it is emitted.
RankProgram rankProgram(int rank = 0) {
  ProgramWriter writer(rank, 2, 2);
  writer.program().groups = {idsAt<RankId>({0, 1})};
  writer.input("x", {8, 4}, 0);
  for (const char* name : {"w", "v"}) {
    writer.buffer(name, BufferKind::kParameter, {4, 4});
    writer.parameter(name);
  }
  for (const char* name : {"dw", "dv"}) writer.buffer(name, BufferKind::kGradient, {4, 4});
  writer.subgraph("backward_weight", Phase::kBackwardWeight, {"x", "dy"}, {"dw", "dv"});
  writer.subgraph("update", Phase::kUpdate, {"w", "v", "dw", "dv"}, {"w_new", "v_new"});
  for (int k = 0; k < 2; ++k) {
    const std::string at = "@" + std::to_string(k);
    writer.buffer("x" + at, BufferKind::kInput, {4, 4});
    for (const char* name : {"dy", "dw", "dv"}) writer.buffer(name + at, BufferKind::kActivation, {4, 4});
    writer.load("x" + at, k, 4 * k);
    writer.zero("dy" + at);
    writer.run(0, k, {"x" + at, "dy" + at}, {"dw" + at, "dv" + at});
    writer.accumulate("dw" + at, "dw", k == 0, k);
    writer.accumulate("dv" + at, "dv", k == 0, k);
  }
  for (const char* name : {"dw", "dv"}) writer.allReduce(0, name);
  writer.update(1, {"w", "v", "dw", "dv"}, {"w", "v"});
  for (const std::string name : {"w", "v"}) writer.result(Result::Kind::kGradient, name, "d" + name);
  return {writer.program(), {Backward().graph, Graph()}};
}

std::vector<std::string> instructionsOf(const Program& program) {
  std::vector<std::string> texts;
  for (const Instruction& instruction : program.instructions)
    texts.push_back(describeInstruction(program, instruction));
  return texts;
}

TEST(GradientBuckets, ArePostedBeforeTheLastSegmentRuns) {
  RankProgram rank = rankProgram();
  postGradientBuckets(rank, 1, "@");
  const std::vector<std::string> texts = instructionsOf(rank.program);
  EXPECT_EQ(
      std::vector<std::string>(texts.begin() + 7, texts.end()),
      (std::vector<std::string>{
          "run backward_weight_part1of2 microbatch=1 \"x@1\", \"dy@1\" -> \"dw@1\", \"d@1\"",
          "accumulate microbatch=1 \"dw@1\" -> \"dw\"", "all_reduce background group=0 \"dw\" -> \"dw\"",
          "run backward_weight_part2of2 microbatch=1 \"x@1\", \"d@1\" -> \"dv@1\"",
          "accumulate microbatch=1 \"dv@1\" -> \"dv\"", "all_reduce group=0 \"dv\" -> \"dv\"",
          "update update \"w\", \"v\", \"dw\", \"dv\" -> \"w\", \"v\""}));
  const BackgroundWaits waits = backgroundWaits(rank.program);
  EXPECT_THAT(waits.lane, ElementsAre(9));
  // only the update waits for it
  EXPECT_EQ(std::count(waits.before.begin(), waits.before.end() - 2, 0u), 13);
  EXPECT_EQ(waits.before[13], 1u);
  ASSERT_EQ(rank.subgraphs.size(), 4u);  // the first microbatch runs the pass whole
  EXPECT_EQ(rank.subgraphs[2].nodes.size(), 3u);
  EXPECT_EQ(rank.program.subgraphs[3].inputs, (std::vector<std::string>{"x", "d"}));
}

TEST(GradientBuckets, AreLeftOutWhereNothingCouldOverlap) {
  // both gradients fit in one of 65 bytes
  for (const int64_t bytes : {int64_t{0}, int64_t{65}, kDefaultBucketBytes}) {
    RankProgram rank = rankProgram();
    const std::string before = printProgram(rank.program);
    postGradientBuckets(rank, bytes, "@");
    EXPECT_EQ(printProgram(rank.program), before) << bytes;
  }
}

TEST(GradientBuckets, ThatAreTheLastOfTheirPassArePostedWhenTheRankHasOtherPassesToRun) {
  RankProgram rank = rankProgram();
  // As if another stage of the rank came after it: the first microbatch's run once more, with results of its
  // own.
  Program& program = rank.program;
  Instruction other = program.instructions[2];
  for (BufferId& id : other.outputs) {
    Buffer buffer = program.buffer(id);
    buffer.name += "_again";
    id = BufferId(program.buffers.size());
    program.buffers.push_back(buffer);
  }
  program.instructions.unrolled().insert(program.instructions.begin() + 10, other);
  postGradientBuckets(rank, kDefaultBucketBytes, "@");
  const std::vector<std::string> texts = instructionsOf(program);
  EXPECT_THAT(texts[7], HasSubstr("run backward_weight microbatch=1"));
  EXPECT_THAT(texts[10], HasSubstr("all_reduce background group=0 \"dw\""));
  EXPECT_THAT(texts[11], HasSubstr("all_reduce background group=0 \"dv\""));
  EXPECT_THAT(texts[12], HasSubstr("dw@0_again"));
}

TEST(GradientBuckets, LeaveOutGradientsThatSomethingElseTouches) {
  RankProgram rank = rankProgram();
  Program& program = rank.program;
  Instruction zero;  // "dw" is changed behind the pass
  zero.kind = InstructionKind::kZero;
  zero.outputs = {program.instructions[8].outputs[0]};
  program.instructions.unrolled().insert(program.instructions.begin() + 10, zero);
  const std::string before = printProgram(program);
  postGradientBuckets(rank, 1, "@");
  EXPECT_EQ(printProgram(program), before);  // only "dv" is left, and nothing to overlap it with
}

TEST(GradientBuckets, OfAllRanksTogetherPassTheVerifier) {
  std::vector<Program> programs;
  for (const int rank : {0, 1}) {
    RankProgram made = rankProgram(rank);
    postGradientBuckets(made, 1, "@");
    for (const char* name : {"x@0", "x@1", "dy@0", "dy@1", "dw@0", "dw@1", "dv@0", "dv@1", "d@1"}) {
      const auto found = std::find_if(made.program.buffers.begin(), made.program.buffers.end(),
                                      [&](const Buffer& b) { return b.name == name; });
      Instruction free;
      free.kind = InstructionKind::kFree;
      free.inputs = {BufferId(found - made.program.buffers.begin())};
      made.program.instructions.push_back(free);
    }
    if (rank == 1) {
      made.program.results.clear();
      for (size_t b = 0; b < made.program.buffers.size(); ++b) {
        if (made.program.buffers[b].kind != BufferKind::kGradient) continue;
        Instruction free;
        free.kind = InstructionKind::kFree;
        free.inputs = {BufferId(b)};
        made.program.instructions.push_back(free);
      }
    }
    programs.push_back(std::move(made.program));
  }
  EXPECT_NO_THROW(verifyPrograms(programs));
}

}  // namespace
}  // namespace pipeshard
