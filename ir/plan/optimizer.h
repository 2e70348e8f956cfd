// An optimizer with its hyperparameters, as text and back; and groups of parameters that have others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ir/plan/learning_rate.h"

namespace pipeshard {

// Which optimizer, with its hyperparameters complete. None: evaluation, without gradients.
struct OptimizerSpec {
  enum class Kind : uint8_t {
    kSgd,
    kAdam,
    kAdamW,
    kRmsProp,
    kAdagrad,
    kLion,
    kLamb,
    kAdafactor,
    kMuon,
    kNone
  };
  Kind kind = Kind::kSgd;
  double learning_rate = 1e-2;
  double momentum = 0;    // SGD, RMSprop, Muon
  bool nesterov = false;  // SGD, Muon
  double beta1 = 0.9;     // Adam, AdamW, Lion, LAMB, Muon's AdamW
  double beta2 = 0.999;
  double epsilon = 1e-8;    // all but SGD and Lion
  double weight_decay = 0;  // AdamW (default 0.01), Lion: decoupled; others: added to the gradient
  double alpha = 0.99;      // RMSprop
  double rate_decay = 0;    // Adagrad: the rate of step t is divided by 1 + rate_decay (t - 1)
  // Adafactor: the means of squares of step t keep 1 - t^beta2_decay; the rate is in proportion to the
  // parameter's root mean square, at least parameter_epsilon; updates of a root mean square beyond
  // `threshold` are scaled down to it.
  double beta2_decay = -0.8;
  double parameter_epsilon = 1e-3;
  double threshold = 1;
  double iterations = 5;    // Muon: of Newton and Schulz
  double match_rms = 0;     // Muon: 1: the rate is adjusted so that updates are as large as AdamW's
  double adam_rate = 1e-3;  // Muon: of AdamW, which updates what is no matrix
  LearningRateSchedule schedule;
  friend bool operator==(const OptimizerSpec&, const OptimizerSpec&) = default;
};
// "sgd:lr=0.1,momentum=0.9" | "adam:lr=1e-3,beta1=..,beta2=..,eps=..,weight_decay=.." | "adamw:..." |
// "rmsprop:..." | "adagrad:..." | "lion:...", each with "schedule=cosine,warmup=100,steps=1000,final=1e-5"
// and the like (docs/optimizers.md). Error(kUsage) names the key and the allowed ones. Meaning as in
// torch.optim. "none" has no keys.
OptimizerSpec parseOptimizer(std::string_view text);
// Whose update divides by what gradients have been, or takes their sign: an error in them is not in
// proportion.
inline bool isAdaptive(const OptimizerSpec& spec) {
  return spec.kind != OptimizerSpec::Kind::kSgd && spec.kind != OptimizerSpec::Kind::kNone;
}
std::string optimizerToString(const OptimizerSpec& spec);  // canonical; parse gives the same spec

// Parameters in whose names the regular expression is found have other hyperparameters.
struct ParameterGroup {
  std::string pattern;
  std::optional<double> learning_rate;
  std::optional<double> rate_scale;  // a factor on the learning rate, the group's or the optimizer's
  std::optional<double> weight_decay;
  std::optional<double> muon;  // 0: under Muon, AdamW updates these, matrices too
};
// "REGEX:weight_decay=0", with the keys lr, lr_scale, weight_decay and muon. Error(kUsage).
ParameterGroup parseParameterGroup(std::string_view text);
std::string groupSettings(const ParameterGroup& group);  // "lr=0.001,weight_decay=0"
// What the later group says goes over what `group`, the earlier ones, said; a rate goes over their scale,
// too. The pattern is that of the last one that says `muon`.
void addGroup(const ParameterGroup& later, ParameterGroup& group);
// What the group says goes over the spec; a schedule keeps its shape. Of Muon both rates are the group's: the
// one that a parameter has follows from its shape.
void applyGroup(const ParameterGroup& group, OptimizerSpec& spec);

}  // namespace pipeshard
