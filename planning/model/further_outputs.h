// Outputs of a model beside its loss. A step of training does not compute them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Names of what the model gives beside the loss (invalid: it has none). Not its running statistics: an
// evaluation leaves them as they are, training hands them on. An evaluation (`trains` false) gives what no
// operator makes, too (an input, a weight).
std::vector<std::string> furtherOutputs(const Graph& raw, ValueId loss, bool trains);

// Whether operators are there for the sake of these outputs alone.
bool haveOperatorsOfTheirOwn(const Graph& raw, ValueId loss, const std::vector<std::string>& outputs);

// Takes those out of `raw.outputs` and of `outputs` that keep the model from being prepared, with what makes
// them alone, and returns them. Ids of `raw` change. `prepare` gets the graph with some of its outputs,
// without dead code, and throws Error(kBadModel) where it cannot be prepared; its other errors go on. Empty:
// the model can be prepared with all of them, or they are not to blame, since it cannot without any, either.
std::vector<std::string> clearTheWay(Graph& raw, std::vector<std::string>& outputs,
                                     const std::function<void(const Graph&)>& prepare);

// For one row of the batch, which parts of a batch may come to have: throws as `prepare` above.
void prepareOneRow(const Graph& raw, std::map<std::string, int64_t> dimensions,
                   const std::string& batch_dimension);

// Nothing is left out without a word: of outputs that were in the way of a loss, and of those that need
// operators that nothing computes (onnx_import/loss/needed_outputs.h).
std::string inTheWayNote(const std::vector<std::string>& outputs);
std::string unknownOutputsNote(const std::vector<std::string>& outputs, bool has_loss);

}  // namespace pipeshard
