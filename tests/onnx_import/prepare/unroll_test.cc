// Loops, scans and branches, flat. The numbers are what ONNX Runtime gives for the same model and inputs, if
// nothing else is said.
#include "onnx_import/prepare/unroll.h"

#include <set>

#include <gtest/gtest.h>

#include "ir/graph/weight_role.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/autodiff/training.h"
#include "onnx_import/prepare/branches.h"
#include "onnx_import/prepare/inference.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/autodiff/gradient_check.h"
#include "tests/onnx_import/check_model.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

using testing::checkLossGradients;
using testing::elementsOf;
using testing::errorOf;
using testing::graphFromText;
using testing::Interpreter;
using testing::Tensors;
using testing::TestGraph;

constexpr auto kBadModel = ErrorCode::kBadModel;

// The body's weight is outside of it; a third output is not asked for.
constexpr const char* kRecurrence = R"(g (float[2,3] x) => (float[2,3] y, float[n,2,3] s)
  <float[3,3] w = {1,0,-1,0.5,1,0,0,0,1}> {
  trips = Constant <value_int = 3> ()
  true = Constant <value = bool {1}> ()
  y, s = Loop (trips, true, x) <body = b (int64 i, bool ci, float[2,3] h) => (bool co, float[2,3] h2, float[2,3] out) {
    co = Identity(ci)
    wt = Transpose(w)
    p = MatMul(h, wt)
    h2 = Relu(p)
    out = Neg(h2) }> })";

// Weights in the body, in branches in it, and one that is a branch's output.
constexpr const char* kBodyWeights = R"(g (float[2,3] x) => (float[2,3] y) {
  trips = Constant <value_int = 4> ()
  y = Loop (trips, "", x) <body = b (int64 i, bool ci, float[2,3] h) => (bool co, float[2,3] h2)
    <float[3,3] w = {1,0,-1,0.5,1,0,0,0,1}> {
    co = Identity(ci)
    p = MatMul(h, w)
    half = Constant <value_float = 0.5> ()
    q = Mul(p, half)
    two = Constant <value_int = 2> ()
    zero = Constant <value_int = 0> ()
    r = Mod(i, two)
    even = Equal(r, zero)
    v = If (even) <then_branch = t () => (float[2,3] a) <float[3] bias = {1,2,3}> { a = Add(q, bias) },
                   else_branch = e () => (float[2,3] a) <float[3] bias = {3,2,1}> { a = Sub(q, bias) }>
    g = If (even) <then_branch = t () => (float[3] yes) <float[3] gain = {0.5,2,4}> { yes = Identity(gain) },
                   else_branch = e () => (float[3] no) { no = Constant <value = float[3] {2,1,0.5}> () }>
    h2 = Mul(v, g) }> })";

// What the inner loop collects, its trips and what it captures are all of the outer one.
constexpr const char* kLoopInLoop = R"(g (float[2] x) => (float[2] y, float[n,2] s) {
  three = Constant <value_int = 3> ()
  true = Constant <value = bool {1}> ()
  y, s = Loop (three, true, x) <body = b (int64 i, bool ci, float[2] h) => (bool co, float[2] h2, float[2] h3) {
    co = Identity(true)
    one = Constant <value_int = 1> ()
    n = Add(i, one)
    h2, inner = Loop (n, ci, h) <body = b2 (int64 j, bool cj, float[2] g1) => (bool co2, float[2] g2, float[2] o2) {
      co2 = Identity(cj)
      f = Cast <to = 1> (j)
      fi = Cast <to = 1> (i)
      u = Add(f, fi)
      v = Mul(g1, u)
      g2 = Sub(v, x)
      o2 = Add(g2, h) }>
    axes = Constant <value_ints = [0]> ()
    h3 = ReduceSum <keepdims = 0> (inner, axes) }> })";

// while (k < 10) k += 3
constexpr const char* kCounter = R"(g (float[2] x) => (float[2] y, int64 n) {
  zero = Constant <value_int = 0> ()
  true = Constant <value = bool {1}> ()
  y, n = Loop ("", true, x, zero) <body = b (int64 i, bool ci, float[2] h, int64 k) => (bool co, float[2] h2, int64 k2) {
    three = Constant <value_int = 3> ()
    k2 = Add(k, three)
    ten = Constant <value_int = 10> ()
    co = Less(k2, ten)
    h2 = Add(h, h) }> })";

