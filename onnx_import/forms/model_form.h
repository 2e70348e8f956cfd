// Which form of a training step a file holds, and the same as a *joint* graph: forward pass, loss, and
// gradients as outputs, if the file has any.
//
//   training_model.onnx (ONNX Runtime)     gradients go to accumulators: they become outputs
//   w, v -> loss, w', v'                   the update is taken out, the gradient in it becomes an output
//   outputs loss, output_1, output_2       marked as gradients of w and b
//   a TrainingInfoProto                    its loss is an output; what it trains is marked
//
// takeBackward (onnx_import/autodiff/imported_backward.h) then takes the gradients out. What the file does
// with them otherwise is told: the optimizer as a spec, everything else in notes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph/graph.h"
#include "onnx_import/forms/imported_optimizer.h"

namespace pipeshard {

enum class ModelForm {
  kForward,             // no output that could be a loss: --loss makes one
  kForwardWithLoss,     // a scalar output
  kForwardAndBackward,  // and gradients of the weights as outputs
  kOrtTraining,         // training_model.onnx of ONNX Runtime's artifacts: gradients are added to buffers
  kOptimizerInside,     // outputs are the weights after an update
  kTrainingInfo,        // forward, and the rest in a TrainingInfoProto
};
// "forward pass with loss", ...
std::string_view modelFormName(ModelForm form);

struct FoundForm {
  ModelForm form = ModelForm::kForward;
  // Inputs that are weights, as far as the form says it: their content is not in the file.
  std::vector<std::string> weight_inputs;
  // What was seen: "outputs grad_w, grad_b are called gradients of w, b".
  std::string why;
};

struct ReducedForm {
  FoundForm found;
  // Of the file, where the form says it; else "".
  std::string loss;
  // Outputs of the file that are neither its loss nor a part of the form. They stay in the graph.
  std::vector<std::string> others;
  // Of kOptimizerInside and kTrainingInfo. A learning rate that is an input is not known: --optimizer must
  // say it.
  std::optional<ImportedOptimizer> optimizer;
  // What is left out of the graph, a sentence each.
  std::vector<std::string> notes;
};

struct ReduceOptions {
  std::string loss;  // the output that is the loss; "" finds one
  // Another optimizer is used anyway: an update that is not understood is left out, with a note.
  bool optimizer_given = false;
};

// Makes the joint graph of a graph as read, in place; one without a backward pass stays as it is. Gradients
// are marked (kGradientMark). Error(kBadModel) for files that hold a training step of which nothing can be
// taken (an optimizer alone, a dump with YieldOp), with what to give instead; for gradients that belong to
// weights unknown (joint_gradients.h); and for updates that are not understood (imported_optimizer.h,
// training_info_form.h).
ReducedForm reduceForm(Graph& graph, const ReduceOptions& options = {});

}  // namespace pipeshard
