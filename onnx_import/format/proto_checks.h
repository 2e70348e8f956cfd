// Limits and structure of a model, checked before anything looks at its content. Internal to onnx_import.
#pragma once

#include <onnx/onnx_pb.h>

#include "onnx_import/format/external_data.h"
#include "onnx_import/format/reader.h"

namespace pipeshard {

// "ai.onnx" and "" are the same domain.
std::string normalDomain(const std::string& domain);

// Counts of nodes and initializers, nesting, lengths of names, shapes and external data of every tensor
// wherever it is (attributes, subgraphs, functions, sparse tensors, training_info), recursion between
// functions and the number of nodes after inlining. Throws Error(kBadModel) naming the limit and the value
// found.
void checkStructure(const onnx::ModelProto& model, const ImportLimits& limits, ExternalData& external);

}  // namespace pipeshard
