// The rows of operatorTable for operators that work element by element, for updates and for collectives.
#pragma once

#include <span>

#include "ir/operators/operator_facts.h"

namespace pipeshard {

std::span<const OperatorFacts> elementwiseOperators();

}  // namespace pipeshard
