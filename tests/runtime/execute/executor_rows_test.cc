// Rows of microbatches, slices, concatenations, zeros and forward states against plain loops, and collectives
// inside subgraphs between ranks in threads.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "ir/program/program_verify.h"
#include "runtime/execute/executor.h"
#include "runtime/execute/local_program.h"
#include "runtime/execute/rank_image.h"
#include "tests/expect_error.h"
#include "tests/ir/program/program_writer.h"
#include "tests/runtime/pipeline_program.h"
#include "tests/temporary_folder.h"
#include "transport/shared/shared_memory.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard {
namespace {

std::vector<float> contentOf(const Executor& executor, BufferId id) {
  const std::span<std::byte> bytes = executor.content(id);
  std::vector<float> elements(bytes.size() / sizeof(float));
  if (!bytes.empty()) std::memcpy(elements.data(), bytes.data(), bytes.size());
  return elements;
}

// Entries [offset, offset + count) of an axis, one element at a time.
std::vector<float> rangeOf(const std::vector<float>& whole, const Shape& shape, size_t axis, int64_t offset,
                           int64_t count) {
  const Shape strides = rowMajorStrides(shape);
  std::vector<float> part;
  for (size_t i = 0; i < whole.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i) / strides[axis] % shape[axis];
    if (at >= offset && at < offset + count) part.push_back(whole[i]);
  }
  return part;
}

std::vector<float> batchOf(const Program& program, int64_t step) {
  std::vector<float> elements(elementCount(program.inputs[0].shape));
  makeDataSource({"", 7}, program)->fill(0, step, 0, std::as_writable_bytes(std::span(elements)));
  return elements;
}

TEST(ExecutorRows, LoadsSlicesAndConcatenatesAsLoopsDo) {
  std::mt19937_64 generator(11);
  for (int round = 0; round < 60; ++round) {
    Shape shape;
    for (size_t rank = 1 + generator() % 4; rank > 0; --rank) shape.push_back(1 + generator() % 5);
    const size_t load_axis = generator() % shape.size();
    const size_t axis = generator() % shape.size();
    const auto pick = [&](int64_t below) {
      return static_cast<int64_t>(generator() % static_cast<uint64_t>(below));
    };
    Shape rows = shape;
    const int64_t first = pick(shape[load_axis]);
    rows[load_axis] = 1 + pick(shape[load_axis] - first);
    const int64_t cut = pick(rows[axis] + 1);  // a part may be empty
    Shape head = rows, tail = rows;
    head[axis] = cut;
    tail[axis] -= cut;
    ProgramWriter writer(0, 1, 1);
    writer.input("x", shape, load_axis);
    writer.buffer("x@0", BufferKind::kInput, rows);
    const BufferId ids[] = {writer.buffer("head", BufferKind::kActivation, head),
                            writer.buffer("tail", BufferKind::kActivation, tail),
                            writer.buffer("whole", BufferKind::kActivation, rows)};
    writer.load("x@0", 0, first);
    writer.slice("x@0", "head", axis, 0);
    writer.slice("x@0", "tail", axis, cut);
    writer.release("x@0");
    writer.concatenate({"head", "tail"}, "whole", axis);
    for (const char* name : {"head", "tail", "whole"}) writer.result(Result::Kind::kGradient, name, name);
    verifyPrograms({writer.program()});
    LocalProgram local({writer.program(), {}, ""}, {"", 7});
    local.runStep(2);
    const std::vector<float> loaded =
        rangeOf(batchOf(writer.program(), 2), shape, load_axis, first, rows[load_axis]);
    EXPECT_EQ(contentOf(local.executor(), ids[0]), rangeOf(loaded, rows, axis, 0, cut));
    EXPECT_EQ(contentOf(local.executor(), ids[1]), rangeOf(loaded, rows, axis, cut, rows[axis] - cut));
    EXPECT_EQ(contentOf(local.executor(), ids[2]), loaded);
  }
}

