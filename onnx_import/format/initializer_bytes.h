// The content of an initializer while a model is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Nothing where its file is not there, or nothing is (weights that are drawn). A transposed matrix comes as
// the file has it.
std::optional<std::vector<std::byte>> initializerBytes(const Graph& graph, ValueId id);

// Brings references to int32, int64 and bool tensors of at most so many bytes into the graph: indices, shapes
// and masks are computed with while a model is prepared. (PyTorch's exporter puts what has more than 256
// bytes into the file of weights.) Those whose file is not there stay references.
void inlineIntegers(Graph& graph, uint64_t most_bytes);

}  // namespace pipeshard
