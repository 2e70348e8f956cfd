#include "onnx_import/exporter/module_parameters.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "ir/graph/exporter_marks.h"
#include "ir/graph/stopped_gradient.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/exporter/converter_traps.h"
#include "onnx_import/exporter/folded_parameters.h"
#include "onnx_import/exporter/parameter_copies.h"
#include "onnx_import/exporter/running_statistics.h"
#include "onnx_import/exporter/torchscript_parameters.h"
#include "onnx_import/prepare/splice.h"

namespace pipeshard {
namespace {

// What a call of the module became: its nodes in order, and the floating-point initializers that they read.
struct Call {
  ExportedCall exported;
  std::vector<size_t> nodes;
  std::vector<ValueId> weights;
};

// An embedding with a padding_idx.
struct Padded {
  std::string name;  // of the table
  int64_t row = 0;
  std::string call;
};

// Goes through the calls in order. What a call mentions is compared with what its nodes read, in three steps:
// parameters that are there under their names; constants that were folded from one that is mentioned; and
// what is left over on both sides, which is taken in order, as calls list weight before bias and operators do
// likewise. What the last step gives is a parameter that was merged with another of equal content.
class Restorer {
 public:
  explicit Restorer(Graph& graph) : graph_(graph) {}

  ModuleParameters run() {
    std::vector<SignatureParameter> signature = signatureParameters(graph_);
    if (signature.empty()) signature = mentionedParameters(graph_);
    result_.known = !signature.empty();
    if (!result_.known) return std::move(result_);
    for (const SignatureParameter& parameter : signature) name_of_[parameter.argument] = parameter.name;
    for (const auto& [id, initializer] : graph_.initializers) {
      if (isMarkedParameter(graph_.value(id))) parameter_[graph_.value(id).name] = id;
    }
    for (const Value& value : graph_.values) names_.insert(value.name);
    for (const Node& node : graph_.nodes) collectCaptures(node, captured_);
    const std::vector<Call> all = calls();
    calls_are_gone_ = mentionsOthers(all);
    for (const Call& call : all) restore(call);
    insertTransposes();
    for (const Padded& padded : padded_) keepPaddingRow(padded);
    for (const SignatureParameter& parameter : signature) {
      if (!parameter_.contains(parameter.name)) explain(parameter);
    }
    listOldCopies();
    judgeUnread();
    return std::move(result_);
  }

 private:
  std::vector<Call> calls() const {
    std::vector<Call> calls;
    std::map<std::string, size_t> known;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      ExportedCall exported = exportedCall(graph_.nodes[n]);
      if (exported.name.empty()) continue;
      const auto [found, is_new] = known.try_emplace(exported.name, calls.size());
      if (is_new) calls.push_back({std::move(exported), {}, {}});
      Call& call = calls[found->second];
      call.nodes.push_back(n);
      for (ValueId input : graph_.nodes[n].inputs) {
        const bool weight =
            input.valid() && graph_.initializers.contains(input) && isFloatingPoint(graph_.dataType(input));
        if (weight && std::find(call.weights.begin(), call.weights.end(), input) == call.weights.end())
          call.weights.push_back(input);
      }
    }
    return calls;
  }

  // Some call mentions what no call, input, parameter or constant of the file is: calls are missing. The
  // exporter leaves out of a concatenation what is empty (transformers' caches of keys and values, at first),
  // and the call that makes it: no parameter is.
  bool mentionsOthers(const std::vector<Call>& calls) const {
    std::set<std::string> known;
    for (const Value& value : graph_.values) known.insert(value.name);
    for (const Call& call : calls) known.insert(call.exported.name);
    for (std::string& name : signatureInputs(graph_)) known.insert(std::move(name));
    const auto isModules = [](const std::string& name) {  // parameters, buffers, constants; sizes
      return name.starts_with("p_") || name.starts_with("b_") || name.starts_with("c_") ||
             name.starts_with("sym_");
    };
    return std::any_of(calls.begin(), calls.end(), [&](const Call& call) {
      if (isCallOf(call.exported, "aten.cat.")) return false;
      return std::any_of(call.exported.arguments.begin(), call.exported.arguments.end(),
                         [&](const std::string& name) { return !known.contains(name) && !isModules(name); });
    });
  }