// As TorchScript writes a loop with a break: the condition is an If's.
constexpr const char* kBreak = R"(g (float[2] x) => (float[2] y, float[n,2] s) {
  most = Constant <value_int = 9223372036854775807> ()
  true = Constant <value = bool {1}> ()
  y, s = Loop (most, true, x) <body = b (int64 i, bool ci, float[2] h) => (bool co, float[2] h2, float[2] out) {
    four = Constant <value_int = 4> ()
    last = Equal(i, four)
    co = If (last) <then_branch = t () => (bool no) { no = Constant <value = bool {0}> () },
                    else_branch = e () => (bool yes) { yes = Identity(ci) }>
    h2 = Add(h, x)
    out = Identity(h2) }> })";

// The condition follows from a shape, which is another one after every trip.
constexpr const char* kGrowing = R"(g (float[2,3] x) => (float[n,3] y) {
  true = Constant <value = bool {1}> ()
  y = Loop ("", true, x) <body = b (int64 i, bool ci, float[k,3] h) => (bool co, float[l,3] h2) {
    h2 = Concat <axis = 0> (h, x)
    size = Size(h2)
    most = Constant <value_int = 20> ()
    co = Less(size, most) }> })";

constexpr const char* kNoTrips =
    R"(g (float[2,3] x) => (float[2,3] y, float[n,2,3] s, float[p,q] all, float[2,3] never) {
  none = Constant <value_int = 0> ()
  true = Constant <value = bool {1}> ()
  false = Constant <value = bool {0}> ()
  y, s, z = Loop (none, true, x) <body = b (int64 i, bool ci, float[2,3] h) => (bool co, float[2,3] h2, float[2,3] s1, float[k] z1) {
    co = Identity(ci)
    h2 = Add(h, x)
    s1 = Neg(h2)
    z1 = Gather <axis = 0> (h2, i) }>
  all = Concat <axis = 0> (z, x)
  never = Loop ("", false, x) <body = b (int64 i, bool ci, float[2,3] h) => (bool co, float[2,3] h2) {
    co = Identity(ci)
    h2 = Add(h, x) }> })";

constexpr const char* kOddOutputs =
    R"(g (float[2] x) => (float[2] y, float[2] same, float[n,2] s, float[n,2] s2) {
  trips = Constant <value_ints = [3]> ()
  true = Constant <value = bool[1] {1}> ()
  y, unread, same, s, s2, s3 = Loop (trips, true, x, x, x) <body = b (int64[1] i, bool[1] ci, float[2] h, float[2] u, float[2] keep)
      => (bool[1] co, float[2] h2, float[2] u2, float[2] k2, float[2] h2, float[2] keep, float[2] c2) {
    co = Identity(ci)
    f = Cast <to = 1> (i)
    h1 = Add(h, keep)
    h2 = Add(h1, f)
    u2 = Add(u, h2)
    k2 = Identity(keep)
    c2 = Identity(x) }> })";

constexpr const char* kBatchTrips = R"(g (float[batch,2] x) => (float[2] y) {
  sizes = Shape(x)
  zero = Constant <value_int = 0> ()
  trips = Gather(sizes, zero)
  true = Constant <value = bool {1}> ()
  start = Constant <value = float[2] {0.5,-0.5}> ()
  y = Loop (trips, true, start) <body = b (int64 i, bool ci, float[2] h) => (bool co, float[2] h2) {
    co = Identity(ci)
    row = Gather <axis = 0> (x, i)
    h1 = Add(h, h)
    h2 = Add(h1, row) }> })";

constexpr const char* kScan =
    R"(g (float[2] s0, float[3,2] a, float[2,3] b) => (float[2] s, float[3,2] p, float[2,3] q, float[2,3] r) {
  s, p, q, r = Scan <num_scan_inputs = 2, scan_input_axes = [0,-1], scan_input_directions = [0,1],
      scan_output_axes = [0,1,-1], scan_output_directions = [0,0,1],
      body = bo (float[2] state, float[2] u, float[2] v) => (float[2] state2, float[2] o1, float[2] o2, float[2] o3) {
    m = Mul(u, v)
    state2 = Add(state, m)
    o1 = Identity(state2)
    o2 = Sub(u, v)
    o3 = Neg(state) }> (s0, a, b) })";

constexpr const char* kScanOne = R"(g (float[2] s0, float[1,2] a) => (float[2] s, float[1,2] p) {
  s, p = Scan <num_scan_inputs = 1, body = bo (float[2] state, float[2] u) => (float[2] state2, float[2] out) {
    state2 = Add(state, u)
    out = Mul(state, u) }> (s0, a) })";

