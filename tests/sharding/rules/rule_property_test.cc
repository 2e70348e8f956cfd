// The property that every factor rule promises: cut the inputs along a factor, run the operator on the parts,
// put the parts together as the factor's kind says, and the result is that of the whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/kernels/base/cpu_kernels.h"
#include "sharding/rules/factor_rule.h"
#include "tests/sharding/graph_runner.h"
#include "tests/sharding/rules/rule_cases.h"

namespace pipeshard::testing {

namespace {

constexpr double kTolerance = 1e-12;

std::vector<Constant> runCase(const RuleCase& rule_case, const std::vector<Constant>& inputs,
                              const std::vector<Shape>& output_shapes) {
  const Graph graph = caseGraph(rule_case, inputs, output_shapes);
  Tensors given;
  for (ValueId id : graph.inputs)
    given[graph.value(id).name] = inputs[std::stoul(graph.value(id).name.substr(5))];
  std::vector<std::string> names;
  for (ValueId id : graph.outputs) names.push_back(graph.value(id).name);
  const Tensors results = runGraph(graph, given, names);
  std::vector<Constant> outputs;
  for (const std::string& name : names) outputs.push_back(results.at(name));
  return outputs;
}

// Part `part` of `parts` of one factor.
struct Cut {
  const FactorRule& rule;
  int factor;
  int64_t parts;
  int64_t part;

  // The axis of a tensor that holds the factor, or -1.
  int axisIn(const TensorFactors& tensor) const {
    for (size_t axis = 0; axis < tensor.size(); ++axis) {
      if (std::find(tensor[axis].begin(), tensor[axis].end(), factor) != tensor[axis].end()) return axis;
    }
    return -1;
  }

