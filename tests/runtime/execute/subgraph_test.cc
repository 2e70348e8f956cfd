// The places of values inside a subgraph, with kernels made for it: an element-wise addition that may run in
// place, and one that may not and spoils its result when it is made to.
#include "runtime/execute/subgraph.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "ir/graph/graph_print.h"
#include "runtime/device/aligned_memory.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

class AddKernel : public Kernel {
 public:
  AddKernel(size_t count, bool in_place) : count_(count), in_place_(in_place) {}
  void run(const KernelArguments& arguments) override {
    const auto* a = static_cast<const double*>(arguments.inputs[0]);
    const auto* b = static_cast<const double*>(arguments.inputs[1]);
    auto* out = static_cast<double*>(arguments.outputs[0]);
    if (!in_place_) std::memset(out, 0xff, count_ * sizeof(double));  // shows when an input is there
    if (arguments.workspace != nullptr) std::memset(arguments.workspace, 0xff, workspaceBytes());
    for (size_t i = 0; i < count_; ++i) out[i] = a[i] + b[i];
  }
  bool mayRunInPlace(int, int) const override { return in_place_; }
  size_t workspaceBytes() const override { return in_place_ ? 0 : 100; }

 private:
  size_t count_;
  bool in_place_;
};

const KernelRegistry& testKernels() {
  static const KernelRegistry* registry = [] {
    auto* made = new KernelRegistry;
    for (const bool in_place : {true, false}) {
      made->add("test", in_place ? "AddInPlace" : "Add", [in_place](const KernelSpec& spec) {
        return std::make_unique<AddKernel>(elementCount(spec.outputs[0].shape), in_place);
      });
    }
    return made;
  }();
  return *registry;
}

constexpr int64_t kSize = 16;

struct Sketch {
  Graph graph;
  GraphBuilder builder{graph};

  Sketch() {
    graph.opset_imports[""] = 18;
    graph.opset_imports["test"] = 1;
  }
  ValueId input(const char* name) {
    const ValueId id = builder.addValue(name, DataType::kFloat64, {kSize});
    graph.inputs.push_back(id);
    return id;
  }
  ValueId add(ValueId a, ValueId b, bool in_place) {
    const ValueId id = builder.addValue("sum", DataType::kFloat64, graph.shape(a));
    builder.addNode("test", in_place ? "AddInPlace" : "Add", {a, b}, {id});
    return id;
  }
  ValueId view(ValueId a) {
    const Shape shape = graph.shape(a).size() == 1 ? Shape{4, 4} : Shape{kSize};
    const ValueId target = builder.addConstant("shape", makeConstant<int64_t>({std::ssize(shape)}, shape));
    const ValueId id = builder.addValue("view", DataType::kFloat64, shape);
    builder.addNode("", "Reshape", {a, target}, {id});
    return id;
  }
};

// What the graph means, without any sharing.
std::map<uint32_t, double> evaluate(const Graph& graph, const std::vector<double>& inputs) {
  std::map<uint32_t, double> values;
  for (size_t i = 0; i < inputs.size(); ++i)
    values[static_cast<uint32_t>(graph.inputs[i].index())] = inputs[i];
  for (const Node& node : graph.nodes) {
    const double a = values[static_cast<uint32_t>(node.inputs[0].index())];
    const double b = values[static_cast<uint32_t>(node.inputs[1].index())];
    values[static_cast<uint32_t>(node.outputs[0].index())] = node.domain == "test" ? a + b : a;
  }
  return values;
}

// By buffer: from when to when it needs its memory.
std::map<int, LiveBlock> buffersOf(const CompiledSubgraph::Aliasing& aliasing, const RunMemory& moments) {
  std::map<int, LiveBlock> blocks;
  for (size_t o = 0; o < aliasing.outputs.size(); ++o)
    blocks[aliasing.outputs[o]] = {kSize * 8, moments.output_begins[o], moments.count};
  for (size_t i = 0; i < aliasing.inputs.size(); ++i) {
    LiveBlock& block = blocks[aliasing.inputs[i]];
    block = {kSize * 8, 0, std::max(block.end, moments.input_ends[i])};
  }
  return blocks;
}

