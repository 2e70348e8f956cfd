// The table behind operatorFacts: a row per operator, by family. A row says what is not the default of
// OperatorFacts.
#pragma once

#include <span>

#include "ir/operators/operator_facts.h"

namespace pipeshard {

// What rows are written with.
namespace operator_rows {
inline constexpr std::string_view kOurs = kPipeshardDomain;
inline constexpr InputSet kFirst = {0};
inline constexpr InputSet kAll = InputSet::from(0);
}  // namespace operator_rows

std::span<const OperatorFacts> operatorTable();

}  // namespace pipeshard
