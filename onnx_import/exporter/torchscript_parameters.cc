#include "onnx_import/exporter/torchscript_parameters.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "ir/graph/exporter_marks.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/initializer_role.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/exporter/exporter_traps.h"
#include "onnx_import/exporter/recurrent_parameters.h"
#include "onnx_import/format/constant_nodes.h"
#include "onnx_import/format/equal_numbers.h"
#include "onnx_import/prepare/splice.h"

namespace pipeshard {
namespace {

constexpr std::string_view kAnonymous = "onnx::";
constexpr std::string_view kBias = ".bias", kWeight = ".weight";
constexpr std::string_view kProjectionBias = ".in_proj_bias";  // of nn.MultiheadAttention

// "MatMul_1" of "/attn/MatMul_1": the operator and, from the second of a call on, its number.
std::string operatorName(const Node& node) { return node.name.substr(node.name.rfind('/') + 1); }

class TorchScript {
 public:
  TorchScript(Graph& graph, ModuleParameters& found) : graph_(graph), found_(found), equal_(graph) {
    for (const Value& value : graph.values) names_.insert(value.name);
    for (const Node& node : graph.nodes) paths_.insert(modulePath(node.name));
  }

  void run() {
    markConstants();
    separate();
    markNumbersOfModule();
    findBiases();
    unite();
    for (Node& node : graph_.nodes) {
      if (node.is("Conv") || node.is("ConvTranspose") || node.is("Gemm")) nameFolded(node);
    }
    const std::vector<ValueId> tables = embeddings();
    std::vector<Node> nodes;
    for (Node& node : graph_.nodes) {
      if (node.is("MatMul") || isProductWithBias(node)) restoreLinear(node, tables, nodes);
      nodes.push_back(std::move(node));
    }
    graph_.nodes = std::move(nodes);
    findShared();
    nameShared();
    nameComputed();
  }

 private:
  bool isFloatWeight(ValueId id) const {
    return id.valid() && graph_.initializers.contains(id) && isFloatingPoint(graph_.dataType(id)) &&
           !isMade(graph_.value(id));
  }
  bool isAnonymous(ValueId id) const { return graph_.value(id).name.starts_with(kAnonymous); }

  bool isOutput(ValueId id) const {
    return std::find(graph_.outputs.begin(), graph_.outputs.end(), id) != graph_.outputs.end();
  }

  // Identity of a parameter under another parameter's name: 'Identity_3', which is of no module. (A clone in
  // a step that was traced, whose parameters are no module's either, has another name.)
  void separate() {
    std::erase_if(graph_.nodes, [&](const Node& node) {
      if (!node.is("Identity") || !isFloatWeight(node.inputs[0])) return false;
      if (!node.name.starts_with("Identity") || isOutput(node.outputs[0])) return false;
      const std::string& name = graph_.value(node.outputs[0]).name;
      const Initializer content = graph_.initializers.at(node.inputs[0]);
      const Value& source = graph_.value(node.inputs[0]);
      graph_.value(node.outputs[0]).data_type = source.data_type;
      graph_.value(node.outputs[0]).shape = source.shape;
      graph_.initializers.emplace(node.outputs[0], content);
      equal_.add(node.outputs[0], node.inputs[0]);
      ++(namesBuffer(name) ? found_.statistics : found_.separated);
      return true;
    });
  }

