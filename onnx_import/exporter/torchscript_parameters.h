// What PyTorch's older exporter (dynamo=False) has done to the parameters of a module in evaluation mode. Its
// files have no list of parameters, but traces: the names of nodes are paths of modules. Internal to
// onnx_import.
//
//   merges     parameters that hold equal numbers (fresh biases and normalisations): an Identity of one gives
//              the other's name. Each gets its own again. It merges likewise the transposed copies of one
//              weight, which have no names, 'onnx::MatMul_34', one for each call. Those of calls of one
//              module ('/f/MatMul', '/f_1/MatMul') are one weight. Those of different modules are two where a
//              parameter with a name is equal in both as well (one module is a copy of the other), and else
//              one where they have one bias, or differ in other parameters (`taken_as_one`). Where equal
//              numbers are all that the file tells, they are two (`untold`).
//   transposes the weight of a Linear, as 'onnx::MatMul_34' read by '/decoder/fc/MatMul': it is called
//              'decoder.fc.weight' again, and stored transposed. (In nn.MultiheadAttention it is
//              'in_proj_weight', as its bias tells. Where nothing tells, it keeps the file's name.) Where it
//              holds the numbers of an embedding, transposed, the two are tied again; likewise where the
//              module reads it on two axes, too: there a Gemm has it as the module. So is a matrix that the
//              module reads both transposed and as it is (A in x @ A.T and B @ A); where its numbers are too
//              plain to tell (zeros), the copy is listed as lost.
//   folds      batch normalisations into the convolution before: its weight and bias are 'onnx::Conv_196' and
//              'onnx::Conv_197' (after a tool, its result is called like the normalisation's); weight
//              normalisations, likewise (the bias keeps its name); rows of tables, and parameters under
//              another shape: 'onnx::Add_20'. The module's parameters are lost. Weights and biases of LSTM,
//              GRU and RNN, 'onnx::LSTM_209', have only been moved: they are trained as they are
//              (`recurrent`).
#pragma once

#include "ir/graph/graph.h"
#include "onnx_import/exporter/module_parameters.h"

namespace pipeshard {

// Whether PyTorch wrote the file, and not by torch.export.
bool isTorchScript(const Graph& graph);

// To be called on the graph as read. Adds to what is found: `separated`, `taken_as_one`, `untold`,
// `other_names`, `statistics`, `transposed`, `nameless`, `recurrent`, `tied`, `lost`. Constants are marked as
// such (weight_role.h): parameters are initializers. So are tensors of one element by a name of the module's
// (isModuleTensor): parameters, unless they are called like a buffer or a constant.
void restoreTorchScript(Graph& graph, ModuleParameters& found);

}  // namespace pipeshard