// Both are read in one branch: what is carried, which is x in the first trip, and x.
constexpr const char* kIfInLoop = R"(g (float[2] x) => (float[2] y) {
  three = Constant <value_int = 3> ()
  y = Loop (three, "", x) <body = b (int64 i, bool ci, float[2] h) => (bool co, float[2] h2) {
    co = Identity(ci)
    axes = Constant <value_ints = [0]> ()
    sum = ReduceSum <keepdims = 0> (h, axes)
    one = Constant <value_float = 1.0> ()
    big = Greater(sum, one)
    h2 = If (big) <then_branch = t () => (float[2] a) { half = Constant <value_float = 0.5> ()  a = Mul(h, half) },
                   else_branch = e () => (float[2] a) { f = Cast <to = 1> (i)  b = Add(h, f)  a = Sub(b, x) }> }> })";

constexpr const char* kBranches =
    R"(g (float[2] x, bool[1] c, bool d) => (float[2] y, int64[2] k, bool[2] b) {
  y, k, b = If (c) <then_branch = t () => (float[2] y1, int64[2] k1, bool[2] b1) {
      y1 = If (d) <then_branch = tt () => (float[2] y2) { y2 = Neg(x) }, else_branch = te () => (float[2] y3) { y3 = Abs(x) }>
      k1 = Constant <value_ints = [1, 2]> ()
      zero = Constant <value_float = 0.0> ()
      b1 = Greater(x, zero) },
    else_branch = e () => (float[2] y4, int64[2] k4, bool[2] b4) {
      h = Add(x, x)
      y4 = If (d) <then_branch = et () => (float[2] y5) { y5 = Mul(h, x) }, else_branch = ee () => (float[2] y6) { y6 = Identity(h) }>
      k4 = Constant <value_ints = [3, 4]> ()
      one = Constant <value_float = 1.0> ()
      b4 = Less(x, one) }> })";

// The shapes of the first branch are known when its loop is gone.
constexpr const char* kLoopInBranch = R"(g (float[2] x, bool c) => (float[p,q] y, float[r] z) {
  two = Constant <value_int = 2> ()
  y, z = If (c) <then_branch = t () => (float[a,b] y1, float[a1] z1) {
      z1, y1 = Loop (two, "", x) <body = lb (int64 i, bool ci, float[h0] h) => (bool co, float[h1] h2, float[h1] out) {
        co = Identity(ci)
        h2 = Add(h, x)
        out = Identity(h2) }> },
    else_branch = e () => (float[a2,b2] y2, float[a3] z2) {
      sizes = Constant <value_ints = [2, 2]> ()
      y2 = Expand(x, sizes)
      z2 = Neg(x) }> })";

Graph prepared(const std::string& model, std::map<std::string, int64_t> dimensions = {}) {
  PrepareOptions options;
  options.dimensions = std::move(dimensions);
  options.supported = [](const Node& node) {
    return hasKernel(node) && hasGradientRule(node.domain, node.op_type);
  };
  return prepareModel(graphFromText("<ir_version: 10, opset_import: [\"\" : 18]> " + model), options);
}

size_t countOf(const Graph& graph, std::string_view op) {
  return std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) { return node.is(op); });
}

Constant floats(Shape shape, const std::vector<float>& elements) {
  return makeConstant<float>(std::move(shape), elements);
}
Constant truth(Shape shape, bool is) { return {DataType::kBool, std::move(shape), {std::byte{is}}}; }

const Constant kPair = floats({2}, {1, -2});
const Constant kMatrix = floats({2, 3}, {1, -2, 0.5F, 0, 3, -1});

using Outputs = std::vector<std::vector<double>>;

// What the graph gives, in the order of its outputs. It is flat, a valid model, and its nodes have names of
// their own.
Outputs outputsOf(const Graph& graph, const Tensors& inputs) {
  checkModel(graph);
  std::set<std::string> names;
  for (const Node& node : graph.nodes) {
    EXPECT_FALSE(node.is("Loop") || node.is("Scan") || node.is("If")) << describeNode(node);
    EXPECT_TRUE(node.name.empty() || names.insert(node.name).second) << node.name;
  }
  const Tensors computed = Interpreter(graph).run(inputs);
  Outputs outputs;
  for (ValueId id : graph.outputs) {
    const auto found = computed.find(graph.value(id).name);
    const Constant* content = found == computed.end() ? graph.constant(id) : &found->second;
    EXPECT_NE(content, nullptr) << graph.value(id).name;
    if (content != nullptr) outputs.push_back(numericElements(*content));
  }
  return outputs;
}

