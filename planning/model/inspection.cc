#include "planning/model/inspection.h"

#include <functional>
#include <utility>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "onnx_import/autodiff/parameters.h"
#include "planning/model/training_step.h"
#include "sharding/rules/factor_rule.h"

namespace pipeshard {
namespace {

// The message with which planning refuses it; "" where it does not.
std::string refusalOf(const std::function<void()>& attempt) {
  try {
    attempt();
    return "";
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadModel && error.code() != ErrorCode::kConfiguration) throw;
    return error.message();
  }
}

// Whether a training step can be made of a batch that is taken so; "" or why not.
std::string refusalOfStep(const ForwardModel& model, const BatchCut& batch) {
  return refusalOf([&] {
    const OptimizerSpec optimizer;
    trainingFamily(model, optimizer, batch).base();
  });
}

Verdict refusedOr(const std::string& refusal, std::string possible) {
  if (!refusal.empty()) return {Verdict::Kind::kRefused, refusal};
  return {Verdict::Kind::kPossible, std::move(possible)};
}

Verdict judgeBatch(const ForwardModel& model) {
  if (model.batch_dimension.empty()) {
    return {Verdict::Kind::kMissing,
            "the batch cannot be cut: no input has a symbolic batch dimension (export with dynamic_shapes)"};
  }
  // Any size shows it: two microbatches of two rows.
  return refusedOr(refusalOfStep(model, {4, 2, true}),
                   fmt::format("the batch ({}) can be cut", model.batch_dimension));
}

}  // namespace

ModelTotals countTotals(const ForwardModel& model) {
  ModelTotals totals;
  for (ValueId id : trainableParameters(model.graph)) {
    totals.parameters += elementCount(model.graph.shape(id));
    totals.parameter_bytes += model.graph.bytes(id);
  }
  for (size_t n = 0; n < model.graph.nodes.size(); ++n) {
    totals.flops += nodeFlops(model.graph, NodeId(n));
    for (ValueId id : model.graph.nodes[n].outputs) {
      if (id.valid()) totals.activation_bytes += model.graph.bytes(id);
    }
  }
  return totals;
}

std::string trainingRefusal(const ForwardModel& model, const GivenOptions& given) {
  return refusalOf([&] { refuseUntrainable(model, given.freeze, given.train); });
}

ModelVerdicts judgeModel(const ForwardModel& model, const std::string& refusal) {
  if (!model.loss.valid()) {
    return {{Verdict::Kind::kMissing,
             "the model has no loss; --loss says which (such as --loss cross-entropy:LOGITS,LABELS); without "
             "one it can be evaluated: --schedule forward-only"},
            std::nullopt};
  }
  const std::string why = refusal.empty() ? refusalOfStep(model, {model.batch, 1, false}) : refusal;
  return {refusedOr(why, "every operator on the way has a gradient"), judgeBatch(model)};
}

}  // namespace pipeshard
