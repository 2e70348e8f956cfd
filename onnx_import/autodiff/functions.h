// The functions of the pipeshard domain, as docs/operators.md lists them, with bodies in standard ONNX.
//
// A body cannot branch on a string attribute or on an absent input. Where the meaning depends on one, there
// is one body per case and the call says which by its `overload`; its attributes say the same, for kernels.
//
//   Gelu, GeluGrad               "" (approximate "none"), "tanh", and with the file's own numbers "factors",
//                                "divisor" (where it divides by its number), "tanh_factors"
//   CrossEntropyLoss and its     "none", "sum", "mean", and each with "_weighted" when Weights is given
//   gradient
//   Attention and its gradients  what lies over the scores (ir/operators/attention_form.h)
//   FusedProjection and its      which way round the weight lies, and whether there is a bias
//   gradients                    (ir/operators/fused_projection.h)
//   optimizers                   "" (one learning rate), "constant" (with warm-up), "linear", "cosine",
//                                "one-cycle", "step": with Step and the schedule's numbers as inputs
//   every other function         ""
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// The definition of a function, its body written for version `opset` (16 or later) of the standard operators;
// a model and its functions must agree on the version. Error(kInternal) for a name or overload that does not
// exist.
Function makePipeshardFunction(std::string_view name, std::string_view overload, int opset);

// (name, overload) of all functions, sorted.
std::vector<std::pair<std::string, std::string>> pipeshardFunctions();

}  // namespace pipeshard