TEST(Unroll, CarriedValuesChainAndWhatIsCollectedIsStacked) {
  const Graph graph = prepared(kRecurrence);
  EXPECT_EQ(outputsOf(graph, {{"x", kMatrix}}),
            (Outputs{{0, 0.25, 0.5, 1, 4, 0},
                     {-0.5, 0, -0.5, -1, -3, 0, 0, -0.25, -0.5, -1, -3.5, 0, 0, -0.25, -0.5, -1, -4, 0}}));
}

TEST(Unroll, WhatIsTheSameInEveryTripIsThereOnce) {
  const Graph graph = prepared(kRecurrence);
  EXPECT_EQ(countOf(graph, "MatMul"), 3u);
  EXPECT_EQ(countOf(graph, "Transpose"), 1u);
  const ValueId weight = findValue(graph, "w");
  ASSERT_TRUE(weight.valid());
  EXPECT_TRUE(graph.initializers.contains(weight));
}

TEST(Unroll, WeightsInBodiesAndTheirBranchesStayOneParameter) {
  const Graph graph = prepared(kBodyWeights);
  std::vector<std::string> weights;
  for (const auto& [id, content] : graph.initializers) {
    if (isFloatingPoint(graph.dataType(id)) && !isFolded(graph.value(id)))
      weights.push_back(graph.value(id).name);
  }
  // The biases have the same name in the file.
  std::sort(weights.begin(), weights.end());
  EXPECT_EQ(weights, (std::vector<std::string>{"gain", "w", "y/bias", "y/bias_"}));
  EXPECT_EQ(outputsOf(graph, {{"x", kMatrix}}), (Outputs{{-5.25, -0.5, 6, -2.96875, 0.75, 4.1328125}}));
}

TEST(Unroll, LoopsInLoops) {
  EXPECT_EQ(outputsOf(prepared(kLoopInLoop), {{"x", kPair}}),
            (Outputs{{-137, 274}, {0, 0, -9, 18, -197, 394}}));
}

TEST(Unroll, TheConditionMayFollowFromTheTrips) {
  EXPECT_EQ(outputsOf(prepared(kCounter), {{"x", kPair}}), (Outputs{{16, -32}, {12}}));
  EXPECT_EQ(outputsOf(prepared(kBreak), {{"x", kPair}}),
            (Outputs{{6, -12}, {2, -4, 3, -6, 4, -8, 5, -10, 6, -12}}));
  const Graph grown = prepared(kGrowing);
  EXPECT_EQ(grown.shape(grown.outputs[0]), Shape({8, 3}));
  EXPECT_EQ(countOf(grown, "Concat"), 3u);
  checkModel(grown);
}

TEST(Unroll, NoTrips) {
  const Graph graph = prepared(kNoTrips);
  const std::vector<double> x{1, -2, 0.5, 0, 3, -1};
  EXPECT_EQ(outputsOf(graph, {{"x", kMatrix}}), (Outputs{x, {}, x, x}));
  EXPECT_EQ(graph.shape(graph.outputs[1]), Shape({0, 2, 3}));
}

TEST(Unroll, OutputsThatNobodyReadsOrThatAreOneInside) {
  EXPECT_EQ(outputsOf(prepared(kOddOutputs), {{"x", kPair}}),
            (Outputs{{7, -5}, {1, -2}, {2, -4, 4, -5, 7, -5}, {1, -2, 1, -2, 1, -2}}));
}

TEST(Unroll, ABoundDimensionCountsTrips) {
  const Graph graph = prepared(kBatchTrips, {{"batch", 3}});
  EXPECT_EQ(outputsOf(graph, {{"x", floats({3, 2}, {1, 2, 3, 4, 5, 6})}}), (Outputs{{19, 18}}));
}

TEST(Unroll, ScansAlongAnyAxisInBothDirections) {
  EXPECT_EQ(outputsOf(prepared(kScan), {{"s0", kPair},
                                        {"a", floats({3, 2}, {1, 2, 3, 4, 5, 6})},
                                        {"b", floats({2, 3}, {1, -1, 2, 0.5F, 3, -2})}}),
            (Outputs{{5, 9}, {3, -6, 0, 6, 5, 9}, {-1, 4, 4, 4, 1, 5.5}, {0, -3, -1, -6, 6, 2}}));
  const Graph one = prepared(kScanOne);
  EXPECT_EQ(outputsOf(one, {{"s0", kPair}, {"a", floats({1, 2}, {3, 4})}}), (Outputs{{4, 2}, {3, -8}}));
  EXPECT_EQ(countOf(one, "Split") + countOf(one, "Concat"), 0u);
}

