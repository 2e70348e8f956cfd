// Ranges whose gradient is 0 at their ends as well as beyond them, as those of activations.
//
// ONNX's Clip does not say. Where the node came from does, as a rule
// (onnx_import/autodiff/rules_selection.cc); where pipeshard itself makes one of another operator, the Clip
// gets a mark in its metadata, which passes carry and files keep.
#pragma once

#include "ir/graph/graph.h"

namespace pipeshard {

bool hasFlatEnds(const Node& node);

// Marks a Clip.
void makeEndsFlat(Node& clip);

}  // namespace pipeshard
