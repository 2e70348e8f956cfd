// Where the functions of a source begin and end, found in its text alone.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace pipeshard::house {

// Lines, counted from 1: of the signature's first word and of the closing brace.
struct FunctionLines {
  size_t first = 0;
  size_t last = 0;
};

// In the order of their ends. Lambdas belong to the function that they are in; those in a table of a file or
// of a class are functions themselves. A table is none, though a function gives it: a body of nothing but
// `static const` data without a statement in them, which it returns.
std::vector<FunctionLines> functionsOf(const std::string& text);

}  // namespace pipeshard::house
