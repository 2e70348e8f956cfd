// Elementwise nodes that run as one: which do, and that the bits are those of the nodes one by one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ir/base/convert.h"
#include "ir/graph/graph_print.h"
#include "runtime/device/aligned_memory.h"
#include "runtime/execute/subgraph.h"
#include "runtime/kernels/base/cpu_kernels.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct FusionSketch {
  Graph graph;
  GraphBuilder builder{graph};

  FusionSketch() {
    graph.opset_imports[""] = 18;
    graph.opset_imports[std::string(kPipeshardDomain)] = 1;
  }
  ValueId input(const char* name, Shape shape, DataType type = DataType::kFloat32) {
    const ValueId id = builder.addValue(name, type, std::move(shape));
    graph.inputs.push_back(id);
    return id;
  }
  ValueId op(const char* type, std::vector<ValueId> inputs, Shape shape, DataType result = DataType::kFloat32,
             const char* domain = "") {
    const ValueId id = builder.addValue("made", result, std::move(shape));
    builder.addNode(domain, type, std::move(inputs), {id});
    return id;
  }
  ValueId view(ValueId from, const Shape& shape) {
    const ValueId target = builder.addConstant("shape", makeConstant<int64_t>({std::ssize(shape)}, shape));
    return op("Reshape", {from, target}, shape, graph.dataType(from));
  }
  ValueId sum(ValueId from, const std::vector<int64_t>& axes, Shape shape) {
    const ValueId over = builder.addConstant("axes", makeConstant<int64_t>({std::ssize(axes)}, axes));
    const ValueId id = op("ReduceSum", {from, over}, std::move(shape), graph.dataType(from));
    graph.nodes.back().attributes["keepdims"] = int64_t{1};
    return id;
  }
  std::vector<kernels::FusedGroup> groups() const {
    return kernels::findFusedGroups(graph, kernels::memoryRoots(graph));
  }
};

TEST(FusedGroups, AreOfWhatNobodyElseReads) {
  FusionSketch s;
  const ValueId x = s.input("x", {8, 64}), bias = s.input("bias", {64});
  const ValueId h = s.op("Add", {x, bias}, {8, 64}), y = s.op("Relu", {h}, {8, 64});
  const ValueId z = s.op("Mul", {y, y}, {8, 64});
  s.graph.outputs = {z};
  const auto groups = s.groups();
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_THAT(groups[0].nodes, ElementsAre(0, 1, 2));
  EXPECT_THAT(groups[0].inputs, ElementsAre(x, bias));
  EXPECT_THAT(groups[0].outputs, ElementsAre(z));
  EXPECT_EQ(groups[0].shape, (Shape{8, 64}));
}

TEST(FusedGroups, GoOnThroughViewsAndGiveWhatOthersRead) {
  FusionSketch s;
  const ValueId x = s.input("x", {8, 64});
  const ValueId h = s.op("Exp", {x}, {8, 64}), y = s.op("Neg", {s.view(h, {512})}, {512});
  s.graph.outputs = {s.view(h, {64, 8}), y};
  const auto groups = s.groups();
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_THAT(groups[0].outputs, ElementsAre(h, y));
}

TEST(FusedGroups, EndWhereSomebodyElseReads) {
  FusionSketch s;
  const ValueId x = s.input("x", {8, 64});
  const ValueId h = s.op("Exp", {x}, {8, 64}), y = s.op("Neg", {h}, {8, 64});
  const ValueId mean = s.sum(y, {0}, {1, 64});
  const ValueId away = s.op("Sub", {y, mean}, {8, 64});
  s.graph.outputs = {s.op("Mul", {away, away}, {8, 64})};
  const auto groups = s.groups();
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_THAT(groups[0].nodes, ElementsAre(0, 1));
  EXPECT_THAT(groups[0].outputs, ElementsAre(y));
  EXPECT_THAT(groups[1].inputs, ElementsAre(y, mean));
}

