// What converters of other frameworks, and tools that rewrite files, have done to a model. Their files have
// no marks of a module: the file's producer and names tell.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Names tell a model of Keras: "keras_tensor", "sequential/dense_1/..".
bool isOfKeras(const Graph& graph);

// Weights of a file of tf2onnx into which it has folded the scale, shift and statistics of a batch
// normalisation: '.../batchnorm/mul:0', or a convolution's weight, '.../merged_input:0'.
std::vector<std::string> foldedNormalizations(const Graph& graph);

// A sentence per kind of trap, with what helps:
//
//   - tf2onnx: folded batch normalisations; zero biases and unit scales that are gone; one tensor for several
//     layers; the recurrent biases that Keras does not have; layers that are not trained in Keras.
//   - The file is PyTorch's, by torch.export, but a tool has taken its marks away: buffers look like weights.
//
// To be called on the graph as read.
std::vector<std::string> converterTraps(const Graph& graph);

// In a file without marks, whoever wrote it, weights that may be buffers: which only shift or scale what
// comes straight from an input (a normalisation of the input), or are called like usual buffers ('anchors',
// 'forward_basis_buffer', 'hann_window', 'mel_banks'), or are a 'kernel' by channel, or a table of sines.
// Where they are trained a sentence names them; "" without any. To be called when the user's choice is known
// (overrideParameters), and where anything is trained.
std::string likelyBuffers(const Graph& graph);

}  // namespace pipeshard
