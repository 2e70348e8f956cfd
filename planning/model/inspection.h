// A look at a model, before anything is planned: how large it is, and what planning would refuse of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/plan/given_options.h"
#include "planning/model/forward_model.h"
#include "planning/request/plan_request.h"

namespace pipeshard {

// Of the largest microbatch, as the model is prepared.
struct ModelTotals {
  int64_t parameters = 0;  // elements of what is trained
  int64_t parameter_bytes = 0;
  int64_t activation_bytes = 0;  // every node output of one forward pass
  int64_t flops = 0;             // forward
};
ModelTotals countTotals(const ForwardModel& model);

// What a file says of its inputs and outputs, axes by name, where its graph cannot be prepared: a line each,
// and one of the dimensions that are open. Empty where the file itself cannot be read.
std::vector<std::string> declaredValues(const PlanRequest& request);

// Why planning refuses to train the model, before it makes a step of it. "": it does not.
std::string trainingRefusal(const ForwardModel& model, const GivenOptions& given);

// What planning would say to something that it may be asked to do with a model.
struct Verdict {
  enum class Kind {
    kPossible,  // the text says what it takes, which is there
    kMissing,   // nothing was tried: the text says what the model lacks, and how it gets it
    kRefused,   // the text is the message of the error
  };
  Kind kind = Kind::kPossible;
  std::string text;
};

struct ModelVerdicts {
  Verdict training;
  std::optional<Verdict> microbatches;  // is its batch cut into parts; not asked of a model without a loss
};

// Tries to make training steps of the model. `refusal`: what trainingRefusal says, and then also why it is
// not trained. What is neither the model's fault nor the request's is thrown on.
ModelVerdicts judgeModel(const ForwardModel& model, const std::string& refusal);

}  // namespace pipeshard
