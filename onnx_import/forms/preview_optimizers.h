// The operators Adam, Adagrad and Momentum of ai.onnx.preview.training, where a file updates weights by them.
// Internal to onnx_import/forms.
#pragma once

#include <string>

#include "ir/graph/graph.h"

namespace pipeshard {

// As plain operators, where the types of what they read are known. Finds types on the way.
void lowerPreviewOptimizers(Graph& graph);

// What the first of them in the graph does that pipeshard's optimizers do not, and which --optimizer is near
// to it: "; Adam (ai.onnx.preview.training) ..."; "" where there is none.
std::string previewOptimizerHint(const Graph& graph);

}  // namespace pipeshard
