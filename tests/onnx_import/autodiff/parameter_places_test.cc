// What is trained of files without marks, by place, in the graph that a step is made of: after constants are
// folded and operators are lowered.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/graph/weight_role.h"
#include "ir/operators/initializer_role.h"
#include "onnx_import/autodiff/parameters.h"
#include "onnx_import/loss/loss.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

struct Prepared {
  explicit Prepared(const std::string& model, const std::string& lowered = "")
      : Prepared(testing::graphFromText("<ir_version: 10, opset_import: [\"\" : 18]>\n" + model), lowered) {}
  Prepared(Graph raw, const std::string& lowered) {
    PrepareOptions options;
    options.supported = [&](const Node& node) { return !node.is(lowered); };
    options.dimensions = {{"N", 4}};
    graph = prepareModel(std::move(raw), options);
  }
  std::vector<std::string> trained() const {
    std::vector<std::string> names;
    for (ValueId id : trainableParameters(graph)) names.push_back(graph.value(id).name);
    return names;
  }
  std::vector<std::string> notes() const { return parameterNotes(graph, ValueId()); }

  Graph graph;
};

// The first state of a recurrence: a number of the file, in the shape of the batch.
std::string recurrence(const std::string& state, const std::string& make_state) {
  return R"(g (float[N,2] x) => (float[N,3] y)
    <float[2,3] W = {1,2,3,4,5,6}, float[3,3] U = {1,2,3,4,5,6,7,8,9}, int64[1] three = {3},
     int64[1] first = {0}, )" +
         state + R"(> {
      sizes = Shape(x)
      rows = Gather(sizes, first)
      shape = Concat <axis = 0> (rows, three)
      )" +
         make_state +
         R"(
      a = MatMul(x, W)
      b = MatMul(h0, U)
      c = Add(a, b)
      y = Tanh(c) })";
}

TEST(ParameterPlaces, ANumberInTheShapeOfTheBatchIsNoWeight) {
  const Prepared scalar(recurrence("float z = {0}", "h0 = Expand(z, shape)"));
  EXPECT_THAT(scalar.trained(), UnorderedElementsAre("W", "U"));
  EXPECT_EQ(trainedSummary(scalar.graph, ValueId()),
            "trains 15 of 15 parameters in 2 tensors; 1 taken for constants");
  EXPECT_THAT(scalar.notes(), ElementsAre(HasSubstr("taken for constants, not trained: z (--train")));
  const std::string views =
      "z1 = Neg(z)  z2 = Expand(z1, shape)  z3 = Unsqueeze(z2, first)"
      "  h0 = Squeeze(z3, first)";
  EXPECT_THAT(Prepared(recurrence("float[1,1] z = {0}", views)).trained(), UnorderedElementsAre("W", "U"));
  const std::string constant = "z = Constant <value_float = 0.0> ()  h0 = Expand(z, shape)";
  EXPECT_THAT(Prepared(recurrence("float unused = {0}", constant)).trained(), UnorderedElementsAre("W", "U"));
}

TEST(ParameterPlaces, AWeightInTheShapeOfTheBatchKeepsItsNameAndShape) {
  const Prepared learned(recurrence("float[1,3] state = {0, 0, 0}", "h0 = Expand(state, shape)"));
  EXPECT_THAT(learned.trained(), UnorderedElementsAre("W", "U", "state"));
  EXPECT_EQ(learned.graph.shape(findValue(learned.graph, "state")), (Shape{1, 3}));
}

// As rotary positions are written: a buffer for every row, times the positions.
TEST(ParameterPlaces, ABufferInTheShapeOfTheBatchIsNoWeight) {
  const Prepared prepared(R"(g (float[N,1,3] positions, float[N,2,3] x) => (float[N,2,3] y)
    <float[1,2,1] inv_freq = {1, 0.1}, float[3] scale = {1, 2, 3}, int64[3] shape = {4, 2, 1}> {
      rows = Expand(inv_freq, shape)
      angles = MatMul(rows, positions)
      turned = Add(angles, x)
      y = Mul(turned, scale) })");
  EXPECT_THAT(prepared.trained(), ElementsAre("scale"));
  EXPECT_THAT(prepared.notes(), ElementsAre(HasSubstr("not trained: inv_freq (--train")));
}

