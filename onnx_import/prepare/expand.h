// Operators that are defined by other operators, by us or by ONNX itself. Internal to onnx_import.
#pragma once

#include <functional>
#include <optional>

#include "ir/graph/graph.h"

namespace pipeshard {

// The body that ONNX's schema gives the operator of `node` (a node of `graph`), for its opset version and,
// where the body depends on them, its attributes and input types. nullopt: it has none.
std::optional<Function> schemaFunction(const Graph& graph, const Node& node);

// Replaces every node for which `supported` is false, or which a lowering claims, by its lowering
// (onnx_import/lowering), if the types and shapes that it needs are known, or else by its body, once; nodes
// that have neither stay. Returns how many were replaced. Types of a body's values are not known afterwards.
int expandUnsupported(Graph& graph, const std::function<bool(const Node&)>& supported);

}  // namespace pipeshard