  // The exporter's copies of a weight (transposed, folded) have no name, one for each call that reads it, and
  // it merges them as any that are equal: apart again, they would be trained apart. One weight are those that
  // calls of one module read in the same place, and those of modules that share one.
  void unite() {
    std::vector<std::string> captured;
    for (const Node& node : graph_.nodes) collectCaptures(node, captured);
    std::map<std::string, std::vector<ValueId>> by_place;
    std::map<ValueId, ValueId> one;  // by a copy
    for (const Node& node : graph_.nodes) {
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const ValueId id = node.inputs[i];
        if (!isFloatWeight(id) || !isAnonymous(id) || isOutput(id) || one.contains(id)) continue;
        if (std::ranges::find(captured, graph_.value(id).name) != captured.end()) continue;
        std::string place = fmt::format("{}/{}:{}", calledModule(node), operatorName(node), i);
        // Biases of zeros are equal in all layers: they are one where the weights are.
        if (i > 1 && isRecurrence(node) && node.inputs[1].valid())
          place += fmt::format(" of {}", resolved(one, node.inputs[1]).index());
        std::vector<ValueId>& known = by_place[place];
        const auto same = std::ranges::find_if(known, [&](ValueId k) { return equal_.are(k, id); });
        const ValueId weight = same == known.end() ? id : resolved(one, *same);
        if (weight != id) {
          one[id] = weight;
          continue;
        }
        known.push_back(id);
        if (reader_.try_emplace(id, &node).second) read_.push_back(id);
      }
    }
    std::erase_if(read_, [&](ValueId id) { return one.contains(id); });
    uniteModules(one);
    for (Node& node : graph_.nodes) {
      for (ValueId& input : node.inputs) input = resolved(one, input);
    }
    for (const auto& [copy, weight] : one) {
      if (equal_.isCopy(copy)) --found_.separated;
      graph_.initializers.erase(copy);
    }
  }

  static ValueId resolved(const std::map<ValueId, ValueId>& one, ValueId id) {
    for (auto copy = one.find(id); copy != one.end(); copy = one.find(id)) id = copy->second;
    return id;
  }

  void uniteModules(std::map<ValueId, ValueId>& one) {
    std::map<ValueId, std::vector<ValueId>> apart;  // by their source
    for (ValueId id : read_) {
      const Node& node = *reader_.at(id);
      const bool recurrent = isRecurrence(node) && node.inputs.size() > 1 && node.inputs[1] == id;
      const bool layer =
          recurrent || node.is("MatMul") || node.is("Gemm") || node.is("Conv") || node.is("ConvTranspose");
      if (!layer || graph_.shape(id).size() < 2) continue;
      std::vector<ValueId>& others = apart[equal_.sourceOf(id)];
      std::string untold;
      for (ValueId other : others) {
        const Kinship kinship = recurrent ? Kinship::kUntold : kinshipOf(other, id);
        const std::string both = fmt::format("'{}' and '{}'", reader_.at(other)->name, node.name);
        if (kinship == Kinship::kUntold && untold.empty()) untold = both;
        if (kinship != Kinship::kOne) continue;
        one[id] = other;
        found_.taken_as_one.push_back(both);
        shared_.emplace_back(other, matrixName(node));
        break;
      }
      if (one.contains(id)) continue;
      if (!untold.empty()) found_.untold.push_back(untold);
      others.push_back(id);
    }
  }

  enum class Kinship { kOne, kApart, kUntold };

  // Of two weights without names and with equal numbers, that are not of calls of one module. A copy of a
  // module has copies of all that it has: where a parameter with a name is a copy, too, the weights are two;
  // where nothing is, and other things differ, they are one that the modules share.
  Kinship kinshipOf(ValueId a, ValueId b) {
    if (!equal_.areDrawn(a)) return Kinship::kUntold;
    const Node &first = *reader_.at(a), &second = *reader_.at(b);
    const auto bias = bias_of_.find(first.outputs[0]), other_bias = bias_of_.find(second.outputs[0]);
    if (bias != bias_of_.end() && other_bias != bias_of_.end()) {
      if (bias->second == other_bias->second) return Kinship::kOne;
      if (equal_.are(bias->second, other_bias->second) && equal_.areDrawn(bias->second))
        return Kinship::kApart;
    }
    const std::string path = calledModule(first), other_path = calledModule(second);
    if (path == other_path) return Kinship::kOne;
    const auto [module, other_module] = differingModules(path, other_path);
    const std::map<std::string, ValueId>&has = weightsOf(module), &other_has = weightsOf(other_module);
    bool differs = has.size() != other_has.size();
    for (const auto& [name, id] : has) {
      const auto other = other_has.find(name);
      if (other == other_has.end() || !equal_.are(id, other->second))
        differs = true;
      else if (id != other->second && !isAnonymous(id) && equal_.areDrawn(id))
        return Kinship::kApart;
    }
    return differs ? Kinship::kOne : Kinship::kUntold;
  }

