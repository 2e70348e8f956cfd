// Wires the rooms: from an .onnx file to a plan, the training graph and every rank's program.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ir/plan/plan.h"
#include "onnx_import/autodiff/imported_backward.h"
#include "onnx_import/autodiff/training.h"
#include "partition/stages/partition.h"
#include "planning/file_shardings.h"
#include "sharding/batch/training_family.h"
#include "tools/model_options.h"

namespace pipeshard {

// Called when a phase of the work begins ("reading the model").
using ProgressCallback = std::function<void(const std::string&)>;

// A model that was exported with its backward pass, as read, in the working precision.
struct ImportedModel {
  Graph graph;  // its outputs: the loss and the gradients
  ImportedBackward backward;
  std::string loss;
};

// The forward graph of the largest microbatch, as planning reads it.
struct ForwardModel {
  Graph graph;                                // prepared, in the working precision
  ValueId loss;                               // as the model means it, of one microbatch
  std::map<std::string, int> batch_axes;      // of the inputs that the batch dimension is in
  std::map<std::string, int64_t> dimensions;  // at the full batch
  std::string batch_dimension;                // "" if nothing can be cut
  int64_t batch = 1;                          // rows of the whole batch; 1 if nothing can be cut
  int64_t microbatches = 1;
  // The same model prepared for so many rows of the batch. Made at first use, kept; the pointer stays valid.
  std::function<const Graph&(int64_t rows)> prepared;
  std::map<std::string, DataType> source_types;   // of weights whose precision was changed
  std::shared_ptr<const ImportedModel> imported;  // null: a forward model
  std::optional<FileShardings> file_shardings;    // with the method manual and no --shard
  std::vector<std::string> notes;
};

// Reads, checks and prepares the model. `stages` serves the automatic choice of microbatches.
ForwardModel loadForward(const PlanRequest& request, const AskedStages& stages,
                         const ProgressCallback& progress);

// A training step, cut up.
struct StepPrograms {
  std::vector<RankProgram> ranks;
  RankProgram reference;  // the same step on one device
};

struct PlannedTraining {
  Plan plan;
  TrainingGraph training;            // of the largest microbatch
  StepPrograms whole;                // no ranks: only a plan was asked for (PlanRequest::programs)
  std::optional<StepPrograms> last;  // of the shorter batch that ends an epoch
  std::optional<RankProgram>
      imported;  // the gradients as the model was exported with (planning/imported_gradients.h)
  std::vector<StageCombinations> combinations;  // with --method exhaustive
};

// How a search for a plan is cut short: `asked` while `searching` means "the best so far".
struct Interruption {
  std::atomic<bool> asked = false;
  std::atomic<bool> searching = false;
};

// Throws JobInterrupted where a search was interrupted before it had found a plan.
PlannedTraining planTraining(const PlanRequest& request, const ProgressCallback& progress,
                             Interruption* interruption = nullptr);

// In a plan directory, of a model that was exported with its backward pass: the program of its own gradients.
inline constexpr const char* kImportedFolder = "imported";

// The plan directory of the design (section 5), plus reference/: the single-device program that `validate`
// compares with, and weights.json (runtime/files/weight_check.h) for both. An existing plan directory is
// replaced; any other existing folder is refused (Error(kConfiguration)). Without programs: plan.json and
// model.onnx alone.
void writePlanDirectory(const PlannedTraining& planned, const std::string& directory);

// Whether a plan directory has programs (planning/replay.h makes them where it has none).
bool hasPrograms(const std::string& directory);

// Error(kMissingInput) if there is no plan.json in it.
void requirePlanDirectory(const std::string& directory);
// plan.json of a plan directory. Errors: kMissingInput, kConfiguration.
Plan readPlanDirectory(const std::string& directory);
// The same of a plan directory or the path of a plan.json, and the text itself.
std::string readPlanText(const std::string& path);
Plan readPlanFile(const std::string& path);

// What explainStages says of a plan, whose model must still be where it was.
std::vector<StageExplanation> explainPlan(const Plan& plan, int alternatives,
                                          const ProgressCallback& progress);

// The operators of a prepared graph that the CPU cannot run, differentiate or cut, each with a node that uses
// it.
struct OperatorSupport {
  std::string op;  // "onnx::Conv"
  int64_t count = 0;
  std::string example;
  bool kernel = false;
  bool gradient = false;
  bool factor_rule = false;
};
std::vector<OperatorSupport> operatorSupport(const Graph& graph);

}  // namespace pipeshard
