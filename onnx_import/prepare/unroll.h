// Loop and Scan, flat: a copy of the body for every trip. Internal to onnx_import.
#pragma once

#include <string>

#include "ir/graph/graph.h"

namespace pipeshard {

// Replaces every Loop whose number of trips is known (loop_trips.h) and every Scan (from opset 9) whose
// length is known by copies of their bodies, one behind the other:
//
//   h, s = Loop(3, true, h0) { body(i, c, h): h' = Tanh(h * W);  c' = c;  s = h' }      becomes
//   h1 = Tanh(h0 * W)   h2 = Tanh(h1 * W)   h = Tanh(h2 * W)   s = Concat(Unsqueeze(h1), .. (h2), .. (h))
//
// The number of the trip is a constant of its copy. What a Scan reads is cut by one Split, and each part
// squeezed. What is the same in every trip is there once (hoist.h): W stays one parameter. With no trips the
// carried values pass through, and what is collected is a constant of shape [0, ...]. Loops in bodies are
// unrolled by a later call, when they have come to the surface. Values that are no tensors may be carried.
//
// Returns how many nodes were replaced; others stay. Types of new values are not known afterwards. Throws
// Error(kBadModel), naming the node, when the graph would get more nodes than ImportLimits allows, and when a
// body does not fit its node.
int unrollLoops(Graph& graph);

// For a message: why a Loop or Scan that is still there is not unrolled, and what to do. "" for other nodes.
std::string loopObstacle(Graph& graph, const Node& node);

}  // namespace pipeshard
