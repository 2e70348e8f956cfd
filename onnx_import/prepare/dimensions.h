// Symbolic dimensions of a model: which there are, arithmetic on their names, binding.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// A symbolic dimension of the graph's inputs and where it occurs, e.g. {"batch", {"input_ids axis 0", "labels
// axis 0"}}.
struct SymbolicDimension {
  std::string name;
  std::vector<std::string> places;
};
std::vector<SymbolicDimension> symbolicDimensions(const Graph& graph);

// The dimensions that a model proposes itself (model metadata "pipeshard.dimensions" = "batch=8,seq=16"), or
// empty.
std::map<std::string, int64_t> defaultDimensions(const Graph& graph);

// ---- internal to onnx_import

// For messages about shapes that contradict each other while the graph is prepared: which sizes were given.
// "; batch = 8 and tokens = 20 are given (--dim, --microbatches): the model may not take that", or "" where
// none was.
std::string givenSizes(const Graph& graph);
// Behind preparation: takes off what givenSizes reads.
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
// its dimension is bound so stays, as PyTorch's exporter means it. Throws Error(kUsage) for names that are
// not bound, or bound but not in the model.
void bindDimensions(Graph& graph, const std::map<std::string, int64_t>& dimensions);

}  // namespace pipeshard
