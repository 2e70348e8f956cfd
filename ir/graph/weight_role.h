// What a weight's metadata and name say about whether it is trained. Only hints:
// ir/operators/initializer_role.h decides.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ir/base/name_pattern.h"
#include "ir/graph/graph.h"

namespace pipeshard {

// The mark on initializers that are not the file's: folded from what the file has (which may be weights), or
// made by a rewrite, or of a shape, of integers, of single numbers and constants of the file alone (which
// never are).
void markFolded(Value& value);
void markMade(Value& value);
bool isFolded(const Value& value);  // has one of the two
bool isMade(const Value& value);

// The mark on what a file without marks reads and holds as a mask, or as the weights of a loss
// (takeConstants in onnx_import/exporter/converter_traps.h).
void markTakenForConstant(Value& value);
bool isTakenForConstant(const Value& value);  // has it

// The mark on a tensor of one element that the file calls as the module does, "temp" or "alpha", where the
// exporter calls all numbers of its own otherwise (onnx_import/exporter/torchscript_parameters.h).
void markModuleTensor(Value& value);
bool isModuleTensor(const Value& value);  // has it

// The metadata key on a parameter that its place alone tells, for rewrites that take it away from there
// (keepLayerWeights in ir/operators/initializer_role.h).
inline constexpr const char* kLayerWeight = "pipeshard.layer_weight";
bool isLayerWeight(const Value& value);  // has it

// The user's decision, "yes" or "no", as metadata of the value (`--train`, `--freeze`).
inline constexpr const char* kTrainedMark = "pipeshard.trained";
std::optional<bool> trainedByUser(const Value& value);

// Weights that the user does not train, by name, with their elements: the value itself, or those that it was
// computed of (addFrozenWeights). Empty where trainedByUser is not false.
using FrozenWeights = std::map<std::string, int64_t>;
FrozenWeights frozenWeights(const Value& value);
void addFrozenWeights(Value& computed, const FrozenWeights& weights);

// Names of what the file has and is taken for constants, of which a folded value was computed.
std::set<std::string> foldedConstants(const Value& value);
void addFoldedConstants(Value& computed, const std::set<std::string>& names);

// The mark on a parameter whose tensor is the transposed one of the module's.
void markStoredTransposed(Value& value);
bool isStoredTransposed(const Value& value);  // has it

// The metadata key on a weight one of whose axes the step has as two, with its elements in the same order:
// the first of the two, "1" of [768,3,768] where the file has [768,2304]
// (onnx_import/patterns/fused_projections.h).
inline constexpr const char* kDividedAxis = "pipeshard.divided_axis";
std::optional<size_t> dividedAxis(const Value& value);
Shape storedShape(const Value& value);  // in the file; the value's shape is known
// A weight that the file has as `stored` may have `shape` in a step: the same, or with an axis divided.
bool isStoredAs(const Shape& shape, const Shape& stored);

// The metadata key on a tied parameter: the names that the module has for it beside the value's, one a line
// (onnx_import/exporter/module_parameters.h).
inline constexpr const char* kOtherNames = "pipeshard.other_names";
void addOtherName(Value& value, const std::string& name);
std::vector<std::string> otherNames(const Value& value);
std::string allNames(const Value& value);  // for people: "head.weight (also words.weight)"

// Does an expression of the user's mean this weight (`--freeze`, `--train`, `--group`, `--weights random:`)?
// By any of its names.
bool isNamedBy(const NamePattern& pattern, const Value& value);

// What torch.export says that an initializer is ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"); nothing where it
// says nothing.
std::optional<std::string_view> exportedKind(const Value& value);
void setExportedKind(Value& value, std::string_view kind);  // of a value that has none
inline bool isMarkedParameter(const Value& value) { return exportedKind(value) == "PARAMETER"; }

// Does a name alone tell that a tensor of one element is a parameter? That is the name of a module's
// attribute ("fc.bias", "act.slope", "model/dense/bias:0"), or a word that is used for nothing else
// ("temperature", "logit_scale", "head_bias"); not what exporters call constants ("onnx::Mul_12",
// "/block/Constant_output_0", "val_3", "attn.eps").
bool namesParameter(std::string_view name);

// Is it called as PyTorch's own layers call their parameters ("fc.weight", "rnn.bias_hh_l0", also those of
// torch.nn.utils.parametrize)? Not what a module of one's own calls otherwise ("cls_token").
bool isOfTorchLayer(const Value& value);

// Is it the name of a number of the arithmetic ("attn.eps", "/block/Constant_output_0")?
bool namesConstant(std::string_view name);

// Is it the name of a buffer that frameworks store beside the weights ("rotary.inv_freq",
// "attn.causal_mask")?
bool namesBuffer(std::string_view name);

}  // namespace pipeshard
