#include "onnx_import/exporter/torchscript_parameters.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "ir/graph/exporter_marks.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/initializer_role.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/format/constant_nodes.h"
#include "onnx_import/format/initializer_bytes.h"

namespace pipeshard {
namespace {

constexpr std::string_view kAnonymous = "onnx::";
constexpr std::string_view kBias = ".bias";
constexpr std::string_view kProjectionBias = ".in_proj_bias";  // of nn.MultiheadAttention

// "/decoder/block.0/q/MatMul" -> "decoder.block.0.q"; "" for a node of the outermost module. A container that
// is called itself is there twice: "/layers/layers.0/MatMul" is of layers.0.
std::string modulePath(const std::string& node) {
  const size_t end = node.rfind('/');
  if (node.empty() || node.front() != '/' || end == 0) return "";
  std::string path, last;
  for (size_t start = 1; start < end;) {
    const size_t stop = std::min(node.find('/', start), end);
    const std::string part = node.substr(start, stop - start);
    if (!last.empty() && part.starts_with(last + ".")) path.resize(path.size() - last.size());
    if (!path.empty() && path.back() != '.') path += '.';
    path += part;
    last = part;
    start = stop + 1;
  }
  return path;
}

class TorchScript {
 public:
  TorchScript(Graph& graph, ModuleParameters& found) : graph_(graph), found_(found) {
    for (const Value& value : graph.values) names_.insert(value.name);
  }

  void run() {
    markConstants();
    separate();
    findBiases();
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
      ++(namesBuffer(name) ? found_.statistics : found_.separated);
      return true;
    });
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
    found_.lost.push_back(
        {graph_.value(node.inputs[1]).name,
         fmt::format("the weight of {}, {}", path.empty() ? layer : "'" + path + "'",
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
    const std::string path = modulePath(product.name);
    const auto bias = bias_of_.find(product.outputs[0]);
    if (bias != bias_of_.end()) {
      if (bias->second.ends_with(kBias))
        return bias->second.substr(0, bias->second.size() - kBias.size()) + ".weight";
      if (bias->second == path + std::string(kProjectionBias)) return path + ".in_proj_weight";
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
      if (name.ends_with(kBias) || name.ends_with(kProjectionBias)) bias_of_[product] = name;
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
      if (isTransposed(weight, table)) return tie(node, weight, table, nodes);
    }
    if (!isAnonymous(weight)) return;
    if (!factors_.insert(weight).second) return;
    const std::string name = matrixName(node);
    if (name.empty() || !names_.insert(name).second) {
      const std::string path = modulePath(node.name);
      found_.nameless.push_back(graph_.value(weight).name + (path.empty() ? "" : " (of '" + path + "')"));
      return;
    }
    graph_.value(weight).name = name;
    markStoredTransposed(graph_.value(weight));
    ++found_.transposed;
  }

  // What else has no name was computed from parameters (rows of a table), or from constants: training it may
  // train something else than the module has.
  void nameComputed() {
    const std::vector<InitializerRole> roles = initializerRoles(graph_);
    for (const auto& [id, initializer] : graph_.initializers) {
      const bool weight = roles[id.index()] == InitializerRole::kParameter && isAnonymous(id);
      if (!weight || factors_.contains(id) || elementCount(graph_.shape(id)) == 1 || isFilter(id)) continue;
      found_.lost.push_back(
          {graph_.value(id).name, "computed by the exporter, from parameters or constants"});
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

  bool isTransposed(ValueId weight, ValueId table) const {
    const Shape& a = graph_.shape(weight);
    const Shape& b = graph_.shape(table);
    if (a.size() != 2 || b.size() != 2 || a[0] != b[1] || a[1] != b[0] ||
        graph_.dataType(weight) != graph_.dataType(table))
      return false;
    const std::optional<std::vector<std::byte>> left = initializerBytes(graph_, weight);
    const std::optional<std::vector<std::byte>> right = initializerBytes(graph_, table);
    if (!left || !right) return false;
    const size_t size = dataTypeSize(graph_.dataType(weight));
    for (int64_t row = 0; row < a[0]; ++row) {
      for (int64_t column = 0; column < a[1]; ++column) {
        const std::byte* x = left->data() + (row * a[1] + column) * static_cast<int64_t>(size);
        const std::byte* y = right->data() + (column * b[1] + row) * static_cast<int64_t>(size);
        if (!std::equal(x, x + size, y)) return false;
      }
    }
    return true;
  }

  Graph& graph_;
  ModuleParameters& found_;
  std::set<std::string> names_;
  std::set<ValueId> tied_;
  std::set<ValueId> factors_;               // without a name: of products
  std::map<ValueId, std::string> bias_of_;  // a product: the bias that is added to it
};

}  // namespace

bool isTorchScript(const Graph& graph) {
  return graph.producer_name == "pytorch" && signatureParameters(graph).empty() &&
         mentionedParameters(graph).empty();
}

void restoreTorchScript(Graph& graph, ModuleParameters& found) { TorchScript(graph, found).run(); }

}  // namespace pipeshard