// "total" starts as zeros every step; "mean" starts from its source and then holds the last step's total.
Program forwardStateProgram(ProgramWriter writer = ProgramWriter(0, 1, 1)) {
  writer.input("x", {2, 3}, 0);
  Buffer& mean = writer.program().buffers[writer.parameter("mean").index()];
  mean.kind = BufferKind::kForwardState;
  mean.source = makeConstant<double>({2, 3}, {1, 2, 3, 4, 5, 6});
  mean.source_type = DataType::kFloat64;
  writer.load("x", 0);
  writer.zero("total");
  writer.accumulate("x", "total", false, 0);
  writer.accumulate("x", "total", false, 0);
  writer.accumulate("mean", "before", true, -1);
  writer.accumulate("total", "mean", true, -1);
  for (const char* name : {"x", "total"}) writer.release(name);
  writer.result(Result::Kind::kForwardState, "mean", "mean");
  writer.result(Result::Kind::kGradient, "before", "before");
  return writer.program();
}

TEST(ExecutorRows, ZeroesAndKeepsForwardStatesOverSteps) {
  const Program program = forwardStateProgram();
  verifyPrograms({program});
  LocalProgram local({program, {}, ""}, {"", 7});
  const BufferId mean = local.findResult(Result::Kind::kForwardState, "mean")->buffer;
  const BufferId before = local.findResult(Result::Kind::kGradient, "before")->buffer;
  std::vector<float> expected{1, 2, 3, 4, 5, 6};
  EXPECT_EQ(contentOf(local.executor(), mean), expected);
  for (int64_t step = 1; step <= 3; ++step) {
    local.runStep(step);
    EXPECT_EQ(contentOf(local.executor(), before), expected);
    expected = batchOf(program, step);
    for (float& element : expected) element += element;
    EXPECT_EQ(contentOf(local.executor(), mean), expected);
  }
  EXPECT_EQ(local.executor().memory().parts.states, 24);
}

TEST(ExecutorRows, RefusesRangesThatDoNotFitWhenLoading) {
  const auto refuse = [](auto change, const char* message) {
    ProgramWriter writer(0, 1, 1);
    writer.input("x", {4, 3}, 0);
    writer.buffer("x", BufferKind::kInput, {4, 3});
    writer.buffer("part", BufferKind::kActivation, {2, 3});
    writer.buffer("whole", BufferKind::kActivation, {4, 3});
    writer.load("x", 0);
    writer.slice("x", "part", 0, 2);
    writer.concatenate({"part", "part"}, "whole", 0);
    LocalProgram({writer.program(), {}, ""}, {"", 7}).runStep(1);
    change(writer.program().instructions);
    EXPECT_ERROR(LocalProgram({writer.program(), {}, ""}, {"", 7}), ErrorCode::kConfiguration, message);
  };
  refuse([](auto& list) { list[1].offset = 3; },
         "'part' float32[2,3] is no range of axis 0 from 3 on of 'x' float32[4,3]");
  refuse([](auto& list) { list[1].offset = -1; }, "from -1 on");
  refuse([](auto& list) { list[1].axis = 2; }, "axis 2");
  refuse([](auto& list) { list[2].axis = -1; }, "axis -1");
  refuse([](auto& list) { list[2].inputs.pop_back(); }, "its inputs fill 2 entries of axis 0 of 'whole'");
  refuse([](auto& list) { list[2].inputs.push_back(list[2].inputs[0]); }, "from 4 on");
}

