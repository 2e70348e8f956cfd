// From a product to the equal parts that its columns are read as:
//
//   MatMul → Add(bias) → Reshape [b,s,3n] → Split(last axis)              GPT-2, MPT
//   MatMul → Add(bias) → Slice, Slice, Slice                              Phi-3
//   MatMul → Add(bias) → Reshape [b,s,3,h,d] → Transpose → Slice or Gather of axis 0 each    ViT, Swin
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "onnx_import/patterns/polynomial.h"

namespace pipeshard {

struct ProjectionParts {
  std::vector<NodeId> steps;    // from behind the product on, in the graph's order
  ValueId bias = {};            // that one of them adds, a weight of one axis
  size_t own_axis = SIZE_MAX;   // from this step's output on; none: only the readers tell the parts apart
  std::vector<ValueId> values;  // by part: what the graph calls it
  std::vector<NodeId> readers;  // that take the parts apart: one Split, or one of each part
  std::string reason;  // why it has none, where it is nearly one; "" with no values: it is no such product
};

// Of a product whose second input has the columns as the last axis of the product's output.
ProjectionParts projectionParts(const PatternGraph& patterns, NodeId product);

}  // namespace pipeshard