TEST(Unroll, EveryTripDrawsItsOwnRandomNumbers) {
  const Graph graph = prepared(R"(g (float[2] x) => (float[2] y) {
    three = Constant <value_int = 3> ()
    y = Loop (three, "", x) <body = b (int64 i, bool ci, float[2] h) => (bool co, float[2] h2) {
      co = Identity(ci)
      noise = RandomNormalLike(x)
      h2 = Add(h, noise) }> })");
  EXPECT_EQ(std::count_if(graph.inputs.begin(), graph.inputs.end(),
                          [&](ValueId id) { return graph.value(id).drawn.has_value(); }),
            3);
}

TEST(Unroll, ALoopWhoseTripsNobodyKnowsIsRefused) {
  const auto loop = [](const std::string& signature, const std::string& condition) {
    prepared("g (float[2] x" + signature +
             R"( x) <body = b (int64 i, bool ci, float[2] h) => (bool co, float[2] h2) {
      h2 = Add(h, x)
      sum = ReduceSum <keepdims = 0> (h2)
      two = Constant <value_int = 2> ()
      ten = Constant <value_float = 10.0> ()
      co = )" +
             condition + " }> }");
  };
  const std::string some =
      ") => (float[2] y) { m = Constant <value_int = 5> ()  true = Constant <value = bool {1}> ()  y = Loop "
      "(m, ";
  loop(some + "true,", "Identity(ci)");
  EXPECT_ERROR(loop(", int64 m) => (float[2] y) { y = Loop (m, \"\",", "Identity(ci)"), kBadModel,
               "onnx::Loop", "its number of trips ('m') depends on data", "whose number of trips is known");
  EXPECT_ERROR(loop(", bool c) => (float[2] y) { y = Loop (\"\", c,", "Identity(ci)"), kBadModel,
               "whether it runs at all ('c') depends on data");
  EXPECT_ERROR(loop(some + "true,", "Less(sum, ten)"), kBadModel,
               "the condition that its body gives, 'co', depends on data");
  EXPECT_ERROR(loop(some + "\"\",", "Less(i, two)"), kBadModel, "its condition is left out");
  EXPECT_ERROR(loop(") => (float[2] y) { true = Constant <value = bool {1}> ()  y = Loop (\"\", true,",
                    "Identity(ci)"),
               kBadModel, "onnx::Loop", "more than the limit of 2000000 nodes");
}

TEST(Unroll, ABodyThatDoesNotFitIsRefused) {
  EXPECT_ERROR(prepared(R"(g (float[2] x) => (float[2] y) { m = Constant <value_int = 5> ()
    y = Loop (m, "", x, x) <body = b (int64 i, bool ci, float[2] h) => (bool co, float[2] h2) { co = Identity(ci)  h2 = Neg(h) }> })"),
               kBadModel, "onnx::Loop");
  EXPECT_ERROR(prepared(R"(g (float[2] s, float[2,2] a, float[3,2] b) => (float[2] y) {
    y = Scan <num_scan_inputs = 2, body = b (float[2] h, float[2] u, float[2] v) => (float[2] h2) { h2 = Sum(h, u, v) }> (s, a, b) })"),
               kBadModel, "onnx::Scan");
}

TEST(Branches, ADecisionOnDataChoosesBetweenBoth) {
  const Outputs expected[] = {{{2, -4}, {3, 4}, {0, 1}},
                              {{2, 8}, {3, 4}, {0, 1}},
                              {{1, 2}, {1, 2}, {1, 0}},
                              {{-1, 2}, {1, 2}, {1, 0}}};
  const Graph graph = prepared(kBranches);
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(outputsOf(graph, {{"x", kPair}, {"c", truth({1}, i / 2 == 1)}, {"d", truth({}, i % 2 == 1)}}),
              expected[i])
        << i;
}

TEST(Branches, WithLoopsInThem) {
  const Graph graph = prepared(kLoopInBranch);
  EXPECT_EQ(outputsOf(graph, {{"x", kPair}, {"c", truth({}, true)}}), (Outputs{{2, -4, 3, -6}, {3, -6}}));
  EXPECT_EQ(outputsOf(graph, {{"x", kPair}, {"c", truth({}, false)}}), (Outputs{{1, -2, 1, -2}, {-1, 2}}));
}