TEST(FusedGroups, LeaveOutIntegersRandomNumbersAndUpdates) {
  FusionSketch s;
  const ValueId k = s.input("k", {512}, DataType::kInt64);
  const ValueId twice = s.op("Add", {k, k}, {512}, DataType::kInt64);
  const ValueId part = s.op("Div", {twice, k}, {512}, DataType::kInt64);
  const ValueId w = s.input("w", {512}), rate = s.input("rate", {});
  const ValueId g = s.op("RandomNormalLike", {w}, {512});
  const ValueId updated =
      s.op("SGD", {w, g, rate}, {512}, DataType::kFloat32, std::string(kPipeshardDomain).c_str());
  s.graph.outputs = {part, updated};
  EXPECT_THAT(s.groups(), IsEmpty());
}

TEST(FusedGroups, DoNotKeepTheirInputsBeyondLargerNodes) {
  FusionSketch s;
  const ValueId x = s.input("x", {512}), a = s.input("a", {32, 32});
  const ValueId h = s.op("Exp", {x}, {512});
  const ValueId product = s.op("MatMul", {a, a}, {32, 32});
  s.graph.outputs = {s.op("Neg", {h}, {512}), product};
  EXPECT_THAT(s.groups(), IsEmpty());
}

// A graph of what groups are made of and what ends them, at random.
class RandomGraph {
 public:
  explicit RandomGraph(uint64_t seed) : random_(seed) {
    type_ = pick(std::vector{DataType::kFloat32, DataType::kFloat64, DataType::kBfloat16});
    shape_ =
        pick(std::vector<Shape>{{3, 40, 300}, {2, 5, 9, 31}, {70000}, {7, 20000}, {6, 300, 1, 12}, {40, 8}});
    const size_t inputs = 2 + random_() % 3;
    for (size_t i = 0; i < inputs; ++i)
      values_.push_back(s_.input(("x" + std::to_string(i)).c_str(), shape_, type_));
    for (int i = 0; i < 3; ++i)
      repeated_.push_back(s_.input(("r" + std::to_string(i)).c_str(), repeated(), type_));
    repeated_.push_back(s_.builder.addConstant("half", ofType(0.5)));
    const size_t nodes = 2 + random_() % 24;
    for (size_t n = 0; n < nodes; ++n) add();
    const size_t outputs = 1 + random_() % 4;
    for (size_t o = 0; o < outputs; ++o) s_.graph.outputs.push_back(pick(values_));
  }

  const Graph& graph() const { return s_.graph; }

  CompiledSubgraph::Aliasing aliasing() {
    CompiledSubgraph::Aliasing result;
    for (size_t i = 0; i < s_.graph.inputs.size(); ++i) {
      result.inputs.push_back(static_cast<int>(i));
      result.ending.push_back(random_() % 2 == 0);
    }
    // an output may be in the place of an input of its size
    std::vector<int> places;
    for (size_t i = 0; i < s_.graph.inputs.size(); ++i) {
      if (s_.graph.shape(s_.graph.inputs[i]) == shape_ && random_() % 2 == 0)
        places.push_back(static_cast<int>(i));
    }
    for (size_t o = 0; o < s_.graph.outputs.size(); ++o) {
      result.outputs.push_back(o < places.size() ? places[o] : static_cast<int>(100 + o));
    }
    return result;
  }

 private:
  template <typename T>
  T pick(const std::vector<T>& from) {
    return from[random_() % from.size()];
  }

  Constant ofType(double number) const {
    const Constant wide = makeConstant<double>({}, {number});
    Constant result{type_, {}, std::vector<std::byte>(dataTypeSize(type_))};
    convertElements(DataType::kFloat64, wide.bytes.data(), type_, result.bytes.data(), 1);
    return result;
  }

  Shape repeated() {
    Shape shape = shape_;
    for (int64_t& size : shape) size = random_() % 2 == 0 ? size : 1;
    while (!shape.empty() && shape[0] == 1 && random_() % 2 == 0) shape.erase(shape.begin());
    return shape;
  }

