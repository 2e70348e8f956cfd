// An optimizer with its hyperparameters, as text and back.
#pragma once

#include <string>
#include <string_view>

namespace pipeshard {

// Which optimizer, with its hyperparameters complete. None: evaluation, without gradients.
struct OptimizerSpec {
  enum class Kind { kSgd, kAdam, kAdamW, kNone };
  Kind kind = Kind::kSgd;
  double learning_rate = 1e-2;
  double momentum = 0;    // SGD
  bool nesterov = false;  // SGD
  double beta1 = 0.9;     // Adam, AdamW
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  // AdamW default 0.01 (decoupled); Adam, SGD: added to the gradient
  friend bool operator==(const OptimizerSpec&, const OptimizerSpec&) = default;
};
// "sgd:lr=0.1,momentum=0.9" | "adam:lr=1e-3,beta1=..,beta2=..,eps=..,weight_decay=.." | "adamw:...".
// Error(kUsage) names the key and the allowed ones. Meaning as in torch.optim. "none" has no keys.
OptimizerSpec parseOptimizer(std::string_view text);
// Whose update divides by what gradients have been: an error in them is not in proportion.
inline bool isAdaptive(const OptimizerSpec& spec) {
  return spec.kind == OptimizerSpec::Kind::kAdam || spec.kind == OptimizerSpec::Kind::kAdamW;
}
std::string optimizerToString(const OptimizerSpec& spec);  // canonical; parse gives the same spec

}  // namespace pipeshard
