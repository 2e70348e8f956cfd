// Which weights of a model are trained.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// The initializers that are trained, InitializerRole::kParameter (ir/operators/initializer_role.h). In order
// of id.
std::vector<ValueId> trainableParameters(const Graph& graph);

// Trains the floating-point weights that one of the regular expressions in `train` means (isNamedBy in
// ir/graph/weight_role.h), and does not train those of `freeze`; `train` wins where both match ("--freeze .
// --train ^head" trains the head alone). To be called on the graph as read. `lost`: names of parameters that
// the file has no more, which a pattern may mean. Error(kUsage) for a pattern that is no regular expression
// or found in no name.
// Where the exporter marks the module's parameters, a pattern that means some of them means these alone:
// "." no buffer, and no constant of the exporter's own ("val_60", the scale of an attention). One that means
// none of them means what it is found in. Returns notes: what was left out so, and patterns of `freeze` that
// mean nothing that would be trained.
std::vector<std::string> overrideParameters(Graph& graph, const std::vector<std::string>& train,
                                            const std::vector<std::string>& freeze,
                                            const std::vector<std::string>& lost = {});

// Of trainableParameters, those that a whole job leaves as they are (a buffer that the file does not mark,
// such as class weights): no gradient of the loss reaches them, and no batch normalisation reads them as its
// statistics, which forward passes replace. In order of id; none where the loss is invalid.
std::vector<ValueId> constantParameters(const Graph& graph, ValueId loss);

// "trains 115008 of 115008 parameters in 21 tensors": elements that a gradient of the loss reaches; of
// all that are marked as parameters, would be trained, or were frozen by the user. An invalid loss: all that
// would be. Behind it: ", and 1 element in 1 tensor beside the parameters" of what is trained though the
// exporter does not mark it; "; 2 taken for constants", tensors that the notes name.
std::string trainedSummary(const Graph& graph, ValueId loss);

// Error(kBadModel) that lists weights of a prepared graph of which nothing tells whether they are trained
// (InitializerRole::kUnclear), and the options that do.
void refuseUnclearWeights(const Graph& graph);

// Error(kBadModel) for a graph as read that was quantized (by its operators, or weights that are codes), or
// has sparse tensors: nothing trains such weights. What is around quantized ones is trained where the user
// has said what (`train`, not empty).
void refuseQuantizedOrSparse(const Graph& graph, const std::vector<std::string>& train);

// Names the quantized weights of a graph as read, which nothing trains; "" if there are none.
std::string quantizedNote(const Graph& graph);

// What the user should know about the choice: frozen weights, those taken for constants, those of one element
// that are trained, what is trained and no parameter of the module, those that no gradient of the loss (if
// there is one) reaches.
std::vector<std::string> parameterNotes(const Graph& graph, ValueId loss);

}  // namespace pipeshard