// Runs with buffers as the aliasing says, in one arena in which those that need no memory at the same moment
// may be in one place, and compares every output with the meaning: with temporaries behind all buffers, and
// among them. Returns the bytes of the arena that were saved.
int64_t expectMeaning(const Graph& graph, const CompiledSubgraph::Aliasing& aliasing, bool among = false) {
  CompiledSubgraph subgraph(graph, "test", testKernels());
  CompiledSubgraph::Aliasing all = aliasing;
  all.ending.resize(aliasing.inputs.size());
  const std::map<int, LiveBlock> blocks = buffersOf(aliasing, subgraph.memory(all));
  std::vector<LiveBlock> intervals;
  for (const auto& [id, block] : blocks) intervals.push_back(block);
  const std::vector<LiveBlock>& temporaries = subgraph.memory(all).temporaries;
  if (among) intervals.insert(intervals.end(), temporaries.begin(), temporaries.end());
  const Placement placement = placeBlocks(intervals);
  AlignedMemory arena(std::max<int64_t>(1, placement.total_bytes));
  std::map<int, std::byte*> buffers;
  for (const auto& [id, block] : blocks)
    buffers.emplace(id, arena.data() + placement.offsets[buffers.size()]);
  const auto fill = [&](int id, double number) {
    std::fill_n(reinterpret_cast<double*>(buffers.at(id)), kSize, number);
  };
  std::vector<double> numbers;
  std::vector<std::byte*> inputs, outputs;
  for (const int id : aliasing.outputs) fill(id, -1);
  for (const int id : aliasing.inputs) {
    numbers.push_back(1 << (2 * id));
    if (blocks.at(id).begin < blocks.at(id).end) fill(id, numbers.back());  // else nobody reads it
  }
  for (const int id : aliasing.inputs) inputs.push_back(buffers.at(id));
  for (const int id : aliasing.outputs) outputs.push_back(buffers.at(id));
  AlignedMemory workspace(subgraph.workspaceBytes(all));
  std::atomic<uint64_t> progress{0};
  const std::vector<int64_t> places(placement.offsets.begin() + std::ssize(blocks), placement.offsets.end());
  if (among) {
    subgraph.bind(all, inputs, outputs, arena.data(), nullptr, {}, nullptr, &places).run(progress);
  } else {
    subgraph.bind(all, inputs, outputs, workspace.data()).run(progress);
  }
  std::map<uint32_t, double> values = evaluate(graph, numbers);
  for (size_t o = 0; o < outputs.size(); ++o) {
    const double want = values[static_cast<uint32_t>(graph.outputs[o].index())];
    for (int64_t i = 0; i < kSize; ++i) {
      const double got = reinterpret_cast<const double*>(outputs[o])[i];
      EXPECT_EQ(got, want) << "output " << o << " of\n" << printGraph(graph);
      if (got != want) return 0;
    }
  }
  if (!among) expectMeaning(graph, aliasing, true);
  return kSize * 8 * std::ssize(blocks) - placement.total_bytes;
}

TEST(CompiledSubgraph, ComputesChainsInPlaceAndStraightIntoTheOutput) {
  Sketch sketch;
  const ValueId x = sketch.input("x");
  ValueId sum = sketch.add(x, x, true);
  for (int i = 0; i < 5; ++i) sum = sketch.add(sketch.view(sum), sketch.view(sum), true);
  sketch.graph.outputs = {sketch.view(sum)};
  CompiledSubgraph subgraph(sketch.graph, "test", testKernels());
  EXPECT_EQ(subgraph.workspaceBytes({{0}, {1}}), 128);  // one temporary for the whole chain
  EXPECT_EQ(subgraph.copyCount({{0}, {1}}), 0u);
  expectMeaning(sketch.graph, {{0}, {1}});
}

