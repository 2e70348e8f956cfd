// The table behind operatorFacts: a row per operator, by family.
#pragma once

#include <span>

#include "ir/operators/operator_facts.h"

namespace pipeshard {

std::span<const OperatorFacts> operatorTable();

}  // namespace pipeshard
