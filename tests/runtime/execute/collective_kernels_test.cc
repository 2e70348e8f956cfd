// The collectives of the pipeshard domain, over a real communicator: parts of any sizes, every reduction and
// type, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <numeric>
#include <random>

#include "ir/base/error.h"
#include "ir/program/program_verify.h"
#include "runtime/data/data.h"
#include "runtime/device/aligned_memory.h"
#include "runtime/execute/collective_call.h"
#include "runtime/execute/executor.h"
#include "runtime/execute/rank_image.h"
#include "runtime/kernels/base/cpu_kernels.h"
#include "runtime/kernels/base/kernel.h"
#include "tests/expect_error.h"
#include "tests/ir/program/program_writer.h"
#include "tests/runtime/pipeline_program.h"
#include "tests/temporary_folder.h"
#include "tests/transport/rank_threads.h"

namespace pipeshard {
namespace {

using namespace pipeshard::testing;

using Attributes = std::map<std::string, Attribute>;
using Sizes = std::vector<int64_t>;

class EverybodysCollectives : public Collectives {
 public:
  explicit EverybodysCollectives(Communicator& communicator)
      : communicator_(communicator), everybody_(idsBelow<RankId>(communicator.size())) {}
  void call(const CollectiveCall& call) override {
    EXPECT_EQ(call.group, GroupId(5));
    runCollective(communicator_, everybody_, call);
  }

