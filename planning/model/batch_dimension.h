// Which symbolic dimension of a model is the batch, and how large it is where nobody says.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ir/graph/graph.h"
#include "ir/plan/plan.h"
#include "onnx_import/loss/axis_names.h"
#include "partition/stages/asked_stages.h"
#include "planning/request/plan_request.h"

namespace pipeshard {

struct BatchDimension {
  std::string name;                           // "" if nothing can be cut
  std::map<std::string, int64_t> dimensions;  // sizes of the symbolic dimensions, as asked for or chosen
  std::set<std::string> chosen;               // of these, what nothing but pipeshard says
  std::vector<std::string> notes;             // what was taken for what, and chosen
};

// The batch is the dimension that is told (PlanRequest::batch_dimension), else "batch", "batch_size" or "N",
// else the only one on axis 0. Exporters may give it a name for every input (input_ids_axis0, labels_axis0):
// names that stand on axis 0 alone, and have no other size, become one, in `raw` too.
//
// A size that is given for "batch" is the batch's, whatever the file calls it.
//
// Channels without a size get that of the convolution that reads them (dimensionsByWeights).
//
// A batch without a size gets one: a row for each device that shares rows, in each microbatch. Where
// PlanRequest::any_sizes is set, so do the other dimensions.
//
// Errors: kUsage for a batch dimension that the model does not have, or if microbatches are asked for and
// several dimensions may be the batch.
BatchDimension decideBatchDimension(const PlanRequest& request, const AskedStages& stages, Graph& raw);

// What that will decide, by the names that the graph still has: before its loss is attached. Nothing where it
// fails: it says so when it is asked.
AskedSizes askedSizes(const PlanRequest& request, const AskedStages& stages, const Graph& raw);
// Likewise of a plan's own model, read anew.
AskedSizes askedSizes(const Plan& plan, const Graph& raw);

// A size that is given for "batch", by a usual name, and nothing in the graph has it: what is asked of a
// batch of fixed size. Taken out of the dimensions.
std::optional<int64_t> takeUsualBatch(std::map<std::string, int64_t>& dimensions);

// The axis of each input that has the batch.
std::map<std::string, int> batchAxes(const Graph& raw, const std::string& batch_dimension);

// Examples in the batch of a graph that has no symbolic one: axis 0 of all its inputs. 0 where they differ:
// an input that stays while others go on would pair what does not belong together.
int64_t fixedBatch(const Graph& raw);
// Axis 0 of each input that has so many examples there.
std::map<std::string, int> fixedBatchAxes(const Graph& raw, int64_t examples);

}  // namespace pipeshard