TEST(CompiledSubgraph, OverwritesAnInputWhoseBufferEndsWithTheRun) {
  Sketch sketch;
  const ValueId x = sketch.input("x");
  const ValueId y = sketch.input("y");
  ValueId sum = sketch.add(sketch.view(x), sketch.view(x), true);
  for (int i = 0; i < 5; ++i) sum = sketch.add(sum, sketch.view(y), true);
  sketch.graph.outputs = {sketch.view(sum), sketch.add(sketch.view(sum), y, true)};
  CompiledSubgraph subgraph(sketch.graph, "test", testKernels());
  EXPECT_EQ(subgraph.workspaceBytes({{0, 1}, {2, 3}}), 128);
  EXPECT_EQ(subgraph.workspaceBytes({{0, 1}, {2, 3}, {true, false}}), 0) << "the chain is computed in x";
  EXPECT_EQ(subgraph.workspaceBytes({{0, 0}, {2, 3}, {true, true}}), 128) << "y is there, too";
  EXPECT_EQ(subgraph.workspaceBytes({{0, 1}, {0, 3}, {true, false}}), 128) << "an output is there";
  expectMeaning(sketch.graph, {{0, 1}, {2, 3}, {true, false}});
}

TEST(CompiledSubgraph, UpdatesABufferInPlaceWhenItIsReadForTheLastTime) {
  Sketch sketch;
  const ValueId w = sketch.input("w");
  const ValueId g = sketch.input("g");
  const ValueId change = sketch.add(g, g, false);
  sketch.graph.outputs = {sketch.add(w, change, true)};
  CompiledSubgraph subgraph(sketch.graph, "test", testKernels());
  EXPECT_EQ(subgraph.copyCount({{0, 1}, {0}}), 0u);
  expectMeaning(sketch.graph, {{0, 1}, {0}});
}

TEST(CompiledSubgraph, KeepsAnInputUntilAllHaveReadIt) {
  Sketch sketch;
  const ValueId w = sketch.input("w");
  const ValueId g = sketch.input("g");
  const ValueId updated = sketch.add(w, g, true);
  const ValueId later = sketch.add(w, w, true);
  sketch.graph.outputs = {updated, later};
  CompiledSubgraph subgraph(sketch.graph, "test", testKernels());
  EXPECT_EQ(subgraph.copyCount({{0, 1}, {0, 2}}), 1u);
  expectMeaning(sketch.graph, {{0, 1}, {0, 2}});
}

TEST(CompiledSubgraph, SwapsBuffersThroughATemporary) {
  Sketch sketch;
  const ValueId a = sketch.input("a");
  const ValueId b = sketch.input("b");
  sketch.graph.outputs = {b, sketch.view(sketch.view(a))};
  expectMeaning(sketch.graph, {{0, 1}, {0, 1}});
  sketch.graph.outputs = {a, b};
  CompiledSubgraph subgraph(sketch.graph, "test", testKernels());
  EXPECT_EQ(subgraph.copyCount({{0, 1}, {0, 1}}), 0u);
}

TEST(CompiledSubgraph, GivesOneValueToSeveralOutputs) {
  Sketch sketch;
  const ValueId x = sketch.input("x");
  const ValueId sum = sketch.add(x, x, false);
  sketch.graph.outputs = {sum, sketch.view(sketch.view(sum)), x};
  expectMeaning(sketch.graph, {{0}, {1, 2, 3}});
  expectMeaning(sketch.graph, {{0}, {0, 1, 2}});
}