TEST(Branches, InLoops) {
  const Graph graph = prepared(kIfInLoop);
  EXPECT_EQ(countOf(graph, "Where"), 3u);
  EXPECT_EQ(outputsOf(graph, {{"x", kPair}}), (Outputs{{0, 1.5}}));
  EXPECT_EQ(outputsOf(graph, {{"x", floats({2}, {-1, 2})}}), (Outputs{{5, -1}}));
  EXPECT_EQ(outputsOf(graph, {{"x", floats({2}, {2, -1})}}), (Outputs{{-1, 5}}));
}

// A file for several rates of sound has a branch for each; the other one does not go with the sizes.
TEST(Branches, OfAKnownConditionTheOtherIsNotLookedAt) {
  const Graph graph = prepared(R"(g (float[2] x) => (float[a] y)
    <int64 rate = {16}, int64 high = {16}, int64[1] axis = {0}> {
      is_high = Equal(rate, high)
      y = If (is_high) <then_branch = t () => (float[b] yes) { yes = Neg(x) },
                        else_branch = e () => (float[c] no) { no = Squeeze(x, axis) }> })");
  EXPECT_EQ(outputsOf(graph, {{"x", kPair}}), (Outputs{{-1, 2}}));
}

TEST(Branches, OfDifferentShapesAreRefused) {
  const auto choose = [](const std::string& condition, const std::string& other) {
    prepared("g (float[2] x, " + condition + R"( c) => (float[n] y) {
      y = If (c) <then_branch = t () => (float[a] yes) { yes = Neg(x) }, else_branch = e () => (float[b] no) { no = )" +
             other + " }> }");
  };
  choose("bool", "Abs(x)");
  EXPECT_ERROR(choose("bool", "Concat <axis = 0> (x, x)"), kBadModel, "onnx::If",
               "its output 'y' is float32[2] in the then_branch and float32[4] in the else_branch",
               "results of the same shape");
  EXPECT_ERROR(choose("bool[2]", "Abs(x)"), kBadModel, "onnx::If",
               "its condition is bool[2]; expected one bool");
}

// ---- gradients, against differences

std::shared_ptr<const Graph> subgraphOf(const std::string& text, const std::string& attribute) {
  const Graph graph = graphFromText(
      "<ir_version: 10, opset_import: [\"\" : 18]> g (double[2,3] x, double[3,3] w, bool c) => (double[2,3] "
      "y) { " +
      text + " }");
  return std::get<std::shared_ptr<const Graph>>(graph.nodes.back().attributes.at(attribute));
}

TEST(Unroll, TheGradientOfASharedWeightIsTheSumOverTrips) {
  TestGraph test;
  const ValueId x = test.parameter("x", {2, 3});
  test.parameter("w", {3, 3});
  const auto body = subgraphOf(
      R"(m = Constant <value_int = 3> () y = Loop (m, "", x) <body = b (int64 i, bool ci, double[2,3] h) => (bool co, double[2,3] h2) {
      co = Identity(ci)  p = MatMul(h, w)  h2 = Tanh(p) }>)",
      "body");
  const ValueId trips = test.constant(makeScalar(DataType::kInt64, 3));
  const std::vector<ValueId> outputs = test.ops("Loop", {trips, ValueId(), x}, 1, {{"body", body}});
  ASSERT_EQ(unrollLoops(test.graph()), 1);
  inferShapes(test.graph());
  checkLossGradients(test, test.weightedSum(outputs));
}

TEST(Branches, TheGradientIsThatOfTheBranchThatWasChosen) {
  for (const bool is : {true, false}) {
    TestGraph test;
    test.parameter("x", {2, 3});
    test.parameter("w", {3, 3});
    const std::string branches = R"(y = If (c) <
        then_branch = t () => (double[2,3] yes) { p = MatMul(x, w)  yes = Tanh(p) },
        else_branch = e () => (double[2,3] no) { no = Mul(x, x) }>)";
    const std::vector<ValueId> outputs = test.ops("If", {test.constant(truth({}, is))}, 1,
                                                  {{"then_branch", subgraphOf(branches, "then_branch")},
                                                   {"else_branch", subgraphOf(branches, "else_branch")}});
    ASSERT_EQ(chooseBranches(test.graph(), [](const Node&) { return false; }), 1);
    inferShapes(test.graph());
    checkLossGradients(test, test.weightedSum(outputs));
  }
}

}  // namespace
}  // namespace pipeshard
