// The whole graph in another precision.
#pragma once

#include <map>
#include <string>

#include "ir/base/data_type.h"
#include "ir/graph/graph.h"

namespace pipeshard {

// Changes every float32 value, constant, Cast target and attribute type of the graph to float64, for
// validation. Other precisions leave it as it is: for bfloat16 and float16, mixPrecision (mixed_precision.h)
// changes the prepared graph. Weight references keep their bytes: the value's type then differs from the
// file's, and `source_types` remembers the latter (by value name). Numbers that were given in decimals
// (ir/graph/exact_number.h), as the options of --loss, are as given, not as float32 rounds them.
struct PrecisionChange {
  std::map<std::string, DataType> source_types;
};
PrecisionChange setPrecision(Graph& graph, DataType precision);

// Every float32, float16 and bfloat16 to float64, in the same way: what mixed precision computes, without its
// rounding. Its Casts stay.
PrecisionChange widenToFloat64(Graph& graph);

// Is one of the parameters float16 or bfloat16, in which nothing can be trained?
bool trainsNarrowFloats(const Graph& graph);

// Changes every float16 and bfloat16 to float32 in the same way, so that the model can be trained: the
// numbers that the file has, in a wider type.
PrecisionChange widenNarrowFloats(Graph& graph);

}  // namespace pipeshard