  void restore(const Call& call) {
    std::vector<std::string> mentioned;  // that are not found yet, in order
    for (const std::string& argument : call.exported.arguments) {
      const auto found = name_of_.find(argument);
      if (found == name_of_.end()) continue;
      read_.insert(found->second);
      noteOtherName(call.exported.module, found->second);
      if (std::find(mentioned.begin(), mentioned.end(), found->second) == mentioned.end())
        mentioned.push_back(found->second);
    }
    if (const auto row = paddingRow(call.exported); row && !mentioned.empty())
      padded_.push_back({mentioned.front(), *row, call.exported.name});
    std::vector<ValueId> weights = call.weights;
    const auto take = [&](const std::string& name, ValueId id) {
      std::erase(weights, id);
      std::erase(mentioned, name);
    };
    for (const std::string& name : std::vector<std::string>(mentioned)) {
      const auto found = parameter_.find(name);
      if (found != parameter_.end() &&
          std::find(weights.begin(), weights.end(), found->second) != weights.end())
        take(name, found->second);
    }
    for (ValueId id : std::vector<ValueId>(weights)) {
      const std::vector<std::string> sources = foldedFrom(graph_.value(id));
      if (sources.size() != 1 ||
          std::find(mentioned.begin(), mentioned.end(), sources[0]) == mentioned.end() ||
          !isTransposedWeight(call, id))
        continue;
      takeTransposed(call, sources[0], id);
      take(sources[0], id);
    }
    std::erase_if(weights, [&](ValueId id) { return !isSomebodys(id); });
    if (weights.empty() && mentioned.size() == 1) restoreBias(call, mentioned[0]);
    if (weights.size() != mentioned.size() || (weights.size() > 1 && !listsWeightsInOrder(call.exported)))
      return;
    for (size_t i = 0; i < weights.size(); ++i) separate(call, mentioned[i], weights[i]);
  }

  // As the operators do that it becomes: weight, bias. (Not addmm, which lists the bias first.)
  static bool listsWeightsInOrder(const ExportedCall& call) {
    return isCallOf(call, "_norm") || isCallOf(call, "aten.linear") || isCallOf(call, "aten.conv");
  }

  // Its name is free: another value may have it, as where the exporter has put other numbers in its place.
  bool canClaim(const std::string& name) const { return !names_.contains(name); }
  // A subgraph reads the value by its name.
  bool isCaptured(ValueId id) const {
    return std::find(captured_.begin(), captured_.end(), graph_.value(id).name) != captured_.end();
  }

