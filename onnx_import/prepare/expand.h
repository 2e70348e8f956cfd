// Operators that ONNX itself defines by other operators. Internal to onnx_import.
#pragma once

#include <functional>
#include <optional>

#include "ir/graph/graph.h"

namespace pipeshard {

// The body that ONNX's schema gives the operator of `node` (a node of `graph`), for its opset version and,
// where the body depends on them, its attributes and input types. nullopt: it has none.
std::optional<Function> schemaFunction(const Graph& graph, const Node& node);

// Replaces every standard node for which `supported` is false by its body, once; nodes without a body stay.
// Returns how many were replaced. Types of new values are not known afterwards.
int expandUnsupported(Graph& graph, const std::function<bool(const Node&)>& supported);

}  // namespace pipeshard