// y = AllReduce_1(AllReduce_0(2 x) + x): group 0 is all ranks, group 1 the rank alone or with others. "Twice"
// has no kernel: its body is inlined around the collectives.
Graph collectiveGraph(DataType type, const Shape& shape) {
  Graph body;
  GraphBuilder inside(body);
  body.opset_imports[""] = 18;
  const ValueId a = inside.addValue("a", DataType::kUndefined, {});
  const ValueId b = inside.addValue("b", DataType::kUndefined, {});
  for (const ValueId id : {a, b}) body.value(id).shape.reset();
  body.inputs = {a};
  inside.addNode("", "Add", {a, a}, {b});
  body.outputs = {b};
  Graph graph;
  graph.name = "forward";
  graph.opset_imports = {{"", 18}, {std::string(kPipeshardDomain), 1}};
  Function twice;
  twice.domain = kPipeshardDomain;
  twice.name = "Twice";
  twice.body = std::make_shared<const Graph>(body);
  graph.functions.push_back(twice);
  GraphBuilder builder(graph);
  const auto value = [&](const char* name) { return builder.addValue(name, type, shape); };
  const ValueId x = value("x"), doubled = value("doubled"), first = value("first"), sum = value("sum"),
                y = value("y");
  graph.inputs = {x};
  graph.outputs = {y};
  builder.addNode(kPipeshardDomain, "Twice", {x}, {doubled});
  builder.addNode(kPipeshardDomain, "AllReduce", {doubled}, {first},
                  {{"group", int64_t{0}}, {"reduction", std::string("sum")}});
  builder.addNode("", "Add", {first, x}, {sum});
  builder.addNode(kPipeshardDomain, "AllReduce", {sum}, {y}, {{"group", int64_t{1}}});
  return graph;
}

// Rank r of `ranks` loads row r of "x"; group 1 holds ranks 0 and 1, or the rank alone.
RankImage collectiveImage(int rank, int ranks, DataType type) {
  ProgramWriter writer(rank, ranks, 1);
  writer.input("x", {ranks, 3}, 0);
  writer.program().inputs[0].data_type = type;
  writer.program().groups = {idsBelow<RankId>(ranks),
                             idsAt<RankId>(rank < 2 && ranks > 1 ? std::vector{0, 1} : std::vector{rank})};
  writer.subgraph("forward", Phase::kForward, {"x"}, {"y"}, {0, 1});
  writer.program().buffers[writer.buffer("x", BufferKind::kInput, {1, 3}).index()].data_type = type;
  writer.program().buffers[writer.buffer("y", BufferKind::kActivation, {1, 3}).index()].data_type = type;
  writer.load("x", 0, rank);
  writer.run(0, 0, {"x"}, {"y"});
  writer.release("x");
  writer.result(Result::Kind::kGradient, fmt::format("y of rank {}", rank), "y");
  return {writer.program(), {collectiveGraph(type, {1, 3})}, ""};
}

SharedSegments duplicate(const SharedSegments& segments) {
  std::string text = fmt::format("control={},arenas=", ::dup(segments.controlDescriptor()));
  for (RankId rank : idsBelow<RankId>(segments.size()))
    text += fmt::format("{}{}", rank.index() == 0 ? "" : ":", ::dup(segments.arenaDescriptor(rank)));
  return SharedSegments::inherit(text);
}

