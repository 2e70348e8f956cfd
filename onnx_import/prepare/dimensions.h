// Symbolic dimensions of a model: which there are, arithmetic on their names, binding.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// A symbolic dimension of the graph's inputs and where it occurs, e.g. {"batch", {"input_ids axis 0", "labels
// axis 0"}}. Of an axis that is named by an expression ("past + 1") it is the names in it, unless `given` has
// a size for the expression as a whole: then that is a dimension of its own.
struct SymbolicDimension {
  std::string name;
  std::vector<std::string> places;
};
std::vector<SymbolicDimension> symbolicDimensions(const Graph& graph,
                                                  const std::map<std::string, int64_t>& given = {});

// The dimensions that a model proposes itself (model metadata "pipeshard.dimensions" = "batch=8,seq=16"), or
// empty.
std::map<std::string, int64_t> defaultDimensions(const Graph& graph);

// Dimensions that can have one size only: the channels (axis 1) of an input that a convolution reads, by the
// shape of its weight. E.g. {"num_channels", 3}.
std::map<std::string, int64_t> dimensionsByWeights(const Graph& graph);

// Outputs whose axes are not what their names say, or are another number: one line each, with the shape by
// the file and the one that was found. `prepared`: the graph with these dimensions bound. Outputs that it
// lacks are left out.
std::vector<std::string> misnamedOutputs(const Graph& graph, const Graph& prepared,
                                         const std::map<std::string, int64_t>& dimensions);

// ---- internal to onnx_import

// For messages about shapes that contradict each other while the graph is prepared: which sizes were given,
// which were chosen, and which are what the name of a dimension says, with the options that say others.
// "; batch = 8 and tokens = 20 are given (--dim, --microbatches): the model may not take that", or "" where
// none was.
std::string givenSizes(const Graph& graph);
// A number of axes may depend on sizes: a Squeeze without axes drops those of size 1, an If may choose by a
// size.
bool ranksMayFollowSizes(const Graph& graph);
// Behind preparation: takes off what givenSizes reads, and names that bindDimensions has left beside sizes.
void forgetGivenSizes(Graph& graph);

// Value of "16*batch", "(s0 + 1)//2", "batch": integers, names, + - * / // and parentheses; / must divide
// exactly. nullopt when a name is not bound, the text is no such expression, or the result is no size.
std::optional<int64_t> evaluateDimension(std::string_view expression,
                                         const std::map<std::string, int64_t>& dimensions);

// The names in such an expression, in order; the whole text if it is none.
std::vector<std::string> dimensionNames(std::string_view expression);

// The name that the user binds for an input axis without a size: its symbol, or "<input>_axis<k>" when it has
// none.
std::string axisName(const Value& input, size_t axis);

// Gives every unknown axis of the graph's inputs its size, and of the other values those that follow from
// their symbols. A Squeeze that says no axes gets those that are 1 of themselves: an axis that is 1 because
// its dimension is bound so stays, as PyTorch's exporter means it. Axes of the graph's outputs keep their
// symbol beside the size that it says: what follows from the operators counts (inference.h). Throws
// Error(kUsage) for names that are not bound, or bound but not in the model. `chosen`: the names whose sizes
// nobody gave, for messages.
void bindDimensions(Graph& graph, const std::map<std::string, int64_t>& dimensions,
                    const std::set<std::string>& chosen = {});

}  // namespace pipeshard
