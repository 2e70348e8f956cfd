// What `--loss` says: one loss, or a sum of several.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pipeshard {

struct LossTerm {
  enum class Kind : uint8_t {
    kModelOutput,
    kCrossEntropy,           // of scores and class labels
    kNegativeLogLikelihood,  // of log-probabilities and class labels
    kBinaryCrossEntropy,     // of probabilities, and targets from 0 to 1
    kBinaryCrossEntropyWithLogits,
    kMeanSquaredError,
    kL1,
    kSmoothL1,  // beta = 1
  };
  Kind kind = Kind::kModelOutput;
  std::string prediction;  // a value of the graph (kModelOutput: the scalar output; "" = the only one)
  // a value or input of the graph; if there is none of that name, a new input is made
  std::string target;
  double weight = 1;
  double label_smoothing = 0;  // kCrossEntropy
  // kCrossEntropy, kNegativeLogLikelihood: the axis of the classes, from the end if negative; nothing: as the
  // shapes tell (onnx_import/loss/loss.h).
  std::optional<int> class_axis;
  friend bool operator==(const LossTerm&, const LossTerm&) = default;
};

struct LossSpec {
  std::vector<LossTerm> terms = {LossTerm()};  // empty: the model has no loss, and gives its outputs
  bool isNone() const { return terms.empty(); }
  bool readsModelOutput() const;
  // Names of the predictions, and of the targets (which need not be there yet), of terms that say them.
  std::vector<std::string> valuesRead() const;
  bool isModelOutput() const {
    return terms.size() == 1 && terms[0].kind == LossTerm::Kind::kModelOutput && terms[0].weight == 1;
  }
};

// "" | "none" | TERM | [WEIGHT*]TERM+[WEIGHT*]TERM+..., where TERM is the name of a scalar output or
// KIND:PREDICTION,TARGET with a KIND of lossKinds(); cross-entropy takes a smoothing, and it and nll the axis
// of the classes: "cross-entropy:LOGITS,LABELS,smoothing=0.1,axis=1". A kind alone, "mse", is an output's
// name.
//   "cross-entropy:logits,labels+0.4*cross-entropy:aux_logits,labels"
// Error(kUsage) shows the forms. lossToString is the inverse.
LossSpec parseLoss(std::string_view text);
std::string lossToString(const LossSpec& spec);
std::string lossToString(const LossTerm& term);

// "cross-entropy", "mse", ...
std::vector<std::string> lossKinds();

}  // namespace pipeshard