template <typename T>
void expectCollectives(int ranks, DataType type) {
  const TemporaryFolder folder;  // through the files of a plan
  std::vector<RankImage> images;
  std::vector<Program> programs;
  for (int rank = 0; rank < ranks; ++rank) {
    images.push_back(collectiveImage(rank, ranks, type));
    programs.push_back(images.back().program);
  }
  verifyPrograms(programs);
  writePlanDirectory(folder.path(), images);
  const SharedSegments segments = SharedSegments::create(ranks);
  std::vector<std::vector<T>> y(ranks, std::vector<T>(3));
  std::vector<StepReport> reports(ranks);
  const auto run_rank = [&](int rank) {
    Executor executor(loadRank(folder.path(), RankId(rank)), {});
    const auto data = makeDataSource({"", 7}, executor.program());
    const auto communicator =
        SharedMemoryCommunicator::open(duplicate(segments), RankId(rank), std::chrono::seconds(20));
    executor.attach(communicator->createArena(executor.memory().total_bytes), communicator.get(), data.get());
    // the others wait inside their subgraph
    if (rank == ranks - 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    reports[rank] = executor.runStep(1);
    std::memcpy(y[rank].data(), executor.content(executor.program().results[0].buffer).data(), 3 * sizeof(T));
    communicator->barrier(executor.program().groups[GroupId(0)]);
  };
  std::vector<std::thread> others;
  for (int rank = 1; rank < ranks; ++rank) others.emplace_back(run_rank, rank);
  run_rank(0);
  for (std::thread& other : others) other.join();

  std::vector<T> x(static_cast<size_t>(ranks) * 3);
  makeDataSource({"", 7}, programs[0])->fill(0, 1, 0, std::as_writable_bytes(std::span(x)));
  for (size_t c = 0; c < 3; ++c) {
    T total = 0;
    for (size_t rank = 0; rank < y.size(); ++rank) total += x[rank * 3 + c] + x[rank * 3 + c];
    for (size_t rank = 0; rank < y.size(); ++rank) {
      const T alone = total + x[rank * 3 + c];
      const T expected = rank < 2 ? (total + x[c]) + (total + x[3 + c]) : alone;
      EXPECT_EQ(y[rank][c], expected) << "rank " << rank << ", column " << c;
    }
  }
  EXPECT_GT(reports[0].transfer_seconds, 0.2);
  EXPECT_LT(reports[0].compute_seconds, 0.2);
}

TEST(ExecutorCollectives, SumInsideASubgraphOverItsGroups) {
  expectCollectives<double>(2, DataType::kFloat64);
  expectCollectives<double>(3, DataType::kFloat64);
  expectCollectives<float>(3, DataType::kFloat32);
}

TEST(ExecutorCollectives, RefusesAProgramWithoutCommunicatorWhenLoading) {
  RankImage image = collectiveImage(0, 1, DataType::kFloat64);
  EXPECT_ERROR(LocalProgram(std::move(image), {"", 7}), ErrorCode::kConfiguration,
               "subgraph 'forward' has 2 collective node(s), but there is no communicator");
}

TEST(ExecutorCollectives, RefusesGroupsThatDifferFromTheProgram) {
  const auto refuse = [](const std::vector<int>& collectives, const char* message) {
    RankImage image = collectiveImage(0, 2, DataType::kFloat64);
    image.program.subgraphs[0].collectives = idsAt<GroupId>(collectives);
    EXPECT_ERROR(Executor(std::move(image), {}), ErrorCode::kConfiguration, message);
  };
  refuse({1, 0}, "has collectives over the groups [0,1], but program.json says [1,0]");
  refuse({}, "but program.json says []");
  refuse({0, 1, 1}, "but program.json says [0,1,1]");
  RankImage image = collectiveImage(0, 2, DataType::kFloat64);
  image.program.groups.pop_back();
  EXPECT_ERROR(Executor(std::move(image), {}), ErrorCode::kConfiguration,
               "over group 1, but the program has 1 groups");
}

TEST(ExecutorCollectives, RefusesWhatAllReduceCannotDo) {
  const auto refuse = [](DataType type, auto change, const char* message) {
    RankImage image = collectiveImage(0, 2, type);
    change(image.subgraphs[0].nodes[1]);
    EXPECT_ERROR(Executor(std::move(image), {}), ErrorCode::kBadModel, message);
  };
  refuse(
      DataType::kFloat64, [](Node& node) { node.attributes["reduction"] = std::string("product"); },
      "reduction is \"product\"");
  refuse(
      DataType::kFloat64, [](Node& node) { node.attributes.erase("group"); }, "attribute group");
  refuse(
      DataType::kInt8, [](Node&) {}, "the kernel supports float32, float64, int32, int64");
}

}  // namespace
}  // namespace pipeshard
