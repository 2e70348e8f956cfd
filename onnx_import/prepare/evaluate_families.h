// The evaluator's parts, by kind of operator, each in a source of its own (evaluate_*.cc). For evaluator.cc,
// which asks them one after the other; nullopt: not mine. Internal to onnx_import.
#pragma once

#include <optional>
#include <vector>

#include "ir/graph/graph.h"
#include "onnx_import/prepare/evaluator.h"

namespace pipeshard {

std::optional<std::vector<Constant>> evaluateElementwise(const Node& node, const ConstantInputs& inputs);
std::optional<std::vector<Constant>> evaluateMovement(const Node& node, const ConstantInputs& inputs);
std::optional<std::vector<Constant>> evaluateCreation(const Node& node, const ConstantInputs& inputs);
std::optional<std::vector<Constant>> evaluateReduction(const Node& node, const ConstantInputs& inputs);

}  // namespace pipeshard