  // embedding(%weight, %indices, 0)
  static std::optional<int64_t> paddingRow(const ExportedCall& call) {
    constexpr size_t kPaddingRow = 2;
    if (!isCallOf(call, "aten.embedding.")) return std::nullopt;
    const std::vector<std::string> arguments = argumentTexts(call);
    if (arguments.size() <= kPaddingRow) return std::nullopt;
    const std::string& digits = arguments[kPaddingRow];
    const bool number =
        !digits.empty() && digits.size() < 18 &&
        std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isdigit(c); });
    return number ? std::optional(std::stoll(digits)) : std::nullopt;
  }

  // The right factor of the products of a Linear, and nothing else.
  bool isTransposedWeight(const Call& call, ValueId id) const {
    if (!isCallOf(call.exported, "aten.linear") || graph_.value(id).shape.value_or(Shape()).size() != 2)
      return false;
    return std::all_of(call.nodes.begin(), call.nodes.end(), [&](size_t n) {
      const Node& node = graph_.nodes[n];
      const auto at = std::find(node.inputs.begin(), node.inputs.end(), id);
      return at == node.inputs.end() || (node.is("MatMul") && at - node.inputs.begin() == 1);
    });
  }

  void takeTransposed(const Call& call, const std::string& name, ValueId id) {
    const auto found = parameter_.find(name);
    if (found == parameter_.end()) {
      if (!canClaim(name) || isCaptured(id)) return;
      claim(name, id, true);
      ++result_.transposed;
    } else if (isStoredTransposed(found->second)) {  // folded more than once
      replace(call, id, found->second);
    } else {
      transposes_[id] = found->second;
    }
  }

  bool isStoredTransposed(ValueId id) const { return pipeshard::isStoredTransposed(graph_.value(id)); }

  // A parameter, or folded from one alone.
  bool isSomebodys(ValueId id) const {
    const Value& value = graph_.value(id);
    if (isMarkedParameter(value)) return true;
    const std::vector<std::string> sources = foldedFrom(value);
    return sources.size() == 1 && isParameterName(sources[0]);
  }
  bool isParameterName(const std::string& name) const {
    return std::any_of(name_of_.begin(), name_of_.end(),
                       [&](const auto& entry) { return entry.second == name; });
  }

  void separate(const Call& call, const std::string& name, ValueId merged) {
    const bool transposed = !isMarkedParameter(graph_.value(merged)) || isStoredTransposed(merged);
    if (transposed && !isTransposedWeight(call, merged)) return;
    ValueId own = merged;
    if (const auto found = parameter_.find(name); found != parameter_.end()) {
      own = found->second;
    } else if (!canClaim(name)) {
      return;
    } else {
      own = GraphBuilder(graph_).addValue(name, graph_.dataType(merged), graph_.shape(merged));
      graph_.initializers[own] = graph_.initializers.at(merged);
      claim(name, own, transposed);
      ++result_.separated;
    }
    replace(call, merged, own);
  }

  void claim(const std::string& name, ValueId id, bool transposed) {
    Value& value = graph_.value(id);
    value.name = name;
    names_.insert(name);
    setExportedKind(value, "PARAMETER");
    if (transposed) markStoredTransposed(value);
    parameter_[name] = id;
  }

  void replace(const Call& call, ValueId from, ValueId to) {
    for (size_t n : call.nodes) {
      std::vector<ValueId>& inputs = graph_.nodes[n].inputs;
      std::replace(inputs.begin(), inputs.end(), from, to);
    }
  }

  // Of a product or convolution whose bias was zero, and so was left out.
  void restoreBias(const Call& call, const std::string& name) {
    for (size_t n : call.nodes) {
      Node& node = graph_.nodes[n];
      if (!madeByRule(node, "RemoveOptionalBias") || node.inputs.size() != 2 || !canClaim(name)) continue;
      const std::optional<Shape>& weight = graph_.value(node.inputs[1]).shape;
      if (!weight || weight->size() < 2) continue;
      const bool by_rows = node.is("Conv") || (node.is("Gemm") && node.intAttribute("transB", 0) == 1);
      if (!by_rows && !node.is("Gemm")) continue;
      const Shape shape = {by_rows ? weight->at(0) : weight->at(1)};
      const DataType type = graph_.dataType(node.inputs[1]);
      Constant zeros{type, shape, std::vector<std::byte>(byteCount(type, shape))};
      const ValueId bias = GraphBuilder(graph_).addConstant(name, std::move(zeros));
      claim(name, bias, false);
      ++result_.zero_biases;
      graph_.nodes[n].inputs.push_back(bias);
      return;
    }
  }

  // Before the first node that reads the copy.
  void insertTransposes() {
    std::vector<Node> nodes;
    std::map<ValueId, ValueId> made;  // by the copy
    for (Node& node : graph_.nodes) {
      for (ValueId& input : node.inputs) {
        const auto copy = input.valid() ? transposes_.find(input) : transposes_.end();
        if (copy == transposes_.end() || isCaptured(input)) continue;
        ValueId& transposed = made[input];
        if (!transposed.valid()) nodes.push_back(transposeOf(copy->second, input, node, transposed));
        input = transposed;
      }
      nodes.push_back(std::move(node));
    }
    graph_.nodes = std::move(nodes);
    for (const auto& [copy, transposed] : made) graph_.initializers.erase(copy);
  }

  Node transposeOf(ValueId parameter, ValueId copy, const Node& reader, ValueId& transposed) {
    const Shape shape = graph_.shape(copy);
    transposed = GraphBuilder(graph_).addValue(graph_.value(parameter).name + "_transposed",
                                               graph_.dataType(copy), shape);
    Node node;
    node.op_type = "Transpose";
    node.opset_version = reader.opset_version;
    node.inputs = {parameter};
    node.outputs = {transposed};
    node.attributes["perm"] = std::vector<int64_t>{1, 0};
    node.name = reader.name + "_transposed";
    node.metadata = reader.metadata;
    return node;
  }

  // No gradient reaches the row by this lookup: where an index is that of the padding, the row comes as a
  // value that is detached. (What else reads the table, as a tied head, may train the row.)
  void keepPaddingRow(const Padded& padded) {
    const auto table = parameter_.find(padded.name);
    const auto looksUp = [&](const Node& node) {
      return table != parameter_.end() && node.is("Gather") && node.intAttribute("axis", 0) == 0 &&
             node.inputs[0] == table->second && exportedCall(node).name == padded.call;
    };
    const auto gather = std::find_if(graph_.nodes.begin(), graph_.nodes.end(), looksUp);
    const Shape shape = gather != graph_.nodes.end() ? graph_.shape(table->second) : Shape();
    if (shape.size() != 2 || padded.row >= shape[0]) {
      result_.padded.push_back(padded.name);
      return;
    }
    GraphBuilder builder(graph_);
    const DataType type = graph_.dataType(table->second);
    const ValueId index = builder.addConstant("padding_idx", makeScalar(DataType::kInt64, padded.row));
    const ValueId last_axis = builder.addConstant("last_axis", makeConstant<int64_t>({1}, {-1}));
    const auto value = [&](DataType of) {
      const ValueId made = builder.addValue(padded.name + ".padding", of, {});
      graph_.value(made).shape.reset();
      return made;
    };
    const ValueId indices = gather->inputs[1], output = gather->outputs[0];
    const ValueId is_padding = value(DataType::kBool), by_row = value(DataType::kBool);
    const ValueId taken = value(type), detached = value(type);
    const size_t place = gather - graph_.nodes.begin();
    std::vector<Node> added(4, graph_.nodes[place]);
    graph_.nodes[place].outputs[0] = taken;
    const auto make = [&](Node& node, const char* op_type, std::vector<ValueId> inputs, ValueId made) {
      node.op_type = op_type;
      node.name += std::string("_") + op_type;
      node.inputs = std::move(inputs);
      node.outputs = {made};
      node.attributes.clear();
    };
    make(added[0], "Equal", {indices, index}, is_padding);
    make(added[1], "Unsqueeze", {is_padding, last_axis}, by_row);
    make(added[2], "Identity", {taken}, detached);
    stopGradientAt(added[2]);
    make(added[3], "Where", {by_row, detached, taken}, output);
    graph_.nodes.insert(graph_.nodes.begin() + place + 1, added.begin(), added.end());
  }

  void explain(const SignatureParameter& parameter) {
    for (const auto& [id, initializer] : graph_.initializers) {
      const std::vector<std::string> sources = foldedFrom(graph_.value(id));
      if (std::find(sources.begin(), sources.end(), parameter.name) == sources.end()) continue;
      result_.lost.push_back(
          {parameter.name, fmt::format("folded into the constant '{}'", graph_.value(id).name)});
      return;
    }
    const ValueId own = findValue(graph_, parameter.name);
    if (isNormalized(parameter, own)) {
      result_.lost.push_back({parameter.name,
                              "a batch normalisation is folded into it, or it into a convolution",
                              LostParameter::Instead::kNormalized});
    } else if (own.valid() && graph_.initializers.contains(own)) {
      result_.lost.push_back(
          {parameter.name,
           "the file has it without the exporter's mark, which a tool has dropped: it may hold other numbers",
           LostParameter::Instead::kUnmarked});
    } else if (own.valid()) {
      result_.lost.push_back({parameter.name, "computed in the file, or a Constant: no initializer"});
    } else if (read_.contains(parameter.name)) {
      result_.lost.push_back({parameter.name, "folded into other constants"});
    } else {
      result_.unread.push_back(parameter.name);
    }
  }

  // The exporter's optimizer has folded a batch normalisation where the parameter, or its name, is read.
  bool isNormalized(const SignatureParameter& parameter, ValueId own) const {
    return std::any_of(graph_.nodes.begin(), graph_.nodes.end(), [&](const Node& node) {
      if (!madeByRule(node, "FuseBatchNorm")) return false;
      const std::vector<std::string> arguments = exportedCall(node).arguments;
      return std::ranges::find(arguments, parameter.argument) != arguments.end() ||
             (own.valid() && std::ranges::find(node.inputs, own) != node.inputs.end());
    });
  }

  // What is computed of parameters that the file has, too, would stay as it is when they are trained.
  void listOldCopies() {
    for (const OldCopy& copy : oldCopies(graph_)) {
      if (std::ranges::find(result_.lost, copy.parameter, &LostParameter::name) == result_.lost.end())
        result_.lost.push_back(
            {copy.parameter, fmt::format("folded into the constant '{}', too", copy.constant)});
    }
  }

  // "fc", "weight" of "fc.weight"
  static std::pair<std::string, std::string> moduleAndLeaf(const std::string& name) {
    const size_t dot = name.rfind('.');
    if (dot == std::string::npos) return {"", name};
    return {name.substr(0, dot), name.substr(dot + 1)};
  }

  // A tied weight has several names, of which calls mention one. A call of the module "head" that mentions
  // "words.weight" tells that "head.weight" is another name of it.
  void noteOtherName(const std::string& module, const std::string& parameter) {
    const auto [owner, leaf] = moduleAndLeaf(parameter);
    if (!module.empty() && owner != module && !owner.starts_with(module + "."))
      other_names_.emplace(module + "." + leaf, parameter);
  }

  // A head has the bias of its tied Linear by a name of its own, too: "head.bias" is "head.decoder.bias".
  std::string innerName(const std::string& name) const {
    const auto [owner, leaf] = moduleAndLeaf(name);
    for (const auto& [other, tied] : other_names_) {
      const std::string inner = moduleAndLeaf(tied).first;
      if (!owner.empty() && moduleAndLeaf(inner).first == owner && read_.contains(inner + "." + leaf))
        return inner + "." + leaf;
    }
    return "";
  }

  // What is no other name of a parameter may have been read by a call that is gone.
  void judgeUnread() {
    std::vector<std::string> unread;
    for (std::string& name : result_.unread) {
      const auto found = other_names_.find(name);
      const std::string tied = found != other_names_.end() ? found->second : innerName(name);
      if (!tied.empty()) {
        result_.other_names.push_back({name, tied});
        if (const auto at = parameter_.find(tied); at != parameter_.end())
          addOtherName(graph_.value(at->second), name);
      } else if (calls_are_gone_) {
        result_.lost.push_back(
            {std::move(name),
             "no operator reads it: unused, or merged with an equal one, and what reads it, too"});
      } else {
        unread.push_back(std::move(name));
      }
    }
    result_.unread = std::move(unread);
  }

  Graph& graph_;
  ModuleParameters result_;
  std::map<std::string, std::string> name_of_;      // by argument
  std::map<std::string, ValueId> parameter_;        // by name
  std::set<std::string> read_;                      // mentioned by a call that is in the file
  std::map<std::string, std::string> other_names_;  // of tied parameters: the one that calls mention
  std::map<ValueId, ValueId> transposes_;           // by a transposed copy: the parameter
  std::set<std::string> names_;                     // of values
  std::vector<std::string> captured_;               // that subgraphs read
  std::vector<Padded> padded_;
  bool calls_are_gone_ = false;  // whose parameters cannot be known
};

