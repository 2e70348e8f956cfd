// The module's parameters, as the file has them: what an exporter's optimizer did to them is undone, and what
// cannot be undone is named.
//
// PyTorch's exporter says which parameters the module has (ir/graph/exporter_marks.h; where a tool has
// dropped that list, calls and marks tell those that are used). Its optimizer, which runs by default,
//   transposes   the weight of a Linear into an anonymous constant. It is that parameter again, by its name,
//                trained where it lies: isStoredTransposed (ir/graph/weight_role.h).
//                  fc.weight [32,16]  →  val_2 [16,32], folded from 'fc.weight', read by a MatMul of
//                  linear(%x, %p_fc_weight, ...)
//                If the file has the weight itself, too (a tied embedding), the copy becomes a Transpose of
//                it.
//   merges       parameters of different modules that hold equal numbers (biases, normalisations). Each call
//                that mentions another parameter than it reads gets one of its own, with the same content; so
//                do running statistics that were merged with scale and bias.
//   leaves out   a bias that is zero. The parameter is made again.
//   folds        what depends on parameters alone. Where it only moves their numbers they are made again
//                (folded_parameters.h). Of position rows, batch normalisations, and calls that merging has
//                made equal and so are one, numbers or places are lost: such parameters are listed. So are
//                those of which a use may be gone, as it was neutral at the first numbers
//                (parameter_copies.h).
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

struct LostParameter {
  std::string name;
  std::string reason;  // "folded into the constant 'embedding_1'"
  // What the file has in its place that can be trained: convolutions with normalisations in them; a tensor of
  // its name of which nothing tells whether it is the module's; the parameter, of which a use may be gone.
  enum class Instead { kNothing, kNormalized, kUnmarked, kItself } instead = Instead::kNothing;
};

// Another name of a tied parameter: "head.weight" of "words.weight".
struct TiedName {
  std::string name;
  std::string parameter;
  friend bool operator==(const TiedName&, const TiedName&) = default;
};

struct ModuleParameters {
  bool known = false;  // the file says which parameters there are, or which are used
  // The forward pass does not use them; or names of tied parameters that no call goes by (T5's
  // "shared.weight"), which a file does not tell from these.
  std::vector<std::string> unread;
  std::vector<TiedName> other_names;  // of tied parameters, which have them as kOtherNames (weight_role.h)
  std::vector<LostParameter> lost;
  // Tables of embeddings with a padding_idx whose row is trained by the lookup, which PyTorch's is not: the
  // file does not show the lookup. (Of others the row comes detached, so that no gradient reaches it.)
  std::vector<std::string> padded;
  std::vector<std::string> tied = {};  // tables that a TorchScript file had a transposed copy of
  // Matrices whose names the file does not tell, trained under those of the exporter:
  // "onnx::MatMul_202 (of 'enc.self_attn')".
  std::vector<std::string> nameless = {};
  // Weights and biases of recurrent layers, as the exporter has folded them: "onnx::LSTM_209 (of 'enc.rnn')".
  std::vector<std::string> recurrent = {};
  // Matrices with equal numbers of which the file does not tell surely whether they are one, by the nodes
  // that read them ("'/e2/MatMul' and '/e3/MatMul'"): those that are trained as one, and those that are
  // apart.
  std::vector<std::string> taken_as_one = {};
  std::vector<std::string> untold = {};
  bool torchscript = false;  // of PyTorch's older exporter
  bool keras = false;        // the module is a model of Keras
  int transposed = 0;        // found again in their transposed places
  int separated = 0;         // merged ones that are their own again
  int statistics = 0;        // likewise, of batch normalisations
  int zero_biases = 0;       // left out, and made again
  int unfolded = 0;          // folded into constants, and made again

  // Names of the module under which the file has no tensor that it could tell.
  std::vector<std::string> absent() const {
    std::vector<std::string> names = unread;
    for (const LostParameter& parameter : lost) {
      if (parameter.instead != LostParameter::Instead::kItself) names.push_back(parameter.name);
    }
    return names;
  }
};

// To be called on the graph as read; all parameters that it finds are marked as such (weight_role.h).
ModuleParameters restoreParameters(Graph& graph);

}  // namespace pipeshard
