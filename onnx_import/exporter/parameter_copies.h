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

}  // namespace pipeshard