// A file has no two values of one name: where the exporter keeps such a parameter, its file cannot be read.
void nameClashes(const Graph& graph, std::vector<LostParameter>& lost) {
  for (LostParameter& parameter : lost) {
    const auto made = std::ranges::find_if(graph.nodes, [&](const Node& node) {
      return std::ranges::any_of(node.outputs, [&](ValueId output) {
        return output.valid() && graph.value(output).name == parameter.name;
      });
    });
    if (made != graph.nodes.end())
      parameter.reason +=
          fmt::format("; it is called like what {} makes: rename it in the module", describeNode(*made));
  }
}

}  // namespace

ModuleParameters restoreParameters(Graph& graph) {
  if (!isTorchScript(graph)) {
    const GoneUses gone = goneUses(graph);
    const int statistics = separateStatistics(graph);
    const int unfolded = unfoldParameters(graph);
    ModuleParameters found = Restorer(graph).run();
    found.statistics = statistics;
    found.unfolded = unfolded;
    found.keras = isOfKeras(graph);
    for (LostParameter& parameter : parametersOf(graph, gone)) {
      if (std::ranges::find(found.lost, parameter.name, &LostParameter::name) == found.lost.end())
        found.lost.push_back(std::move(parameter));
    }
    nameClashes(graph, found.lost);
    return found;
  }
  ModuleParameters found;
  found.torchscript = true;
  found.keras = isOfKeras(graph);
  restoreTorchScript(graph, found);
  return found;
}

}  // namespace pipeshard