// exp(alpha), beta * beta: the nodes are computed, and the numbers are gone with them.
TEST(ParameterPlaces, NumbersThatAreComputedAreNamed) {
  const Graph raw = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[N] x) => (float[N] y)
    <float alpha = {1}, float beta = {2}, float[1] eps_log = {3}, float gamma = {4}, float gate = {5}> {
      a = Exp(alpha)
      b = Mul(beta, beta)
      c = Neg(eps_log)  d = Exp(c)
      e = Softplus(gamma)
      f = Mul(x, a)  g = Add(f, b)  h = Mul(g, d)  i = Mul(h, e)
      y = Mul(i, gate) })");
  const Prepared prepared(raw, "");
  EXPECT_THAT(prepared.trained(), ElementsAre("gamma"));
  const std::vector<std::string> notes = prepared.notes();
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_THAT(notes[0], HasSubstr("taken for constants, not trained: "));
  for (const char* name : {"alpha", "beta", "eps_log", "gate"}) EXPECT_THAT(notes[0], HasSubstr(name));
  EXPECT_THAT(notes[1], HasSubstr("one element: gamma"));
  Graph asked = raw;
  overrideParameters(asked, {"^(alpha|beta|eps_log|gate)$"}, {});
  const Prepared all(asked, "");
  EXPECT_THAT(all.trained(), UnorderedElementsAre("alpha", "beta", "eps_log", "gamma", "gate"));
}

// A layer with one output, as regressions end.
TEST(ParameterPlaces, TheBiasOfOneOutputIsAWeight) {
  for (const char* shape : {"1", "1,1"}) {
    const Prepared behind(std::string("g (float[N,2] x) => (float[N,1] y) <float[2,1] w = {1, 2}, float[") +
                          shape + "] b = {3}> { p = MatMul(x, w)  y = Add(b, p) }");
    EXPECT_THAT(behind.trained(), UnorderedElementsAre("w", "b")) << shape;
    EXPECT_THAT(behind.notes(), ElementsAre(HasSubstr("although they have one element: b (")));
  }
  EXPECT_THAT(Prepared("g (float[N,2] x) => (float[N,1] y) <float[2,1] w = {1, 2}, float[1] c = {3}>"
                       " { y = Gemm(x, w, c) }")
                  .trained(),
              UnorderedElementsAre("w", "c"));
  // A number; a constant's name; a layer that has its bias; no weight in the product.
  for (const char* rest : {"float s = {3}> { p = MatMul(x, w)  y = Add(p, s) }",
                           "float[1] eps = {3}> { p = MatMul(x, w)  y = Add(p, eps) }",
                           "float[1] b = {3}, float[1] s = {3}> { p = Gemm(x, w, b)  y = Add(p, s) }",
                           "float[1] s = {3}> { o = MatMul(x, w)  t = Transpose(o)  p = MatMul(o, t)"
                           "  y = Add(p, s) }"}) {
    const Prepared other(std::string("g (float[N,2] x) => (y) <float[2,1] w = {1, 2}, ") + rest);
    EXPECT_THAT(other.trained(), ::testing::Not(::testing::Contains("s"))) << rest;
    EXPECT_THAT(other.trained(), ::testing::Not(::testing::Contains("eps"))) << rest;
  }
}

// The place is gone with the operator.
TEST(ParameterPlaces, TheSlopeOfAPReluStaysAWeight) {
  const Prepared prepared("g (float[N,2] x) => (float[N,2] y) <float[1] s = {0.25}> { y = PRelu(x, s) }",
                          "PRelu");
  ASSERT_TRUE(std::none_of(prepared.graph.nodes.begin(), prepared.graph.nodes.end(),
                           [](const Node& node) { return node.is("PRelu"); }));
  EXPECT_THAT(prepared.trained(), ElementsAre("s"));
}

TEST(ParameterPlaces, AViewOfAWeightIsReadAsTheWeight) {
  const Prepared prepared(
      "g (float[N,1] x) => (float[N,1] y) <float[1,1] w = {2}>"
      " { t = Transpose(w)  y = MatMul(x, t) }");
  EXPECT_THAT(prepared.trained(), ElementsAre("w"));
}

// What pipeshard writes itself is neither trained nor asked about.
TEST(ParameterPlaces, NumbersOfALossAreNoWeights) {
  for (const char* loss : {"bce:p,t", "smooth-l1:p,t", "mse:p,t"}) {
    Graph raw = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
      g (float[N,2] x) => (float[N,3] p) <float[2,3] w = {1,2,3,4,5,6}>
      { h = MatMul(x, w)  p = Sigmoid(h) })");
    attachLoss(raw, parseLoss(loss));
    const Prepared prepared(std::move(raw), "");
    EXPECT_THAT(prepared.trained(), ElementsAre("w")) << loss;
    EXPECT_NO_THROW(refuseUnclearWeights(prepared.graph)) << loss;
    EXPECT_THAT(prepared.notes(), IsEmpty()) << loss;
  }
}

}  // namespace
}  // namespace pipeshard
