// Old operators in the forms of opset 18, so that nothing behind knows any older form. Internal to
// onnx_import.
#pragma once

#include "ir/graph/graph.h"

namespace pipeshard {

// A graph with a node of the standard domain that is older than opset 16, or that has a body in ONNX from 18
// on alone and nothing else here (ReduceL1, ReduceLogSum, ReduceSumSquare of 16 and 17), in its bodies too:
// every standard node below 18 is rewritten into the form of opset 18, and the graph imports at least that.
// Other graphs stay as they are. Returns how many nodes were rewritten.
//
// Names, outputs and metadata of nodes stay. Nodes that are added around one have its metadata; constants are
// marked as made. A node that has no form in opset 18, or whose form there depends on a rank that is not
// known, keeps its version: Scan of opset 8, operators that ONNX has removed, alignment of operands of
// unknown rank. Batch normalisation in training mode before opset 14, and one per element ('spatial' 0), is
// refused: Error(kBadModel). Function bodies are not looked at: inline them first.
int upgradeOperators(Graph& graph);

// The bodies that ONNX gives operators may be of older opsets than the graph's. Their nodes get the graph's
// version where they mean the same in it. A graph below opset 18 with nodes that mean something else in its
// opset (DynamicQuantizeLinear's ReduceMin of 11 in 17) is upgraded as a whole, as by upgradeOperators: true
// then; types and shapes of values that were added are not known.
bool adoptImportedOpset(Graph& graph);

}  // namespace pipeshard