 private:
  Communicator& communicator_;
  Group everybody_;
};

std::unique_ptr<Kernel> makeKernel(const char* op, DataType type, const Shape& from, const Shape& to,
                                   Attributes attributes) {
  Node node;
  node.domain = kPipeshardDomain;
  node.op_type = op;
  node.attributes = std::move(attributes);
  node.attributes.try_emplace("group", int64_t{5});
  KernelSpec spec;
  spec.node = &node;
  spec.inputs = {{type, from, nullptr}};
  spec.outputs = {{type, to, nullptr}};
  return cpuKernels().create(spec);
}

template <typename T>
std::vector<T> runKernel(Collectives& collectives, const char* op, const Shape& from, const Shape& to,
                         const Attributes& attributes, const std::vector<T>& x) {
  const std::unique_ptr<Kernel> kernel = makeKernel(op, dataTypeOf<T>(), from, to, attributes);
  EXPECT_EQ(kernel->collectiveGroup(), GroupId(5));
  const size_t count = elementCount(to);
  std::vector<T> y(count + 16, T{77});
  // NaNs, if anybody read them
  std::vector<std::byte> memory(kernel->workspaceBytes() + 192, std::byte{0xff});
  const size_t aligned = 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64;
  const void* const inputs[] = {x.data()};
  void* const outputs[] = {y.data()};
  kernel->run({inputs, outputs, memory.data() + aligned, &collectives});
  const auto untouched = [](std::byte byte) { return byte == std::byte{0xff}; };
  const auto end = memory.begin() + static_cast<std::ptrdiff_t>(aligned + kernel->workspaceBytes());
  EXPECT_TRUE(std::all_of(end, memory.end(), untouched)) << "wrote behind the workspace";
  EXPECT_TRUE(std::all_of(y.begin() + count, y.end(), [](T behind) { return behind == T{77}; }))
      << "wrote behind the output";
  y.resize(count);
  return y;
}

// Element (a, b, c) of rank r's tensor of 3 axes.
template <typename T>
T element(int64_t rank, int64_t a, int64_t b, int64_t c) {
  return static_cast<T>((rank * 31 + a * 17 + b * 5 + c * 3) % 101);
}

// The box of the tensor that all ranks see alike, or of rank's own.
template <typename T>
std::vector<T> box(int64_t rank, const Shape& start, const Shape& size) {
  std::vector<T> elements;
  for (int64_t a = 0; a < size[0]; ++a)
    for (int64_t b = 0; b < size[1]; ++b)
      for (int64_t c = 0; c < size[2]; ++c)
        elements.push_back(element<T>(rank, start[0] + a, start[1] + b, start[2] + c));
  return elements;
}

int64_t startOf(const Sizes& sizes, size_t member) {
  return std::accumulate(sizes.begin(), sizes.begin() + member, int64_t{0});
}

template <typename T>
void gatherAndExchange(const Sizes& sizes, const Sizes& other_sizes, size_t axis, size_t to_axis) {
  SCOPED_TRACE(dataTypeName(dataTypeOf<T>()));
  runRankThreads(sizes.size(), [&](Communicator& communicator) {
    EverybodysCollectives collectives(communicator);
    const size_t me = communicator.rank().index();
    Shape whole{2, 2, 2};
    whole[axis] = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    whole[to_axis] = std::accumulate(other_sizes.begin(), other_sizes.end(), int64_t{0});
    Shape part = whole, start{0, 0, 0};
    part[axis] = sizes[me];
    start[axis] = startOf(sizes, me);
    const std::vector<T> x = box<T>(0, start, part);
    const Attributes gather{{"axis", static_cast<int64_t>(axis)}, {"sizes", sizes}};
    EXPECT_EQ(runKernel<T>(collectives, "AllGather", part, whole, gather, x), box<T>(0, {0, 0, 0}, whole));
    Shape other = whole, other_start{0, 0, 0};
    other[to_axis] = other_sizes[me];
    other_start[to_axis] = startOf(other_sizes, me);
    Attributes exchange = gather;
    exchange["to_axis"] = static_cast<int64_t>(to_axis) - 3;  // from the end
    exchange["to_sizes"] = other_sizes;
    EXPECT_EQ(runKernel<T>(collectives, "AllToAll", part, other, exchange, x), box<T>(0, other_start, other));
  });
}

TEST(CollectiveKernels, GatherAndExchangePartsOfAnySizes) {
  for (size_t axis = 0; axis < 3; ++axis) {
    for (size_t to_axis = 0; to_axis < 3; ++to_axis) {
      if (axis == to_axis) continue;
      SCOPED_TRACE(fmt::format("axes {}, {}", axis, to_axis));
      gatherAndExchange<float>({2, 2}, {3, 3}, axis, to_axis);
      gatherAndExchange<double>({2, 3, 2}, {1, 1, 2}, axis, to_axis);
      gatherAndExchange<int8_t>({1, 0, 4}, {0, 5, 1}, axis, to_axis);  // some have nothing
      gatherAndExchange<int64_t>({3}, {4}, axis, to_axis);
    }
  }
  gatherAndExchange<int32_t>({700, 701, 701}, {40, 40, 41}, 1, 2);  // beyond what travels at once
}

template <typename T>
T reduced(const std::string& reduction, int64_t ranks, int64_t a, int64_t b, int64_t c) {
  T result = element<T>(0, a, b, c);
  for (int64_t rank = 1; rank < ranks; ++rank) {
    const T next = element<T>(rank, a, b, c);
    result = reduction == "sum"   ? result + next
             : reduction == "max" ? std::max(result, next)
                                  : std::min(result, next);
  }
  return result;
}

template <typename T>
void reduceAndScatter(const Sizes& sizes, size_t axis, const std::string& reduction) {
  SCOPED_TRACE(fmt::format("{} {} axis {}", dataTypeName(dataTypeOf<T>()), reduction, axis));
  const int64_t ranks = sizes.size();
  runRankThreads(ranks, [&](Communicator& communicator) {
    EverybodysCollectives collectives(communicator);
    const size_t me = communicator.rank().index();
    Shape whole{3, 2, 5};
    whole[axis] = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    const std::vector<T> x = box<T>(communicator.rank().index(), {0, 0, 0}, whole);
    const auto expected = [&](const Shape& start, const Shape& size) {
      std::vector<T> elements;
      for (int64_t a = 0; a < size[0]; ++a)
        for (int64_t b = 0; b < size[1]; ++b)
          for (int64_t c = 0; c < size[2]; ++c)
            elements.push_back(reduced<T>(reduction, ranks, start[0] + a, start[1] + b, start[2] + c));
      return elements;
    };
    const Attributes how{{"reduction", reduction}};
    EXPECT_EQ(runKernel<T>(collectives, "AllReduce", whole, whole, how, x), expected({0, 0, 0}, whole));
    Shape part = whole, start{0, 0, 0};
    part[axis] = sizes[me];
    start[axis] = startOf(sizes, me);
    const Attributes scatter{
        {"reduction", reduction}, {"axis", static_cast<int64_t>(axis)}, {"sizes", sizes}};
    EXPECT_EQ(runKernel<T>(collectives, "ReduceScatter", whole, part, scatter, x), expected(start, part));
  });
}

TEST(CollectiveKernels, ReduceAndScatterPartsOfAnySizes) {
  for (const char* reduction : {"sum", "max", "min"}) {
    for (size_t axis = 0; axis < 3; ++axis) {
      reduceAndScatter<float>({2, 2}, axis, reduction);
      reduceAndScatter<double>({2, 3, 2}, axis, reduction);
      reduceAndScatter<int32_t>({1, 0, 4}, axis, reduction);
      reduceAndScatter<int64_t>({2, 1, 1, 2}, axis, reduction);
    }
  }
  reduceAndScatter<float>({7000, 7001, 7001}, 1, "sum");
}

TEST(CollectiveKernels, SumsAreTakenInRankOrder) {
  // 1e8 + 1 - 1e8 in float32: 0 from the left, 1 otherwise.
  runRankThreads(3, [](Communicator& communicator) {
    EverybodysCollectives collectives(communicator);
    const float mine = communicator.rank() == RankId(0)   ? 1e8F
                       : communicator.rank() == RankId(1) ? 1.F
                                                          : -1e8F;
    EXPECT_EQ(runKernel<float>(collectives, "AllReduce", {1, 1, 4}, {1, 1, 4}, {}, {mine, mine, mine, mine}),
              std::vector<float>(4, 0.F));
    const Sizes sizes{1, 1, 2};
    const Shape part{1, 1, sizes[communicator.rank().index()]};
    EXPECT_EQ(runKernel<float>(collectives, "ReduceScatter", {1, 1, 4}, part,
                               {{"axis", int64_t{2}}, {"sizes", sizes}}, {mine, mine, mine, mine}),
              std::vector<float>(part[2], 0.F));
  });
}

TEST(CollectiveKernels, EvenRowsNeedNoScratchMemory) {
  const auto workspace = [](const char* op, const Shape& from, const Shape& to,
                            const Attributes& attributes) {
    return makeKernel(op, DataType::kFloat32, from, to, attributes)->workspaceBytes();
  };
  const Attributes rows{{"axis", int64_t{0}}, {"sizes", Sizes{4, 4}}};
  EXPECT_EQ(workspace("AllReduce", {4, 6}, {4, 6}, {}), 0u);
  EXPECT_EQ(workspace("AllGather", {4, 6}, {8, 6}, rows), 0u);
  EXPECT_EQ(workspace("ReduceScatter", {8, 6}, {4, 6}, rows), 0u);
  EXPECT_EQ(workspace("AllGather", {8, 4}, {8, 8}, {{"axis", int64_t{1}}, {"sizes", Sizes{4, 4}}}), 256u);
  EXPECT_EQ(workspace("AllGather", {3, 6}, {7, 6}, {{"axis", int64_t{0}}, {"sizes", Sizes{3, 4}}}),
            128u + 192u);
}

TEST(CollectiveKernels, RefuseWhatDoesNotFit) {
  const auto refuse = [](const char* op, const Shape& from, const Shape& to, const Attributes& attributes,
                         const char* message) {
    EXPECT_ERROR(makeKernel(op, DataType::kFloat32, from, to, attributes), ErrorCode::kBadModel, message);
  };
  const Attributes rows{{"axis", int64_t{0}}, {"sizes", Sizes{3, 4}}};
  const auto with = [&](const char* name, Attribute value) {
    Attributes changed = rows;
    changed[name] = std::move(value);
    return changed;
  };
  refuse("AllGather", {3, 6}, {7, 6}, with("group", int64_t{-1}), "attribute group");
  refuse("AllGather", {3, 6}, {7, 6}, {{"sizes", Sizes{3, 4}}}, "attribute axis is missing");
  refuse("AllGather", {3, 6}, {7, 6}, with("axis", int64_t{2}), "axis 2");
  refuse("AllGather", {3, 6}, {7, 6}, with("sizes", Sizes{}), "attribute sizes must hold");
  refuse("AllGather", {3, 6}, {7, 6}, with("sizes", Sizes{3, 5}), "sizes add up to 8; axis 0 has 7");
  refuse("AllGather", {3, 6}, {7, 6}, with("sizes", Sizes{-1, 8}), "sizes holds -1 for an axis of 7");
  refuse("AllGather", {2, 6}, {7, 6}, rows, "axis 0 has 2 here, which is none of sizes");
  refuse("AllGather", {3, 5}, {7, 6}, rows, "[7,6]");
  refuse("AllGather", {3}, {7, 6}, rows, "equally many axes");
  refuse("ReduceScatter", {7, 6}, {2, 6}, rows, "axis 0 has 2 here, which is none of sizes");
  refuse("ReduceScatter", {7, 6}, {3, 6}, with("reduction", std::string("mean")), "reduction is \"mean\"");
  Attributes exchange = with("to_axis", int64_t{0});
  exchange["to_sizes"] = Sizes{3, 4};
  refuse("AllToAll", {7, 6}, {7, 6}, exchange, "none of sizes");
  exchange["to_axis"] = int64_t{1};
  refuse("AllToAll", {3, 6}, {7, 3}, exchange, "to_sizes add up to 7; axis 1 has 6");
  exchange["to_sizes"] = Sizes{1, 2, 3};
  refuse("AllToAll", {3, 6}, {7, 3}, exchange, "sizes has 2 entries and to_sizes 3");
  EXPECT_ERROR(makeKernel("ReduceScatter", DataType::kBool, {7, 6}, {3, 6}, rows), ErrorCode::kBadModel,
               "float32, float64, int32, int64");
}

// y = x + ... + x, as often as there are ranks: the rows of all are gathered, summed with columns cut over
// the ranks, and exchanged back. "Same" has no kernel: its body is inlined, and shapes are inferred again
// around the collectives.
Graph roundTrip(int64_t rank, const Sizes& columns) {
  const int64_t ranks = columns.size();
  const int64_t width = std::accumulate(columns.begin(), columns.end(), int64_t{0});
  Graph body;
  GraphBuilder inside(body);
  body.opset_imports[""] = 18;
  const ValueId a = inside.addValue("a", DataType::kUndefined, {}),
                b = inside.addValue("b", DataType::kUndefined, {});
  for (const ValueId id : {a, b}) body.value(id).shape.reset();
  body.inputs = {a};
  body.outputs = {b};
  inside.addNode("", "Abs", {a}, {b});
  Function same;
  same.domain = kPipeshardDomain;
  same.name = "Same";
  same.body = std::make_shared<const Graph>(body);
  Graph graph;
  graph.name = "forward";
  graph.opset_imports = {{"", 18}, {std::string(kPipeshardDomain), 1}};
  graph.functions = {same};
  GraphBuilder builder(graph);
  const auto value = [&](const char* name, const Shape& shape) {
    return builder.addValue(name, DataType::kFloat32, shape);
  };
  const ValueId x = value("x", {1, width}), positive = value("positive", {1, width}),
                all = value("all", {ranks, width});
  const ValueId sums = value("sums", {ranks, columns[rank]}), y = value("y", {1, width});
  graph.inputs = {x};
  graph.outputs = {y};
  const Attribute group = int64_t{0}, rows = Sizes(columns.size(), 1);
  builder.addNode(kPipeshardDomain, "Same", {x}, {positive});
  builder.addNode(kPipeshardDomain, "AllGather", {positive}, {all},
                  {{"group", group}, {"axis", int64_t{0}}, {"sizes", rows}});
  builder.addNode(kPipeshardDomain, "ReduceScatter", {all}, {sums},
                  {{"group", group}, {"axis", int64_t{1}}, {"sizes", columns}});
  builder.addNode(kPipeshardDomain, "AllToAll", {sums}, {y},
                  {{"group", group},
                   {"axis", int64_t{1}},
                   {"sizes", columns},
                   {"to_axis", int64_t{0}},
                   {"to_sizes", rows}});
  return graph;
}

// Rank r loads row r of three.
RankImage roundTripImage(int rank, const Sizes& columns) {
  const int ranks = columns.size();
  ProgramWriter writer(rank, ranks, 1);
  writer.input("x", {ranks, 7}, 0);
  writer.program().groups = {idsAt<RankId>({0, 1, 2})};
  writer.program().inputs[0].data_type = DataType::kFloat32;
  writer.subgraph("forward", Phase::kForward, {"x"}, {"y"}, {0, 0, 0});
  writer.program().buffers[writer.buffer("x", BufferKind::kInput, {1, 7}).index()].data_type =
      DataType::kFloat32;
  Buffer& y = writer.program().buffers[writer.buffer("y", BufferKind::kActivation, {1, 7}).index()];
  y.data_type = DataType::kFloat32;
  y.part = BufferPart{{ranks, 7}, {rank, 0}};
  writer.load("x", 0, rank);
  writer.run(0, 0, {"x"}, {"y"});
  writer.release("x");
  writer.result(Result::Kind::kGradient, "y", "y");
  return {writer.program(), {roundTrip(rank, columns)}, ""};
}

TEST(CollectiveKernels, RunInsideAProgramReadFromItsFiles) {
  std::vector<RankImage> images;
  std::vector<Program> programs;
  for (int rank = 0; rank < 3; ++rank) {
    images.push_back(roundTripImage(rank, {2, 1, 4}));
    programs.push_back(images.back().program);
  }
  verifyPrograms(programs);
  const TemporaryFolder folder;
  writePlanDirectory(folder.path(), images);
  runRankThreads(3, [&](Communicator& communicator) {
    const int rank = communicator.rank().index();
    Executor executor(loadRank(folder.path(), RankId(rank)), {});
    const auto data = makeDataSource({"", 7}, executor.program());
    AlignedMemory arena(executor.memory().total_bytes);
    executor.attach(arena.bytes(), &communicator, data.get());
    executor.runStep(1);
    std::vector<float> x(21);
    data->fill(0, 1, 0, std::as_writable_bytes(std::span(x)));
    const auto* y =
        reinterpret_cast<const float*>(executor.content(executor.program().results[0].buffer).data());
    for (size_t c = 0; c < 7; ++c) {
      const float one = std::abs(x[static_cast<size_t>(rank) * 7 + c]);
      EXPECT_EQ(y[c], one + one + one) << "rank " << rank << ", column " << c;
    }
  });
}

TEST(CollectiveKernels, AGroupOfAnotherSizeIsRefusedWhenLoading) {
  RankImage image = roundTripImage(0, {2, 1, 4});
  image.program.groups = {idsAt<RankId>({0, 1})};
  EXPECT_ERROR(Executor(std::move(image), {}), ErrorCode::kConfiguration,
               "is cut for 3 members, but group 0 of the program has 2");
}

}  // namespace
}  // namespace pipeshard