  // Entries of that axis that belong to the part.
  std::vector<int64_t> indices(const std::vector<int>& factors) const {
    int64_t size = 1;
    int64_t minor = 1;
    for (auto f = factors.rbegin(); f != factors.rend(); ++f) {
      if (*f == factor) minor = size;
      size *= rule.factors[*f].size;
    }
    const int64_t own = rule.factors[factor].size;
    std::vector<int64_t> result;
    for (int64_t i = 0; i < size; ++i) {
      if (i / minor % own / (own / parts) == part) result.push_back(i);
    }
    return result;
  }
};

void combine(Constant& whole, const Constant& part, FactorKind kind, int64_t parts, bool first) {
  std::vector<double> sum = numericElements(whole);
  const std::vector<double> more = numericElements(part);
  for (size_t i = 0; i < sum.size(); ++i) {
    if (kind == FactorKind::kMax) sum[i] = first ? more[i] : std::max(sum[i], more[i]);
    if (kind == FactorKind::kMin) sum[i] = first ? more[i] : std::min(sum[i], more[i]);
    if (kind == FactorKind::kSum) sum[i] = (first ? 0 : sum[i]) + more[i];
    if (kind == FactorKind::kMean) sum[i] = (first ? 0 : sum[i]) + more[i] / static_cast<double>(parts);
  }
  if (whole.data_type == DataType::kInt64) {
    whole = makeConstant<int64_t>(whole.shape, std::vector<int64_t>(sum.begin(), sum.end()));
  } else {
    whole = makeConstant<double>(whole.shape, sum);
  }
}

void checkCut(const RuleCase& rule_case, const FactorRule& rule, const std::vector<Constant>& inputs,
              const std::vector<Constant>& wanted, int factor, int64_t parts) {
  const FactorKind kind = rule.factors[factor].kind;
  std::vector<Constant> combined;
  for (const Constant& output : wanted)
    combined.push_back({output.data_type, output.shape, std::vector<std::byte>(output.bytes.size())});
  for (int64_t part = 0; part < parts; ++part) {
    const Cut cut{rule, factor, parts, part};
    std::vector<Constant> local = inputs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const int axis = cut.axisIn(rule.inputs[i]);
      if (axis >= 0) local[i] = selectAlong(inputs[i], axis, cut.indices(rule.inputs[i][axis]));
    }
    std::vector<Shape> shapes;
    for (size_t o = 0; o < wanted.size(); ++o) {
      shapes.push_back(wanted[o].shape);
      const int axis = cut.axisIn(rule.outputs[o]);
      if (axis >= 0) shapes[o][axis] /= parts;
    }
    const std::vector<Constant> outputs = runCase(rule_case, local, shapes);
    for (size_t o = 0; o < wanted.size(); ++o) {
      const int axis = cut.axisIn(rule.outputs[o]);
      if (axis >= 0) {
        placeAlong(combined[o], outputs[o], axis, cut.indices(rule.outputs[o][axis]));
      } else {
        ASSERT_NE(kind, FactorKind::kParallel) << "a parallel factor is missing in output " << o;
        combine(combined[o], outputs[o], kind, parts, part == 0);
      }
    }
  }
  for (size_t o = 0; o < wanted.size(); ++o)
    EXPECT_LT(distance(combined[o], wanted[o]), kTolerance) << "output " << o << ", " << parts << " parts";
}

// The factors of every axis that has some multiply to its size.
void checkSizes(const FactorRule& rule, const std::vector<TensorFactors>& tensors,
                const std::vector<Constant>& values) {
  ASSERT_EQ(tensors.size(), values.size());
  for (size_t t = 0; t < tensors.size(); ++t) {
    ASSERT_EQ(tensors[t].size(), values[t].shape.size());
    for (size_t axis = 0; axis < tensors[t].size(); ++axis) {
      if (tensors[t][axis].empty()) continue;
      int64_t size = 1;
      for (int factor : tensors[t][axis]) size *= rule.factors[factor].size;
      EXPECT_EQ(size, values[t].shape[axis]) << "axis " << axis;
    }
  }
}

class FactorRuleProperty : public ::testing::TestWithParam<RuleCase> {};

TEST_P(FactorRuleProperty, PartsRecombineToTheWhole) {
  const RuleCase& rule_case = GetParam();
  std::mt19937_64 generator(7);
  const std::vector<Constant> inputs = caseInputs(rule_case, generator);
  std::vector<Shape> shapes;
  for (const auto& [type, shape] : rule_case.outputs) shapes.push_back(shape);
  const Graph graph = caseGraph(rule_case, inputs, shapes);
  const auto rule = factorRule(graph, NodeId(0));
  ASSERT_TRUE(rule.has_value());
  SCOPED_TRACE(printFactorRule(*rule));
  const std::vector<Constant> wanted = runCase(rule_case, inputs, shapes);
  checkSizes(*rule, rule->inputs, inputs);
  checkSizes(*rule, rule->outputs, wanted);
  for (size_t factor = 0; factor < rule->factors.size(); ++factor) {
    if (rule->factors[factor].kind == FactorKind::kWhole) continue;
    SCOPED_TRACE("factor " + rule->factors[factor].name);
    for (int64_t parts = 2; parts <= rule->factors[factor].size; ++parts) {
      if (rule->factors[factor].size % parts == 0)
        checkCut(rule_case, *rule, inputs, wanted, static_cast<int>(factor), parts);
    }
  }
}

std::string caseName(const ::testing::TestParamInfo<RuleCase>& info) {
  std::string name = info.param.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
}

// Operators without a kernel never reach a device as they are; the SPMD test runs those of them that have a
// body.
std::vector<RuleCase> casesWithKernel() {
  std::vector<RuleCase> cases = ruleCases();
  std::erase_if(cases, [](const RuleCase& rule_case) {
    return !cpuKernels().has(rule_case.domain, rule_case.op_type);
  });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(AllOperators, FactorRuleProperty, ::testing::ValuesIn(casesWithKernel()), caseName);

// Operators whose property is tested above must really have something to cut: a rule of whole factors only
// would pass.
TEST(FactorRuleProperty, EveryCaseHasAFactorToCut) {
  const std::set<std::string> nothing = {"ReduceProdOverAll",
                                         "ReduceL2OverAll",
                                         "CrossEntropyLossGrad_mean",
                                         "Range",
                                         "Shape",
                                         "Size",
                                         "EyeLike"};
  for (const RuleCase& rule_case : ruleCases()) {
    std::mt19937_64 generator(7);
    const std::vector<Constant> inputs = caseInputs(rule_case, generator);
    std::vector<Shape> shapes;
    for (const auto& [type, shape] : rule_case.outputs) shapes.push_back(shape);
    const auto rule = factorRule(caseGraph(rule_case, inputs, shapes), NodeId(0));
    ASSERT_TRUE(rule.has_value()) << rule_case.name;
    const bool any = std::any_of(rule->factors.begin(), rule->factors.end(), [](const Factor& factor) {
      return factor.kind != FactorKind::kWhole && factor.size > 1;
    });
    EXPECT_EQ(any, !nothing.contains(rule_case.name)) << rule_case.name;
  }
}

}  // namespace
}  // namespace pipeshard::testing
