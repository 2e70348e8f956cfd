// Values that a module takes as they are, through which it is not trained: PyTorch's detach().
//
// ONNX has no operator for that. Here it is an Identity with a mark in its metadata, which passes carry and
// files keep; no gradient goes through it (findGradientRule), and it is not removed as other copies are.
#pragma once

#include "ir/graph/graph.h"

namespace pipeshard {

bool stopsGradient(const Node& node);

// Marks an Identity.
void stopGradientAt(Node& identity);

}  // namespace pipeshard
