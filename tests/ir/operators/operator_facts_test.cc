// The table of operators against what registers operators: kernels, factor rules and gradient rules.
#include "ir/operators/operator_facts.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

#include "ir/operators/operator_table.h"
#include "onnx_import/autodiff/gradient_rules.h"
#include "runtime/kernels/base/cpu_kernels.h"
#include "sharding/rules/factor_rule.h"

namespace pipeshard {
namespace {

using Operators = std::set<std::pair<std::string, std::string>>;

Operators rows() {
  Operators operators;
  for (const OperatorFacts& facts : operatorTable()) operators.emplace(facts.domain, facts.op_type);
  return operators;
}

// "domain::op_type" of a registry.
std::pair<std::string, std::string> parsed(const std::string& name) {
  const size_t colons = name.find("::");
  return {name.substr(0, colons), name.substr(colons + 2)};
}

TEST(OperatorFacts, AreARowPerOperator) { EXPECT_EQ(rows().size(), operatorTable().size()); }

TEST(OperatorFacts, AreFoundByDomainAndName) {
  for (const OperatorFacts& facts : operatorTable())
    EXPECT_EQ(&operatorFacts(facts.domain, facts.op_type), &facts) << facts.domain << "::" << facts.op_type;
}

TEST(OperatorFacts, ClaimNothingOfUnknownOperators) {
  for (const char* domain : {kPipeshardDomain.data(), "com.microsoft", "nobody"}) {
    const OperatorFacts& facts = operatorFacts(domain, "Reshape");
    EXPECT_EQ(facts.view, View::kNone);
    EXPECT_TRUE(facts.linear.empty());
    EXPECT_FALSE(facts.runs_on.contains(Backend::kCpu));
  }
}

TEST(OperatorFacts, KnowEveryFactorRule) {
  const Operators known = rows();
  for (const auto& operator_with_rule : operatorsWithRule())
    EXPECT_TRUE(known.contains(operator_with_rule)) << ::testing::PrintToString(operator_with_rule);
}

TEST(OperatorFacts, KnowEveryGradientRule) {
  const Operators known = rows();
  for (const auto& [name, rule] : gradientRules())
    EXPECT_TRUE(known.contains(name)) << ::testing::PrintToString(name);
}

// The column and the registry cannot drift apart: planning asks the one, workers the other.
TEST(OperatorFacts, SayWhatTheCpuHas) {
  Operators column, registry;
  for (const OperatorFacts& facts : operatorTable()) {
    if (facts.runs_on.contains(Backend::kCpu)) column.emplace(facts.domain, facts.op_type);
  }
  for (const std::string& name : cpuKernels().operators()) registry.insert(parsed(name));
  EXPECT_EQ(column, registry);
}

TEST(InputSet, HoldsPositions) {
  constexpr InputSet kSome = {0, 2};
  EXPECT_TRUE(kSome.contains(0) && kSome.contains(2));
  EXPECT_FALSE(kSome.contains(1) || kSome.contains(100));
  EXPECT_TRUE(InputSet::from(3).contains(3) && InputSet::from(3).contains(100));
  EXPECT_FALSE(InputSet::from(3).contains(2));
  EXPECT_TRUE(InputSet().empty());
}

}  // namespace
}  // namespace pipeshard