  // By their names in the module; those without, by the nodes that read them.
  const std::map<std::string, ValueId>& weightsOf(const std::string& module) {
    const auto [found, is_new] = weights_of_.try_emplace(module);
    if (!is_new) return found->second;
    std::map<std::string, ValueId>& weights = found->second;
    const std::string start = module.empty() ? "" : module + ".";
    const auto add = [&](const std::string& name, ValueId id) {
      if (name.starts_with(start)) weights.emplace(name.substr(start.size()), id);
    };
    for (const auto& [id, initializer] : graph_.initializers) {
      if (isFloatWeight(id) && !isAnonymous(id)) add(graph_.value(id).name, id);
    }
    for (ValueId id : read_) {
      const Node& node = *reader_.at(id);
      add(fmt::format("{}./{}", calledModule(node), operatorName(node)), id);
    }
    return weights;
  }

  // Of the node: modulePath, without the number of a call from the module's second on: "/f_1/MatMul" is of
  // 'f' if that is called as well and the file has no parameter of an 'f_1'.
  std::string calledModule(const Node& node) const {
    const std::string path = modulePath(node.name);
    const size_t last = path.find_last_not_of("0123456789");
    if (last == std::string::npos || last + 1 == path.size() || last == 0 || path[last] != '_') return path;
    const std::string module = path.substr(0, last);
    const auto own = names_.lower_bound(path + ".");
    const bool has_parameters = own != names_.end() && own->starts_with(path + ".");
    return paths_.contains(module) && !has_parameters ? module : path;
  }

  // What a Linear (one product by a Transpose, and a bias) or an Embedding reads of others is its own, too.
  void findShared() {
    std::map<ValueId, const Node*> turned;
    std::map<std::string, std::set<std::string>> operators;  // by the paths of modules
    for (const Node& node : graph_.nodes) {
      if (node.is("Transpose")) turned[node.outputs[0]] = &node;
      std::set<std::string>& its = operators[modulePath(node.name)];
      if (!node.is("Constant") && !its.insert(node.op_type).second) its.insert("another");
    }
    const std::set<std::string> linear{"Add", "Gemm", "MatMul", "Transpose"}, embedding{"Gather", "Mul"};
    for (const Node& node : graph_.nodes) {
      const std::string path = modulePath(node.name);
      const auto& its = operators[path];
      const bool has_product = its.contains("MatMul") || its.contains("Gemm");
      if (!std::ranges::includes(has_product ? linear : embedding, its)) continue;
      if (!has_product && !node.is("Gather")) continue;
      for (const ValueId input : node.inputs) {
        const auto by = turned.find(input);
        const bool is_turned = by != turned.end() && modulePath(by->second->name) == path;
        share(calledModule(node), is_turned ? by->second->inputs[0] : input);
      }
    }
  }

  void share(const std::string& path, ValueId id) {
    if (path.empty() || !isFloatWeight(id) || isAnonymous(id) || hasModules(path)) return;
    const std::string& own = graph_.value(id).name;
    if (own.starts_with(path + ".") || !(own.ends_with(kWeight) || own.ends_with(kBias))) return;
    shared_.emplace_back(id, path + own.substr(own.rfind('.')));
  }

  // Modules that share a weight have it under names of their own.
  void nameShared() {
    for (const auto& [id, name] : shared_) {
      if (isAnonymous(id) || name.empty() || !names_.insert(name).second) continue;
      addOtherName(graph_.value(id), name);
      found_.other_names.push_back({name, graph_.value(id).name});
    }
  }

