// How often a Loop runs, as far as that can be said without data. Internal to onnx_import.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

struct LoopTrips {
  std::optional<int64_t> count;
  std::string obstacle;  // what keeps it from being known; empty if it is
};

// The number of trips of `loop`, a Loop of the builder's graph; where it is more than `limit`, some number
// above that. `kept`: keptFromFolding of the graph. Throws Error(kBadModel), naming the node, when its body
// does not fit it.
//
// Only the part of the body that its condition follows from is looked at, trip by trip, with what is known of
// the values that it carries from one to the next:
//   i := 0, x: [2,3];  while (i + Size(x) < 20) { i := i + 1;  x := Concat(x, y) }     y: [2,3]
// has the part {i + 1, Concat, Size, +, <}. Of i the content is known in every trip, of x only the shape,
// which is enough: 0+6, 1+12 < 20, 2+18 is not; two trips.
LoopTrips tripsOfLoop(GraphBuilder& builder, const Node& loop, const std::vector<bool>& kept, int64_t limit);

// Type and, where it can be found, shape of output `index` of the body in the first trip of `loop`.
Value typeInFirstTrip(GraphBuilder& builder, const Node& loop, size_t index, const std::vector<bool>& kept);

// The subgraph attribute of a node. Throws Error(kBadModel), naming the node, if it is none.
const Graph& bodyOf(const Node& node, const std::string& attribute);

}  // namespace pipeshard
