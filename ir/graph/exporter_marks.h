// What exporters write beside a graph about the module that it came from: the one reader of these texts.
//
// PyTorch's exporter (torch.onnx, `dynamo=True`) leaves, as metadata,
//   on the graph    its signature: a line "p_fc_weight: PARAMETER target='fc.weight'" per input of the module
//   on a node       the call that it is part of: "%linear : [...] =
//   call_function[target=torch.ops.aten.linear
//                   .default](args = (%x, %p_fc_weight, %p_fc_bias), kwargs = {})"
//                   and the line of code that it is from: 'File "module.py", line 5, in forward ...'
//   on a value      what a constant was folded from ("['fc.weight']"), what an initializer is (weight_role.h)
// Hints: a file may have none of them, or lines that say something else. Internal details of an exporter may
// change; what is not understood is left out.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// The entry of that key; "" without one.
std::string_view metadataOf(const Metadata& metadata, std::string_view key);
// The strings of a list as Python prints it: "['', 'transformer']".
std::vector<std::string> pythonStrings(std::string_view text);

// A parameter of the module: the name by which calls mention it, and its own.
struct SignatureParameter {
  std::string argument;  // "p_fc_weight"
  std::string name;      // "fc.weight"
};
// In the module's order; empty where the file does not say.
std::vector<SignatureParameter> signatureParameters(const Graph& graph);
// Those that calls mention and marks or constants name: of a file whose signature is gone, as in a part that
// a tool has cut out (onnx.utils.extract_model). Not all of the module's; in the order of calls.
std::vector<SignatureParameter> mentionedParameters(const Graph& graph);
// The own names of signatureParameters.
std::set<std::string> signatureParameterNames(const Graph& graph);
// Likewise; without those that the module does not keep in its state (persistent=False), if they are not
// wanted.
std::vector<SignatureParameter> signatureBuffers(const Graph& graph, bool persistent_only = false);

// The module's inputs, by the names under which calls mention them: the graph's may be others
// (torch.onnx.export's input_names). Empty where the file does not say.
std::vector<std::string> signatureInputs(const Graph& graph);
// The module's results, by the names of the calls that give them; empty where the file does not say.
std::vector<std::string> signatureOutputs(const Graph& graph);

// Buffers that the module's forward pass changes, by name.
std::vector<std::string> mutatedBuffers(const Graph& graph);

// The call that the node is part of; one of several nodes, as a rule.
struct ExportedCall {
  std::string name;                    // "linear_3", unique; "" where the file does not say
  std::string module;                  // the innermost one that calls it: "head"; "" for the outermost
  std::string function;                // "torch.ops.aten.linear.default"
  std::vector<std::string> arguments;  // names after a %, in order: "x", "p_fc_weight"
  std::string text;                    // of the arguments: "%x, %p_fc_weight, 0"
  int users = -1;  // calls that take what it gives, and 1 if the module returns it; -1: not said
};
ExportedCall exportedCall(const Node& node);
// The function has this in its name ("aten.linear"); false where the file does not say.
bool isCallOf(const ExportedCall& call, std::string_view function);
// "unsqueeze" of 'unsqueeze_13': names of calls are numbered by function, in their order. "getitem": one of
// the results of a call that has several.
std::string_view callKind(std::string_view name);
// All arguments as texts, in order: "%x, [1, 2], None, 0.1" -> "%x", "[1, 2]", "None", "0.1".
std::vector<std::string> argumentTexts(const ExportedCall& call);

// Some node says how it came about (its call, its module or its line of code): PyTorch's exporter wrote it.
bool hasMarkedNodes(const Graph& graph);

// The file says which of its weights are parameters: by a list of them, or by marks.
bool tellsParameters(const Graph& graph);

struct ModuleScope {
  std::string path;  // "transformer.h.0"; never empty: the whole model is no module of itself
  std::string type;  // "GPT2Block"; "" where the exporter says no types
};
// The modules around a node, outermost first; empty when the exporter says none. Where there are no marks,
// from names such as "/transformer/h.0/attn/MatMul" of the TorchScript exporter.
std::vector<ModuleScope> moduleScopes(const Node& node);

// Of the name of a node of the TorchScript exporter: "/decoder/block.0/q/MatMul" -> "decoder.block.0.q"; ""
// for a node of the outermost module. A container that is called itself is there twice:
// "/layers/layers.0/MatMul" is of layers.0.
std::string modulePath(const std::string& node);
// The outermost modules that two paths do not share, their common end left out: "t.layers.0" and "t.layers.1"
// of "t.layers.0.fc" and "t.layers.1.fc".
std::pair<std::string, std::string> differingModules(const std::string& a, const std::string& b);

// Code of its own that torch.export makes of a part of the module, such as what is computed under
// torch.no_grad() or autocast, and traces again.
struct TracedRegion {
  std::string name;  // "<eval_with_key>.36"; "" for a node of the module's own code, or not said
  bool numbers_arguments = false;  // the node's line of that code mentions an "arg4_1", as under autocast
};
TracedRegion tracedRegion(const Node& node);

// The line of the module's code that the node comes from; "" where the file does not say.
std::string lastLineOfCode(const Node& node);
// A line of code on the way from the module's forward() to the node's call.
struct CodeLine {
  std::string file;
  std::string code;
};
std::vector<CodeLine> linesOfCode(const Node& node);  // from forward() on

// Values, also such that are gone, that the exporter's optimizer computed this constant from.
std::vector<std::string> foldedFrom(const Value& value);
// A rule of the exporter's optimizer made the node ("FuseBatchNormIntoConv").
bool madeByRule(const Node& node, std::string_view rule);

}  // namespace pipeshard
