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

// Marks (markTakenForConstant), in a file without marks, whoever wrote it, tensors of several elements that
// no module trains, by what they hold and how they are read:
//
//   - A mask: both 0 and 1, and nothing else; it multiplies, selects, or is compared. Of a matrix that
//     multiplies matrices (an adjacency): with two ones in some row or column, as an identity or a
//     permutation is what layers begin with, and on the left, but for files of the TorchScript exporter.
//   - What scales one of the two terms of a binary cross-entropy, or both (pos_weight, weight).
//
// What is called like a tensor of PyTorch's layers ("weight") is no mask. To be called on the graph as read,
// behind restoreParameters.
void takeConstants(Graph& graph);

// In a file without marks, whoever wrote it, weights that may be buffers: which only shift or scale what
// comes straight from an input (a normalisation of the input), or are called like usual buffers ('anchors',
// 'forward_basis_buffer', 'hann_window', 'mel_banks'), or are a 'kernel' by channel, or a table of sines.
// Where they are trained a sentence names them; "" without any. To be called when the user's choice is known
// (overrideParameters), and where anything is trained.
std::string likelyBuffers(const Graph& graph);

// In a file of the TorchScript exporter, a sentence that names what else is trained and not called like a
// tensor of PyTorch's layers, where a module has its own parameters (cls_token) and buffers (grid) alike; ""
// without any. Not those of one element, which parameterNotes names. When to be called: as likelyBuffers.
std::string untoldParameters(const Graph& graph);

}  // namespace pipeshard