TEST(CompiledSubgraph, RefusesTwoOutputsInOneBuffer) {
  Sketch sketch;
  const ValueId x = sketch.input("x");
  sketch.graph.outputs = {sketch.add(x, x, false), sketch.add(x, x, true)};
  CompiledSubgraph subgraph(sketch.graph, "test", testKernels());
  EXPECT_ERROR(subgraph.workspaceBytes({{0}, {1, 1}}), ErrorCode::kInternal, "two outputs are one buffer");
}

TEST(CompiledSubgraph, RefusesWeightsThatNobodyBinds) {
  Sketch sketch;
  const ValueId x = sketch.input("x");
  const ValueId w = sketch.builder.addValue("w", DataType::kFloat64, {kSize});
  sketch.graph.initializers[w] = WeightReference{"w.bin", 0, kSize * 8};
  sketch.graph.outputs = {sketch.add(x, w, true)};
  EXPECT_ERROR(CompiledSubgraph(sketch.graph, "test", testKernels()), ErrorCode::kBadModel,
               "'w' is a weight in a file");
}

TEST(CompiledSubgraph, MeansTheSameUnderEveryAliasing) {
  std::mt19937 random(17);
  int saved = 0;
  for (int round = 0; round < 400 && !HasFailure(); ++round) {
    Sketch sketch;
    std::vector<ValueId> values;
    const int inputs = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < inputs; ++i) values.push_back(sketch.input(("x" + std::to_string(i)).c_str()));
    std::vector<ValueId> flat = values;
    for (size_t n = 0; n < 1 + random() % 12; ++n) {
      const ValueId a = flat[random() % flat.size()];
      ValueId made = random() % 3 == 0 ? sketch.view(sketch.view(a))
                                       : sketch.add(a, flat[random() % flat.size()], random() % 2 == 0);
      flat.push_back(made);
    }
    CompiledSubgraph::Aliasing aliasing;
    for (int i = 0; i < inputs; ++i) {
      aliasing.inputs.push_back(random() % static_cast<size_t>(inputs));
      aliasing.ending.push_back(random() % 2 == 0);
    }
    std::vector<int> free_buffers{0, 1, 2, 3, 4, 5, 6, 7};
    std::shuffle(free_buffers.begin(), free_buffers.end(), random);
    for (size_t o = 0; o < 1 + random() % 4; ++o) {
      sketch.graph.outputs.push_back(flat[random() % flat.size()]);
      aliasing.outputs.push_back(free_buffers[o]);
    }
    saved += expectMeaning(sketch.graph, aliasing) > 0 ? 1 : 0;
  }
  EXPECT_GT(saved, 50);
}

// What the last outputs need is there when the first inputs are not needed any more.
TEST(CompiledSubgraph, SaysWhenItIsDoneWithInputsAndBeginsWithOutputs) {
  Sketch sketch;
  const ValueId x = sketch.input("x"), y = sketch.input("y");
  const ValueId first = sketch.add(x, x, false);       // step 0
  const ValueId second = sketch.add(first, y, false);  // step 1
  const ValueId third = sketch.add(second, y, false);  // step 2
  sketch.graph.outputs = {third, first, sketch.view(y)};
  CompiledSubgraph subgraph(sketch.graph, "test", testKernels());
  const CompiledSubgraph::Aliasing ending{{0, 1}, {2, 3, 4}, {true, true}};
  const RunMemory& moments = subgraph.memory(ending);
  EXPECT_EQ(moments.count, 4);                                        // three steps, and a copy
  EXPECT_EQ(moments.input_ends, (std::vector<int64_t>{1, 4}));        // y is copied
  EXPECT_EQ(moments.output_begins, (std::vector<int64_t>{2, 0, 3}));  // by output
  const CompiledSubgraph::Aliasing kept{{0, 1}, {2, 3, 4}, {false, false}};
  EXPECT_EQ(subgraph.memory(kept).input_ends, (std::vector<int64_t>{4, 4}));
  EXPECT_EQ(expectMeaning(sketch.graph, ending), kSize * 8);
}

}  // namespace
}  // namespace pipeshard