  // Also older values' views, in another shape and back.
  ValueId operand() {
    const ValueId from = random_() % 3 == 0 ? pick(values_) : values_.back();
    if (random_() % 5 != 0) return from;
    return s_.view(s_.view(from, {elementCount(shape_)}), shape_);
  }

  void add() {
    const ValueId a = operand();
    const ValueId b = random_() % 2 == 0 ? operand() : pick(repeated_);
    switch (random_() % 9) {
      case 0: return keep(s_.op("Add", {a, b}, shape_, type_));
      case 1: return keep(s_.op("Sub", {b, a}, shape_, type_));
      case 2: return keep(s_.op("Mul", {a, b}, shape_, type_));
      case 3: return keep(s_.op("Tanh", {a}, shape_, type_));
      case 4: return keep(s_.op("Relu", {a}, shape_, type_));
      case 5: return keep(s_.op("Max", {a, b, operand()}, shape_, type_));
      case 6: {
        const ValueId which = s_.op("Less", {a, b}, shape_, DataType::kBool);
        return keep(s_.op("Where", {which, b, operand()}, shape_, type_));
      }
      case 7: {
        Shape rows = shape_;
        rows[0] = 1;
        repeated_.push_back(s_.sum(a, {0}, rows));
        return;
      }
      default: {
        const DataType wide = type_ == DataType::kFloat64 ? DataType::kFloat32 : DataType::kFloat64;
        const ValueId there = s_.op("Cast", {a}, shape_, wide);
        s_.graph.nodes.back().attributes["to"] = static_cast<int64_t>(wide);
        const ValueId back = s_.op("Cast", {there}, shape_, type_);
        s_.graph.nodes.back().attributes["to"] = static_cast<int64_t>(type_);
        return keep(back);
      }
    }
  }
  void keep(ValueId value) { values_.push_back(value); }

  std::mt19937_64 random_;
  FusionSketch s_;
  DataType type_;
  Shape shape_;
  std::vector<ValueId> values_, repeated_;
};

// What the outputs hold after a run on the same numbers.
std::vector<std::vector<std::byte>> outputsOf(const Graph& graph, const CompiledSubgraph::Aliasing& aliasing,
                                              Fusion fusion) {
  CompiledSubgraph subgraph(graph, "test", cpuKernels(), cpuDevice(), nullptr, fusion);
  std::map<int, AlignedMemory> buffers;
  std::vector<std::byte*> inputs, outputs;
  std::mt19937 random(5);
  std::uniform_real_distribution<double> numbers(-1, 1);
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const DataType type = graph.dataType(graph.inputs[i]);
    std::vector<double> content(elementCount(graph.shape(graph.inputs[i])));
    for (double& number : content) number = numbers(random);
    AlignedMemory memory(graph.bytes(graph.inputs[i]));
    convertElements(DataType::kFloat64, reinterpret_cast<const std::byte*>(content.data()), type,
                    memory.data(), std::ssize(content));
    inputs.push_back(buffers.emplace(aliasing.inputs[i], std::move(memory)).first->second.data());
  }
  for (size_t o = 0; o < graph.outputs.size(); ++o) {
    const auto place =
        buffers.try_emplace(aliasing.outputs[o], AlignedMemory(graph.bytes(graph.outputs[o]))).first;
    outputs.push_back(place->second.data());
  }
  AlignedMemory workspace(subgraph.workspaceBytes(aliasing));
  std::fill_n(workspace.data(), subgraph.workspaceBytes(aliasing), std::byte{0xff});
  std::atomic<uint64_t> progress{0};
  subgraph.bind(aliasing, inputs, outputs, workspace.data()).run(progress);
  std::vector<std::vector<std::byte>> result;
  for (size_t o = 0; o < outputs.size(); ++o)
    result.emplace_back(outputs[o], outputs[o] + graph.bytes(graph.outputs[o]));
  return result;
}

