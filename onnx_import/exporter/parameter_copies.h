// Constants computed of a parameter that the file has as well, for others that read it: the optimizer of
// PyTorch's exporter computes beforehand what depends on small parameters alone, call by call. Internal to
// onnx_import/exporter.
//
//   tied autoencoder   F.linear(h, encoder.weight.t()): 't' beside 'encoder.weight'
//   a gate             x * mu + y * (1 - mu): 'sub' beside 'mu'
//   a scale            x * a.exp() + a: 'exp' beside 'a'
// Left alone, the constant would keep the first numbers while the parameter is trained.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ir/graph/lost_calls.h"
#include "onnx_import/exporter/module_parameters.h"
#include "onnx_import/exporter/parameter_unfolding.h"

namespace pipeshard {

// Before node `reader`, the nodes that give `constant` from its one parameter, if the file tells which they
// are (a transposition, views, 1 - x, functions of parameter_unfolding.h), and they give the constant's
// numbers. (Others are listed: module_parameters.h.)
void recomputeCopy(Unfolding& unfolding, size_t reader, ValueId constant, const Fold& fold);

struct OldCopy {
  std::string parameter;
  std::string constant;
};
// Constants that something reads and that were computed of the numbers of parameters, not of their sizes
// alone (zeros_like). One for each of its parameters.
std::vector<OldCopy> oldCopies(const Graph& graph);

// Uses of parameters that the optimizer has computed beforehand and of which no constant is left, as the
// first numbers make them neutral, or equal to something else:
//   a flow            h * g.exp() - g.sum(), with g = 0: 'sub' is left out, as it takes 0 away
//   a gate            g.sigmoid() * h + (1 - g.sigmoid()) * x, with g = 0: both constants are 0.5, and one
//   a penalty         (w - start).pow(2).sum(), with w = start: 'add' is left out
struct GoneUses {
  struct Mistaken {
    std::string parameter;
    std::string read;    // 'sigmoid', or the parameter itself
    std::string reader;  // the call that reads it: 'mul_1'
    std::string lost;    // what it takes in the module: 'sub'
  };
  std::vector<LeftOutCall> left_out;  // ir/graph/lost_calls.h
  std::vector<Mistaken> mistaken;
  std::vector<std::string> buffers;  // that the file does not have
};
// Of the graph as read.
GoneUses goneUses(const Graph& graph);

// The parameters that these may be of, by what their numbers allow (zeros, ones, all equal, or a buffer that
// they could start at) and by their modules. Of the graph with its parameters restored.
std::vector<LostParameter> parametersOf(const Graph& graph, const GoneUses& uses);

}  // namespace pipeshard
