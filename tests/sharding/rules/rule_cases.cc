#include "tests/sharding/rules/rule_cases.h"

#include "ir/base/convert.h"
#include "tests/sharding/graph_runner.h"
#include "tests/sharding/rules/rule_case_lists.h"

namespace pipeshard::testing {

namespace {

void addOfNumbers(std::vector<RuleCase>& cases) {
  for (const char* op : {"Add", "Sub", "Mul", "Div", "Max", "Min"}) {
    cases.push_back(
        {std::string(op) + "OfEqualShapes", "", op, {real({4, 6}), real({4, 6})}, {{kReal, {4, 6}}}});
    cases.push_back(
        {std::string(op) + "Broadcasting", "", op, {real({4, 1, 6}), real({3, 1})}, {{kReal, {4, 3, 6}}}});
  }
  for (const char* op :
       {"Exp", "Neg", "Abs", "Erf", "Tanh", "Sigmoid", "Relu", "Sin", "Cos", "Identity", "Gelu", "Mish"}) {
    cases.push_back({op, "", op, {real({4, 6})}, {{kReal, {4, 6}}}});
  }
  for (const char* op :
       {"Acos",   "Acosh", "Asin",  "Asinh",       "Atan",      "Atanh",     "Ceil",  "Celu",
        "Cosh",   "Elu",   "Floor", "HardSigmoid", "HardSwish", "LeakyRelu", "Round", "Selu",
        "Shrink", "Sign",  "Sinh",  "Softplus",    "Softsign",  "Swish",     "Tan",   "ThresholdedRelu"}) {
    cases.push_back({op, "", op, {real({4, 6})}, {{kReal, {4, 6}}}});
  }
  for (const char* op : {"Sqrt", "Log", "Reciprocal"})
    cases.push_back({op, "", op, {positive({4, 6})}, {{kReal, {4, 6}}}});
  cases.push_back({"PRelu", "", "PRelu", {real({4, 6}), real({6})}, {{kReal, {4, 6}}}});
  cases.push_back({"Pow", "", "Pow", {positive({4, 6}), number(3)}, {{kReal, {4, 6}}}});
  cases.push_back({"Clip", "", "Clip", {real({4, 6}), number(-0.5), number(0.5)}, {{kReal, {4, 6}}}});
  cases.push_back({"SumOfThree", "", "Sum", {real({4, 6}), real({6}), real({4, 1})}, {{kReal, {4, 6}}}});
  cases.push_back({"MeanOfTwo", "", "Mean", {real({4, 6}), real({6})}, {{kReal, {4, 6}}}});
  cases.push_back({"ReluGrad", "pipeshard", "ReluGrad", {real({4, 6}), real({4, 6})}, {{kReal, {4, 6}}}});
  for (const char* op : {"Gelu", "Swish"})
    cases.push_back({std::string("Pattern") + op, "pipeshard", op, {real({4, 6})}, {{kReal, {4, 6}}}});
  for (const char* op : {"GeluGrad", "SwishGrad", "MishGrad"}) {
    cases.push_back({op, "pipeshard", op, {real({4, 6}), real({4, 6})}, {{kReal, {4, 6}}}});
  }
}

void addOfIntegersAndFlags(std::vector<RuleCase>& cases) {
  for (const char* op : {"Mod", "BitwiseAnd", "BitwiseOr", "BitwiseXor"}) {
    cases.push_back({op, "", op, {index({4, 6}, 0, 9), index({6}, 1, 9)}, {{kIndexType, {4, 6}}}});
  }
  cases.push_back({"BitShift",
                   "",
                   "BitShift",
                   {index({4, 6}, 0, 9, DataType::kUint8), index({6}, 1, 9, DataType::kUint8)},
                   {{DataType::kUint8, {4, 6}}},
                   {{"direction", std::string("LEFT")}}});
  cases.push_back({"BitwiseNot", "", "BitwiseNot", {index({4, 6}, 0, 9)}, {{kIndexType, {4, 6}}}});
  cases.push_back({"IsInf", "", "IsInf", {real({4, 6})}, {{kFlagType, {4, 6}}}});
  for (const char* op : {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}) {
    cases.push_back({op, "", op, {index({4, 6}, 0, 3), index({6}, 0, 3)}, {{kFlagType, {4, 6}}}});
  }
  for (const char* op : {"And", "Or", "Xor"})
    cases.push_back({op, "", op, {flag({4, 6}), flag({4, 1})}, {{kFlagType, {4, 6}}}});
  cases.push_back({"Not", "", "Not", {flag({4, 6})}, {{kFlagType, {4, 6}}}});
  cases.push_back({"IsNaN", "", "IsNaN", {real({4, 6})}, {{kFlagType, {4, 6}}}});
  cases.push_back(
      {"Where", "", "Where", {flag({4, 1, 6}), real({4, 2, 6}), number(0)}, {{kReal, {4, 2, 6}}}});
  cases.push_back(
      {"Cast", "", "Cast", {index({4, 6}, 0, 9)}, {{kReal, {4, 6}}}, {{"to", typeNumber(kReal)}}});
  cases.push_back({"CastLike", "", "CastLike", {index({4, 6}, 0, 9), real({5})}, {{kReal, {4, 6}}}});
}

void addUpdates(std::vector<RuleCase>& cases) {
  cases.push_back({"Sgd",
                   "pipeshard",
                   "SGD",
                   {real({4, 6}), real({4, 6}), number(0.1), number(0.01)},
                   {{kReal, {4, 6}}}});
  cases.push_back({"SgdMomentum",
                   "pipeshard",
                   "SGDMomentum",
                   {real({4, 6}), real({4, 6}), real({4, 6}), number(0.1), number(0.9), number(0.01)},
                   {{kReal, {4, 6}}, {kReal, {4, 6}}},
                   {{"nesterov", int64_t{1}}}});
  for (const char* op : {"Adam", "AdamW"}) {
    cases.push_back({op,
                     "pipeshard",
                     op,
                     {real({4, 6}), real({4, 6}), real({4, 6}), positive({4, 6}), integer(3), number(0.1),
                      number(0.9), number(0.99), number(1e-8), number(0.01)},
                     {{kReal, {4, 6}}, {kReal, {4, 6}}, {kReal, {4, 6}}}});
  }
  cases.push_back(
      {"RmsProp",
       "pipeshard",
       "RMSProp",
       {real({4, 6}), real({4, 6}), positive({4, 6}), number(0.1), number(0.9), number(1e-8), number(0.01)},
       {{kReal, {4, 6}}, {kReal, {4, 6}}}});
  cases.push_back({"RmsPropMomentum",
                   "pipeshard",
                   "RMSPropMomentum",
                   {real({4, 6}), real({4, 6}), positive({4, 6}), real({4, 6}), number(0.1), number(0.9),
                    number(1e-8), number(0.01), number(0.9)},
                   {{kReal, {4, 6}}, {kReal, {4, 6}}, {kReal, {4, 6}}}});
  cases.push_back({"Adagrad",
                   "pipeshard",
                   "Adagrad",
                   {real({4, 6}), real({4, 6}), positive({4, 6}), integer(3), number(0.1), number(0.1),
                    number(1e-8), number(0.01)},
                   {{kReal, {4, 6}}, {kReal, {4, 6}}}});
  cases.push_back(
      {"Lion",
       "pipeshard",
       "Lion",
       {real({4, 6}), real({4, 6}), real({4, 6}), number(0.1), number(0.9), number(0.99), number(0.01)},
       {{kReal, {4, 6}}, {kReal, {4, 6}}}});
  cases.push_back({"MovingAverage",
                   "pipeshard",
                   "MovingAverage",
                   {real({4, 6}), real({4, 6}), number(0.9)},
                   {{kReal, {4, 6}}}});
  cases.push_back({"LambDirection",
                   "pipeshard",
                   "LAMBDirection",
                   {real({4, 6}), real({4, 6}), real({4, 6}), positive({4, 6}), integer(3), number(0.9),
                    number(0.999), number(1e-6), number(0.01)},
                   {{kReal, {4, 6}}, {kReal, {4, 6}}, {kReal, {4, 6}}}});
}

void addMatmul(std::vector<RuleCase>& cases) {
  cases.push_back({"MatMulOfMatrices", "", "MatMul", {real({4, 6}), real({6, 2})}, {{kReal, {4, 2}}}});
  cases.push_back(
      {"MatMulOfStacks", "", "MatMul", {real({2, 3, 4, 6}), real({2, 3, 6, 2})}, {{kReal, {2, 3, 4, 2}}}});
  cases.push_back(
      {"MatMulBroadcasting", "", "MatMul", {real({2, 1, 4, 6}), real({3, 6, 2})}, {{kReal, {2, 3, 4, 2}}}});
  cases.push_back(
      {"MatMulOfStackAndMatrix", "", "MatMul", {real({3, 4, 6}), real({6, 2})}, {{kReal, {3, 4, 2}}}});
  cases.push_back({"MatMulOfMatrixAndVector", "", "MatMul", {real({4, 6}), real({6})}, {{kReal, {4}}}});
  cases.push_back({"MatMulOfVectorAndMatrix", "", "MatMul", {real({6}), real({6, 4})}, {{kReal, {4}}}});
  cases.push_back({"MatMulOfVectors", "", "MatMul", {real({6}), real({6})}, {{kReal, {}}}});
  for (int64_t a : {0, 1}) {
    for (int64_t b : {0, 1}) {
      const Shape left = a ? Shape{6, 4} : Shape{4, 6};
      const Shape right = b ? Shape{2, 6} : Shape{6, 2};
      const std::string suffix = std::to_string(a) + std::to_string(b);
      const std::map<std::string, Attribute> attributes = {{"transA", a}, {"transB", b}, {"alpha", 0.5f}};
      cases.push_back(
          {"Gemm" + suffix, "", "Gemm", {real(left), real(right)}, {{kReal, {4, 2}}}, attributes});
      Shape stack = left;
      stack.insert(stack.begin(), 3);
      cases.push_back({"FusedMatMul" + suffix,
                       "com.microsoft",
                       "FusedMatMul",
                       {real(stack), real(right)},
                       {{kReal, {3, 4, 2}}},
                       attributes});
      for (const Shape& c : {Shape{2}, Shape{4, 1}, Shape{4, 2}, Shape{}}) {
        cases.push_back({"Gemm" + suffix + "Plus" + shapeToString(c),
                         "",
                         "Gemm",
                         {real(left), real(right), real(c)},
                         {{kReal, {4, 2}}},
                         attributes});
      }
    }
  }
}

void addReductions(std::vector<RuleCase>& cases) {
  for (const char* op : {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1",
                         "ReduceL2", "ReduceSumSquare"}) {
    const std::string name = op;
    cases.push_back({name + "OverMiddle", "", op, {real({4, 6, 2}), fixed({1})}, {{kReal, {4, 1, 2}}}});
    cases.push_back({name + "OverEnds",
                     "",
                     op,
                     {real({4, 6, 2}), fixed({0, -1})},
                     {{kReal, {6}}},
                     {{"keepdims", int64_t{0}}}});
    cases.push_back({name + "OverAll", "", op, {real({4, 6})}, {{kReal, {}}}, {{"keepdims", int64_t{0}}}});
  }
  for (const char* op : {"ReduceLogSum", "ReduceLogSumExp"}) {
    cases.push_back(
        {std::string(op) + "OverMiddle", "", op, {positive({4, 6, 2}), fixed({1})}, {{kReal, {4, 1, 2}}}});
  }
  cases.push_back({"ReduceSumOfIntegers",
                   "",
                   "ReduceSum",
                   {index({4, 6}, 0, 5)},
                   {{kIndexType, {}}},
                   {{"keepdims", int64_t{0}}}});
}

void addViews(std::vector<RuleCase>& cases) {
  cases.push_back(
      {"Transpose", "", "Transpose", {real({2, 4, 6})}, {{kReal, {6, 2, 4}}}, {{"perm", Ints{2, 0, 1}}}});
  cases.push_back({"TransposeByDefault", "", "Transpose", {real({2, 4, 6})}, {{kReal, {6, 4, 2}}}});
  const std::vector<std::pair<Shape, Shape>> reshapes = {
      {{8, 16}, {128}},       {{24}, {2, 3, 4}},   {{8, 6}, {6, 8}},           {{8, 16, 4}, {128, 4}},
      {{4, 6, 1}, {1, 24}},   {{1, 4, 6}, {4, 6}}, {{4, 6}, {4, 1, 6}},        {{2, 3, 4}, {4, 6}},
      {{6, 4, 5}, {4, 6, 5}}, {{12, 10}, {8, 15}}, {{4, 1, 1, 6}, {2, 1, 12}}, {{3, 5, 4}, {5, 3, 4}}};
  for (const auto& [in, out] : reshapes) {
    cases.push_back({"Reshape" + shapeToString(in) + "To" + shapeToString(out),
                     "",
                     "Reshape",
                     {real(in), fixed(out)},
                     {{kReal, out}},
                     {},
                     1});
  }
  cases.push_back({"Flatten", "", "Flatten", {real({2, 4, 6})}, {{kReal, {8, 6}}}, {{"axis", int64_t{2}}}});
  cases.push_back({"FlattenAll", "", "Flatten", {real({4, 6})}, {{kReal, {1, 24}}}, {{"axis", int64_t{0}}}});
  cases.push_back({"Squeeze", "", "Squeeze", {real({4, 1, 6}), fixed({1})}, {{kReal, {4, 6}}}});
  cases.push_back({"Unsqueeze", "", "Unsqueeze", {real({4, 6}), fixed({0, -1})}, {{kReal, {1, 4, 6, 1}}}});
  cases.push_back(
      {"Expand", "", "Expand", {real({4, 1, 6}), fixed({2, 4, 3, 6})}, {{kReal, {2, 4, 3, 6}}}, {}, 1});
}

void addParts(std::vector<RuleCase>& cases) {
  cases.push_back({"Tile", "", "Tile", {real({4, 6}), fixed({1, 2})}, {{kReal, {4, 12}}}});
  cases.push_back(
      {"Slice", "", "Slice", {real({4, 6, 2}), fixed({1}), fixed({5}), fixed({1})}, {{kReal, {4, 4, 2}}}});
  cases.push_back({"SliceByStep",
                   "",
                   "Slice",
                   {real({4, 6}), fixed({0, -1}), fixed({4, -7}), fixed({0, 1}), fixed({1, -1})},
                   {{kReal, {4, 6}}}});
  cases.push_back({"Split",
                   "",
                   "Split",
                   {real({4, 6}), fixed({2, 4})},
                   {{kReal, {4, 2}}, {kReal, {4, 4}}},
                   {{"axis", int64_t{1}}}});
  cases.push_back(
      {"Concat", "", "Concat", {real({4, 6}), real({4, 2})}, {{kReal, {4, 8}}}, {{"axis", int64_t{-1}}}});
  cases.push_back({"Pad", "", "Pad", {real({4, 6}), fixed({0, 1, 0, 2}), number(7)}, {{kReal, {4, 9}}}});
  cases.push_back({"Trilu", "", "Trilu", {real({2, 4, 4})}, {{kReal, {2, 4, 4}}}, {{"upper", int64_t{0}}}});
}

void addOfShapes(std::vector<RuleCase>& cases) {
  cases.push_back(
      {"ConstantOfShape", "", "ConstantOfShape", {fixed({4, 6})}, {{DataType::kFloat32, {4, 6}}}, {}, 0});
  cases.push_back({"Range", "", "Range", {integer(2), integer(8), integer(2)}, {{kIndexType, {3}}}});
  cases.push_back({"Shape", "", "Shape", {real({4, 6})}, {{kIndexType, {2}}}});
  cases.push_back({"Size", "", "Size", {real({4, 6})}, {{kIndexType, {}}}});
  cases.push_back({"EyeLike", "", "EyeLike", {real({4, 6})}, {{kReal, {4, 6}}}});
  cases.push_back({"Dropout", "", "Dropout", {real({4, 6})}, {{kReal, {4, 6}}}});
}

void addAlongAxes(std::vector<RuleCase>& cases) {
  cases.push_back({"CumSum", "", "CumSum", {real({4, 6}), integer(1)}, {{kReal, {4, 6}}}});
  cases.push_back(
      {"ArgMax", "", "ArgMax", {real({4, 6, 2})}, {{kIndexType, {4, 1, 2}}}, {{"axis", int64_t{1}}}});
  cases.push_back({"ArgMin",
                   "",
                   "ArgMin",
                   {real({4, 6, 2})},
                   {{kIndexType, {4, 2}}},
                   {{"axis", int64_t{1}}, {"keepdims", int64_t{0}}}});
  for (int64_t axis : {0, 1}) {
    cases.push_back({"TopKAlong" + std::to_string(axis),
                     "",
                     "TopK",
                     {real({4, 6}), fixed({2})},
                     {{kReal, axis == 0 ? Shape{2, 6} : Shape{4, 2}},
                      {kIndexType, axis == 0 ? Shape{2, 6} : Shape{4, 2}}},
                     {{"axis", axis}}});
  }
}

void addIndexing(std::vector<RuleCase>& cases) {
  const std::map<std::string, Attribute> axis_1 = {{"axis", int64_t{1}}};
  cases.push_back({"GatherRows", "", "Gather", {real({7, 4}), index({2, 6}, -7, 7)}, {{kReal, {2, 6, 4}}}});
  cases.push_back(
      {"GatherColumns", "", "Gather", {real({4, 7, 2}), index({6}, 0, 7)}, {{kReal, {4, 6, 2}}}, axis_1});
  cases.push_back({"GatherElements",
                   "",
                   "GatherElements",
                   {real({4, 7}), index({4, 6}, 0, 7)},
                   {{kReal, {4, 6}}},
                   axis_1});
  cases.push_back({"GatherElementsOfFewerRows",
                   "",
                   "GatherElements",
                   {real({4, 7}), index({2, 6}, 0, 7)},
                   {{kReal, {2, 6}}},
                   axis_1});
  cases.push_back({"GatherGradOfRows",
                   "pipeshard",
                   "GatherGrad",
                   {real({2, 6, 4}), index({2, 6}, -7, 7), fixed({7, 4})},
                   {{kReal, {7, 4}}},
                   {},
                   2});
  cases.push_back({"GatherGradOfColumns",
                   "pipeshard",
                   "GatherGrad",
                   {real({4, 6, 2}), index({6}, 0, 7), fixed({4, 7, 2})},
                   {{kReal, {4, 7, 2}}},
                   axis_1,
                   2});
  cases.push_back({"GatherElementsGrad",
                   "pipeshard",
                   "GatherElementsGrad",
                   {real({4, 6}), index({4, 6}, 0, 7), fixed({4, 7})},
                   {{kReal, {4, 7}}},
                   axis_1,
                   2});
  cases.push_back({"GatherNd", "", "GatherND", {real({5, 3, 4}), index({6, 2}, 0, 3)}, {{kReal, {6, 4}}}});
  cases.push_back({"GatherNdByBatch",
                   "",
                   "GatherND",
                   {real({4, 5, 2}), index({4, 6, 1}, 0, 5)},
                   {{kReal, {4, 6, 2}}},
                   {{"batch_dims", int64_t{1}}}});
  cases.push_back({"ScatterElements",
                   "",
                   "ScatterElements",
                   {real({4, 7}), index({4, 1}, 0, 7), real({4, 1})},
                   {{kReal, {4, 7}}},
                   axis_1});
  cases.push_back(
      {"ScatterNd", "", "ScatterND", {real({5, 4}), fixed2({{0}, {3}}), real({2, 4})}, {{kReal, {5, 4}}}});
  cases.push_back(
      {"OneHot", "", "OneHot", {index({4, 6}, 0, 5), integer(5), fixedReals({0, 1})}, {{kReal, {4, 6, 5}}}});
}

Constant convertedTo(DataType type, const Constant& constant) {
  Constant result{type, constant.shape, std::vector<std::byte>(byteCount(type, constant.shape))};
  convertElements(constant.data_type, constant.bytes.data(), type, result.bytes.data(),
                  elementCount(constant.shape));
  return result;
}

Constant makeData(std::mt19937_64& generator, const Argument& argument) {
  switch (argument.kind) {
    case Argument::Kind::kIndex:
      return convertedTo(argument.type,
                         randomIntegers(generator, argument.shape, argument.low, argument.high));
    case Argument::Kind::kFlag: return randomFlags(generator, argument.shape);
    case Argument::Kind::kFixed: return argument.constant;
    case Argument::Kind::kPositive: {
      Constant data = randomReals(generator, argument.shape);
      auto* elements = reinterpret_cast<double*>(data.bytes.data());
      for (int64_t i = 0; i < elementCount(argument.shape); ++i) elements[i] = 0.1 + std::abs(elements[i]);
      return data;
    }
    default: return randomReals(generator, argument.shape);
  }
}

}  // namespace

Argument real(Shape shape) { return {Argument::Kind::kReal, std::move(shape), 0, 0, {}, {}}; }
Argument positive(Shape shape) { return {Argument::Kind::kPositive, std::move(shape), 0, 0, {}, {}}; }
Argument index(Shape shape, int64_t low, int64_t high, DataType type) {
  return {Argument::Kind::kIndex, std::move(shape), low, high, type, {}};
}
Argument flag(Shape shape) { return {Argument::Kind::kFlag, std::move(shape), 0, 0, {}, {}}; }
Argument fixed(const std::vector<int64_t>& elements) {
  const Shape shape = {std::ssize(elements)};
  return {Argument::Kind::kFixed, shape, 0, 0, {}, makeConstant<int64_t>(shape, elements)};
}
Argument fixed2(const std::vector<std::vector<int64_t>>& rows) {
  std::vector<int64_t> elements;
  for (const std::vector<int64_t>& row : rows) elements.insert(elements.end(), row.begin(), row.end());
  const Shape shape = {std::ssize(rows), std::ssize(rows.front())};
  return {Argument::Kind::kFixed, shape, 0, 0, {}, makeConstant<int64_t>(shape, elements)};
}
Argument fixedReals(const std::vector<double>& elements) {
  const Shape shape = {std::ssize(elements)};
  return {Argument::Kind::kFixed, shape, 0, 0, {}, makeConstant<double>(shape, elements)};
}
Argument number(double value) {
  return {Argument::Kind::kFixed, {}, 0, 0, {}, makeScalar(DataType::kFloat64, value)};
}
Argument integer(int64_t value) {
  return {Argument::Kind::kFixed, {}, 0, 0, {}, makeScalar(DataType::kInt64, static_cast<double>(value))};
}
Argument absent() { return {}; }

void PrintTo(const RuleCase& rule_case, std::ostream* stream) { *stream << rule_case.op_type; }

const std::set<std::string>& functionsWithoutCase() {
  static const std::set<std::string> names = {"ScheduledRate", "Orthogonalized", "SquareSum"};
  return names;
}

std::vector<RuleCase> ruleCases() {
  std::vector<RuleCase> cases;
  addOfNumbers(cases);
  addOfIntegersAndFlags(cases);
  addUpdates(cases);
  addMatmul(cases);
  addReductions(cases);
  addViews(cases);
  addParts(cases);
  addOfShapes(cases);
  addAlongAxes(cases);
  addProjections(cases);
  addConvolutions(cases);
  addNormalizations(cases);
  addAttention(cases);
  addLosses(cases);
  addIndexing(cases);
  return cases;
}

std::vector<Constant> caseInputs(const RuleCase& rule_case, std::mt19937_64& generator) {
  std::vector<Constant> inputs;
  for (const Argument& argument : rule_case.inputs) inputs.push_back(makeData(generator, argument));
  return inputs;
}

Graph caseGraph(const RuleCase& rule_case, const std::vector<Constant>& inputs,
                const std::vector<Shape>& output_shapes) {
  Graph graph;
  graph.opset_imports = {{"", 18}, {"pipeshard", 1}, {"com.microsoft", 1}};
  static const std::map<std::string, int> kNewer = {
      {"AveragePool", 19}, {"Gelu", 20}, {"RMSNormalization", 23}, {"Swish", 24}};
  if (kNewer.contains(rule_case.op_type)) graph.opset_imports[""] = kNewer.at(rule_case.op_type);
  GraphBuilder builder(graph);
  std::vector<ValueId> ids;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Argument& argument = rule_case.inputs[i];
    const std::string name = "input" + std::to_string(i);
    if (argument.kind == Argument::Kind::kAbsent) {
      ids.emplace_back();
    } else if (argument.kind == Argument::Kind::kFixed) {
      const bool follows = static_cast<int>(i) == rule_case.shape_input;
      ids.push_back(builder.addConstant(
          name, follows ? makeConstant<int64_t>(argument.shape, output_shapes[0]) : inputs[i]));
    } else {
      ids.push_back(builder.addValue(name, inputs[i].data_type, inputs[i].shape));
      graph.inputs.push_back(ids.back());
    }
  }
  std::vector<ValueId> outputs;
  for (size_t o = 0; o < output_shapes.size(); ++o) {
    outputs.push_back(
        builder.addValue("output" + std::to_string(o), rule_case.outputs[o].first, output_shapes[o]));
  }
  graph.outputs = outputs;
  builder.addNode(rule_case.domain, rule_case.op_type, ids, outputs, rule_case.attributes);
  graph.nodes[0].name = rule_case.name;
  return graph;
}

Graph caseGraph(const RuleCase& rule_case) {
  std::mt19937_64 generator(7);
  std::vector<Shape> shapes;
  for (const auto& [type, shape] : rule_case.outputs) shapes.push_back(shape);
  return caseGraph(rule_case, caseInputs(rule_case, generator), shapes);
}

}  // namespace pipeshard::testing