TEST(FusedKernels, GiveTheBitsOfTheirNodesOneByOne) {
  size_t groups = 0, longest = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomGraph random(seed);
    const auto aliasing = random.aliasing();
    for (const auto& group : kernels::findFusedGroups(random.graph(), kernels::memoryRoots(random.graph()))) {
      ++groups;
      longest = std::max(longest, group.nodes.size());
    }
    ASSERT_EQ(outputsOf(random.graph(), aliasing, Fusion::kElementwise),
              outputsOf(random.graph(), aliasing, Fusion::kNone))
        << "seed " << seed << "\n"
        << printGraph(random.graph());
  }
  EXPECT_GT(groups, 200u);
  EXPECT_GT(longest, 8u);
}

// Whatever has a kernel: of three operands or fewer, of numbers or of truths.
bool tryAlone(const std::string& domain, const std::string& type) {
  bool tried = false;
  for (const DataType operands : {DataType::kFloat32, DataType::kBool}) {
    for (const DataType result : {DataType::kFloat32, DataType::kBool}) {
      for (int count = 1; count <= 3; ++count) {
        FusionSketch s;
        const Shape shape{3, 9000};
        std::vector<ValueId> inputs;
        for (int i = 0; i < count; ++i) inputs.push_back(s.input("x", i == 1 ? Shape{} : shape, operands));
        ValueId made = s.op(type.c_str(), inputs, shape, result, domain.c_str());
        const char* after = result == DataType::kBool ? "Not" : "Neg";
        s.graph.outputs = {s.op(after, {made}, shape, result)};
        try {
          CompiledSubgraph(s.graph, "test", cpuKernels(), cpuDevice(), nullptr, Fusion::kNone);
        } catch (const Error&) {
          continue;  // not with these operands
        }
        if (s.groups().empty()) continue;
        tried = true;
        CompiledSubgraph::Aliasing aliasing{{}, {9}};
        for (int i = 0; i < count; ++i) aliasing.inputs.push_back(i);
        EXPECT_EQ(outputsOf(s.graph, aliasing, Fusion::kElementwise),
                  outputsOf(s.graph, aliasing, Fusion::kNone))
            << type << " of " << count;
      }
    }
  }
  return tried;
}

TEST(FusedKernels, AreRightForEveryOperatorThatTheyTake) {
  std::vector<std::string> tried;
  for (const std::string& name : cpuKernels().operators()) {
    const size_t colons = name.find("::");
    const std::string domain = name.substr(0, colons), type = name.substr(colons + 2);
    if (tryAlone(domain == "onnx" ? "" : domain, type)) tried.push_back(type);
  }
  EXPECT_GT(tried.size(), 45u);
  EXPECT_THAT(tried, ::testing::IsSupersetOf({"Add", "Clip", "Gelu", "Not", "Pow", "Sigmoid", "Where"}));
}

TEST(FusedKernels, NeedNoMemoryForWhatOnlyTheyRead) {
  FusionSketch s;
  constexpr int64_t kElements = 1 << 20;
  const ValueId x = s.input("x", {kElements}), y = s.input("y", {kElements});
  ValueId h = s.op("Add", {x, y}, {kElements});
  const ValueId first = h;
  for (int i = 0; i < 4; ++i) h = s.op("Mul", {s.op("Tanh", {h}, {kElements}), first}, {kElements});
  s.graph.outputs = {h};
  const CompiledSubgraph::Aliasing aliasing{{0, 1}, {2}};
  CompiledSubgraph alone(s.graph, "test", cpuKernels(), cpuDevice(), nullptr, Fusion::kNone);
  CompiledSubgraph together(s.graph, "test", cpuKernels());
  EXPECT_GE(alone.workspaceBytes(aliasing), 2 * kElements * 4);
  EXPECT_LT(together.workspaceBytes(aliasing), kElements);
}

}  // namespace
}  // namespace pipeshard