  // Parameters are initializers: what a Constant holds is none, also where a layer reads it (the scale of a
  // normalisation without parameters). Unless a tool has made it of an initializer: it is no number and
  // not called as this exporter calls constants, or a product or convolution reads it.
  void markConstants() {
    std::set<ValueId> factors;
    for (const Node& node : graph_.nodes) {
      if (node.is("Constant")) markMade(graph_.value(node.outputs[0]));
      if (node.op_type.ends_with("Normalization")) continue;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (operatorFacts(node).layer_weights.contains(i)) factors.insert(node.inputs[i]);
      }
    }
    for (const auto& [id, initializer] : graph_.initializers) {
      Value& value = graph_.value(id);
      const bool is_computed = value.name.starts_with('/');
      const bool is_anonymous =
          isAnonymous(id) || value.name.find_first_not_of("0123456789") == std::string::npos;
      const bool is_number = elementCount(*value.shape) == 1 && !namesParameter(value.name);
      if (!isOfConstantNode(value)) continue;
      if (is_computed || ((is_anonymous || is_number) && !factors.contains(id))) markMade(value);
    }
  }

  // The exporter calls its own numbers '/attn/Constant_output_0' or 'onnx::Mul_12': one by a plain name is
  // the module's, whether in an inner module ('attn.temp') or the outermost ('temp'). Names of nodes tell
  // that no other exporter has written it.
  void markNumbersOfModule() {
    const auto isNamed = [&](std::string_view with) {
      return std::ranges::any_of(graph_.nodes, [&](const Node& n) { return n.name.starts_with(with); });
    };
    if (!isNamed("/") || isNamed("node_") || isOfRuntimeOptimizer(graph_)) return;
    for (const auto& [id, initializer] : graph_.initializers) {
      Value& value = graph_.value(id);
      const std::string& name = value.name;
      const bool is_plain = !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
                            std::ranges::all_of(name, [](unsigned char c) {
                              return std::isalnum(c) != 0 || c == '_' || c == '.';
                            });
      const bool is_own = is_plain && !isNameless(id) && !namesConstant(name) && !namesBuffer(name);
      if (is_own && elementCount(*value.shape) == 1 && isFloatWeight(id) && !isOfConstantNode(value))
        markModuleTensor(value);
    }
  }

  // What onnxsim makes of a MatMul and the Add behind it. (The exporter's own Gemm has the weight as the
  // module.)
  static bool isProductWithBias(const Node& node) {
    return node.is("Gemm") && node.intAttribute("transB", 0) == 0;
  }

  // The exporter's "onnx::Conv_196", or onnxsim's "_v_51".
  bool isNameless(ValueId id) const { return isAnonymous(id) || graph_.value(id).name.starts_with("_v_"); }

  // A normalisation that is folded in gives the convolution a bias, too. A tool may leave the weight's name;
  // then the result is the normalisation's yet: '/bn1/BatchNormalization_output_0', or an element of what
  // torch.export's call gives, 'getitem_3'.
  bool hasNormalization(const Node& node) const {
    const std::string& result = graph_.value(node.outputs[0]).name;
    const bool gets_bias = !node.is("Gemm") && node.inputs.size() > 2 && isFloatWeight(node.inputs[2]) &&
                           isNameless(node.inputs[2]);
    return gets_bias || callKind(result) == "getitem" || madeByRule(node, "FuseBatchNorm") ||
           result.find("/BatchNormalization_output_") != std::string::npos;
  }

  void nameFolded(const Node& node) {
    if (node.inputs.size() < 2 || !isFloatWeight(node.inputs[1])) return;
    const bool normalized = hasNormalization(node);
    if (!normalized && (node.is("Gemm") || !isNameless(node.inputs[1]))) return;
    const std::string path = modulePath(node.name), layer = node.is("Gemm") ? "a Linear" : "a convolution";
    const std::string& name = graph_.value(node.inputs[1]).name;
    if (std::ranges::find(found_.lost, name, &LostParameter::name) != found_.lost.end()) return;
    found_.lost.push_back(
        {name, fmt::format("the weight of {}, {}", path.empty() ? layer : "'" + path + "'",
                           normalized ? "into which the batch normalization behind it is folded"
                                      : "computed by the exporter from the module's parameters: a weight "
                                        "normalization, a transposition, ..")});
  }

