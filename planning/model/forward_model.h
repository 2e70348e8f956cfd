// The model as planning reads it: its forward graph, prepared for any number of rows of the batch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ir/graph/graph.h"
#include "onnx_import/autodiff/imported_backward.h"
#include "onnx_import/autodiff/training.h"
#include "onnx_import/exporter/module_parameters.h"
#include "onnx_import/forms/model_form.h"
#include "onnx_import/patterns/patterns.h"
#include "onnx_import/precision/mixed_precision.h"
#include "partition/stages/asked_stages.h"
#include "planning/model/file_shardings.h"
#include "planning/request/plan_request.h"
#include "planning/request/progress.h"

namespace pipeshard {

// A model that was exported with its backward pass, as read, in the working precision.
struct ImportedModel {
  Graph graph;  // its outputs: the loss and the gradients
  ImportedBackward backward;
  std::string loss;
};

// The forward graph of the largest microbatch, as planning reads it.
struct ForwardModel {
  Graph graph;                                // prepared, in the working precision
  ValueId loss;                               // as the model means it, of one microbatch; invalid: none
  std::vector<std::string> outputs;           // that an evaluation gives beside it; none where it trains
  std::map<std::string, int> batch_axes;      // of the inputs that the batch dimension is in
  std::map<std::string, int64_t> dimensions;  // at the full batch
  std::set<std::string> chosen;               // of these, what nobody gave (BatchDimension)
  std::string batch_dimension;                // "" if nothing can be cut
  int64_t batch = 1;                          // rows of the whole batch; 1 if nothing can be cut
  int64_t microbatches = 1;
  // Examples of a file whose batch has a fixed size, on axis 0 of its inputs; 0 for other files. It cannot be
  // cut: each microbatch is one such batch, which counts as one row of `batch`.
  int64_t fixed_batch = 0;
  std::optional<int64_t> asked_examples;  // of such a file: in a step, where --dim says it
  // Lengths of sequences that the plan is to have programs for beside the longest, as PlanRequest has them.
  std::string length_dimension;
  std::vector<int64_t> shorter_lengths;
  // The same model prepared for so many rows of the batch. Made at first use, kept; the pointer stays valid.
  std::function<const Graph&(int64_t rows)> prepared;
  // Likewise, with sequences of so many elements (sequence_lengths.h).
  std::function<const Graph&(int64_t rows, int64_t length)> prepared_at;
  std::map<std::string, DataType> source_types;   // of weights that a file has in another type
  std::shared_ptr<const ImportedModel> imported;  // null: a forward model
  std::optional<FileShardings> file_shardings;    // with the method manual and no --shard
  ModuleParameters parameters;                    // what became of the module's
  FoundForm form;                                 // in which the file holds all this
  std::optional<ImportedOptimizer> optimizer;     // that the file holds
  std::vector<ParameterGroup> groups;             // of the update, as asked for
  UpdateExtras extras;                            // likewise
  std::optional<MixedNodes> mixed;                // --precision bfloat16: what computes in which type
  bool in_float64 = false;                        // PlanRequest::in_float64: the training graph, not this one
  std::vector<NearMiss> missed_patterns;          // groups of nodes that begin like a pattern
  std::string refusal;                            // only looked at: why it would be refused; "": it is not
  std::vector<std::string> notes;
};

// The name of a model's loss, "none" for one without.
std::string lossName(const ForwardModel& model);

// Reads, checks and prepares the model. `stages` serves the automatic choice of microbatches. Without an
// optimizer (an evaluation), or to look (PlanRequest::any_sizes), a model needs no loss.
ForwardModel loadForward(const PlanRequest& request, const AskedStages& stages,
                         const ProgressCallback& progress);

// What the model's file says of shardings becomes constraints of the request. Values that are lost in
// preparation (folded constants) cannot be kept in any sharding.
void useFileShardings(ForwardModel& model, ShardingRequest& request);

// Another number of microbatches: the graph is that of its largest one.
void setMicrobatches(int64_t microbatches, ForwardModel& model);

}  // namespace pipeshard
