// The cases of one kind of operators after the other; internal to rule_cases.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/sharding/rules/rule_cases.h"

namespace pipeshard::testing {

inline constexpr DataType kReal = DataType::kFloat64;
inline constexpr DataType kIndexType = DataType::kInt64;
inline constexpr DataType kFlagType = DataType::kBool;
using Ints = std::vector<int64_t>;

inline int64_t typeNumber(DataType type) { return static_cast<int64_t>(type); }

void addProjections(std::vector<RuleCase>& cases);
void addConvolutions(std::vector<RuleCase>& cases);
void addNormalizations(std::vector<RuleCase>& cases);
void addAttention(std::vector<RuleCase>& cases);
void addLosses(std::vector<RuleCase>& cases);

}  // namespace pipeshard::testing