  std::vector<ValueId> embeddings() const {
    std::vector<ValueId> tables;
    for (const Node& node : graph_.nodes) {
      if (node.is("Gather") && isFloatWeight(node.inputs[0]) && !isAnonymous(node.inputs[0]) &&
          std::find(tables.begin(), tables.end(), node.inputs[0]) == tables.end())
        tables.push_back(node.inputs[0]);
    }
    return tables;
  }

  // Of the matrix of a product: its bias, which is added next, has a name. A Linear without one is called as
  // the product's module; a module that has others in it is no Linear, so that its matrix may be called
  // anything. "": not told.
  std::string matrixName(const Node& product) const {
    const std::string path = calledModule(product);
    if (const auto found = bias_of_.find(product.outputs[0]); found != bias_of_.end()) {
      const std::string& bias = graph_.value(found->second).name;
      // One of a module around the product's is added behind it there, or tied to the product's own.
      if (bias.ends_with(kBias) && !path.starts_with(bias.substr(0, bias.size() + 1 - kBias.size())))
        return bias.substr(0, bias.size() - kBias.size()) + std::string(kWeight);
      if (bias == path + std::string(kProjectionBias)) return path + ".in_proj_weight";
    }
    return path.empty() || hasModules(path) ? "" : path + ".weight";
  }

  // "enc.self_attn" has a parameter 'enc.self_attn.out_proj.weight'.
  bool hasModules(const std::string& path) const {
    return std::any_of(graph_.initializers.begin(), graph_.initializers.end(), [&](const auto& entry) {
      const std::string& name = graph_.value(entry.first).name;
      return name.starts_with(path + ".") && name.find('.', path.size() + 1) != std::string::npos;
    });
  }

  void findBiases() {
    const auto add = [&](ValueId product, ValueId bias) {
      if (!isFloatWeight(bias)) return;
      const std::string& name = graph_.value(bias).name;
      if (name.ends_with(kBias) || name.ends_with(kProjectionBias)) bias_of_[product] = bias;
    };
    for (const Node& node : graph_.nodes) {
      if (node.is("Add") && node.inputs.size() == 2) {
        for (size_t i = 0; i < 2; ++i) add(node.inputs[1 - i], node.inputs[i]);
      }
      if (isProductWithBias(node) && node.inputs.size() == 3) add(node.outputs[0], node.inputs[2]);
    }
  }

  void restoreLinear(Node& node, const std::vector<ValueId>& tables, std::vector<Node>& nodes) {
    if (node.inputs.size() < 2 || !isFloatWeight(node.inputs[1])) return;
    const ValueId weight = node.inputs[1];
    for (ValueId table : tables) {
      if (!equal_.areTransposed(weight, table)) continue;
      if (!graph_.value(table).name.starts_with(calledModule(node) + "."))
        shared_.emplace_back(table, matrixName(node));  // the Linear of another module, which has it, too
      return tie(node, weight, table, nodes);
    }
    if (!isAnonymous(weight)) return;
    if (!factors_.insert(weight).second) return;
    const std::string name = matrixName(node);
    // The module has read it on two axes, too, where a Gemm has it as the module.
    const ValueId own = name.empty() ? ValueId() : findValue(graph_, name);
    if (isFloatWeight(own) && !isStoredTransposed(graph_.value(own)) && equal_.areTransposed(weight, own))
      return tie(node, weight, own, nodes);
    if (isOfPlainForm(node, weight, name, nodes)) return;
    if (name.empty() || !names_.insert(name).second) {
      const std::string path = modulePath(node.name);
      found_.nameless.push_back(graph_.value(weight).name + (path.empty() ? "" : " (of '" + path + "')"));
      return;
    }
    graph_.value(weight).name = name;
    markStoredTransposed(graph_.value(weight));
    ++found_.transposed;
  }

