// Numbers that were given in decimals, beside constants of one element whose type rounds them.
#pragma once

#include <optional>

#include "ir/graph/graph.h"

namespace pipeshard {

// Marks the value of a constant that was made of `number`, as metadata; nothing where the value's type holds
// the number.
void markExactNumber(Value& value, double number);

// The number that the constant, the value's content, was made of, where its type has rounded it; nothing
// where the value has no such mark, or the content is no more that number as the type rounds it.
std::optional<double> exactNumber(const Value& value, const Constant& constant);

}  // namespace pipeshard