  // The module reads a matrix both transposed (x @ A.T) and as it is (B @ A): the file has it as 'A' and as
  // the copy `weight`. A bias tells another name of the copy, and a call of another module likely does. Ties
  // it, or refuses it where equal numbers do not tell (zeros).
  bool isOfPlainForm(Node& node, ValueId weight, const std::string& name, std::vector<Node>& nodes) {
    if (bias_of_.contains(node.outputs[0])) return false;
    const auto plain = std::ranges::find_if(graph_.initializers, [&](const auto& entry) {
      const ValueId id = entry.first;
      return isFloatWeight(id) && !isAnonymous(id) && !isStoredTransposed(graph_.value(id)) &&
             equal_.areTransposed(weight, id);
    });
    if (plain == graph_.initializers.end()) return false;
    const std::string& own = graph_.value(plain->first).name;
    const std::string module = own.substr(0, own.rfind('.'));
    if (!name.empty() && module != calledModule(node)) {
      if (equal_.areDrawn(weight)) found_.untold.push_back(fmt::format("'{}' and '{}'", node.name, own));
      return false;
    }
    if (!equal_.areDrawn(weight)) {
      found_.lost.push_back({graph_.value(weight).name,
                             fmt::format("it may be '{}', transposed, as their numbers are equal", own)});
      return true;
    }
    tie(node, weight, plain->first, nodes);
    return true;
  }

  // What else has no name was computed from parameters (rows of a table), or from constants: training it may
  // train something else than the module has. Not so of recurrent layers, whose numbers are only moved.
  void nameComputed() {
    const std::vector<InitializerRole> roles = initializerRoles(graph_);
    const std::map<ValueId, std::string> recurrent = recurrentWeights(graph_);
    for (const auto& [id, initializer] : graph_.initializers) {
      const bool weight = roles[id.index()] == InitializerRole::kParameter && isAnonymous(id);
      if (!weight || factors_.contains(id) || elementCount(graph_.shape(id)) == 1 || isFilter(id)) continue;
      const std::string& name = graph_.value(id).name;
      const auto layer = recurrent.find(id);
      if (layer == recurrent.end())
        found_.lost.push_back({name, "computed by the exporter, from parameters or constants"});
      else
        found_.recurrent.push_back(name + (layer->second.empty() ? "" : " (of '" + layer->second + "')"));
    }
  }

  // nameFolded has named it.
  bool isFilter(ValueId id) const {
    return std::any_of(graph_.nodes.begin(), graph_.nodes.end(), [&](const Node& node) {
      const auto at = std::find(node.inputs.begin(), node.inputs.end(), id);
      return (node.is("Conv") || node.is("ConvTranspose")) && at != node.inputs.end();
    });
  }

  // The copy becomes a Transpose of the table.
  void tie(Node& node, ValueId weight, ValueId table, std::vector<Node>& nodes) {
    if (tied_.insert(weight).second) {
      Node transpose;
      transpose.op_type = "Transpose";
      transpose.opset_version = node.opset_version;
      transpose.name = graph_.value(weight).name + "/tied";
      transpose.inputs = {table};
      transpose.outputs = {weight};
      transpose.attributes = {{"perm", std::vector<int64_t>{1, 0}}};
      graph_.initializers.erase(weight);
      nodes.push_back(std::move(transpose));
      found_.tied.push_back(graph_.value(table).name);
    }
  }

  Graph& graph_;
  ModuleParameters& found_;
  EqualNumbers equal_;
  std::set<std::string> names_;
  std::set<std::string> paths_;            // of modules that have nodes
  std::vector<ValueId> read_;              // weights without a name, in the order of their nodes
  std::map<ValueId, const Node*> reader_;  // of these: the first
  std::map<std::string, std::map<std::string, ValueId>> weights_of_;  // modules
  std::vector<std::pair<ValueId, std::string>> shared_;  // by several modules: another's name for it
  std::set<ValueId> tied_;
  std::set<ValueId> factors_;           // without a name: of products
  std::map<ValueId, ValueId> bias_of_;  // a product: the bias that is added to it
};

}  // namespace

bool isTorchScript(const Graph& graph) {
  return graph.producer_name == "pytorch" && signatureParameters(graph).empty() &&
         mentionedParameters(graph).empty();
}

void restoreTorchScript(Graph& graph, ModuleParameters& found) { TorchScript(graph, found).run(); }

}  // namespace pipeshard
