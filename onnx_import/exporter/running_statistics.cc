#include "onnx_import/exporter/running_statistics.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/initializer_role.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/exporter/module_mode.h"

namespace pipeshard {
namespace {

constexpr size_t kFirstStatistic = 3;  // inputs of a BatchNormalization: mean, and variance behind it

// By value: an input of the graph reaches it, as far as the graph tells.
std::vector<bool> dependsOnInputs(const Graph& graph) {
  std::vector<bool> depends(graph.values.size());
  for (const ValueId input : graph.inputs) depends[input.index()] = !graph.initializers.contains(input);
  for (const Node& node : graph.nodes) {
    const bool has_body = std::any_of(node.attributes.begin(), node.attributes.end(), [](const auto& entry) {
      return std::holds_alternative<std::shared_ptr<const Graph>>(entry.second);
    });
    const bool any = has_body || std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
                       return input.valid() && depends[input.index()];
                     });
    for (const ValueId output : node.outputs) {
      if (output.valid()) depends[output.index()] = any;
    }
  }
  return depends;
}

// The same elements in another shape, order or type; signs do not matter here.
bool keepsElements(const Node& node) {
  return operatorFacts(node).view != View::kNone || node.is("Expand") || node.is("Cast") || node.is("Neg");
}

ValueId otherInput(const Node& node, ValueId value) {
  return node.inputs.at(node.inputs[0] == value ? 1 : 0);
}

bool multiplies(const Node& node) { return node.is("Mul") || node.is("Div"); }

class WrittenNormalizations {
 public:
  explicit WrittenNormalizations(const Graph& graph)
      : graph_(graph),
        uses_(computeUseDef(graph)),
        roles_(initializerRoles(graph)),
        depends_(dependsOnInputs(graph)) {}

  // Variances, each with its means behind it.
  std::vector<ValueId> statistics() const {
    std::vector<ValueId> found;
    for (const auto& [id, initializer] : graph_.initializers) {
      if (!mayBeTrained(id)) continue;
      const Scales scales = scalesOf(rootsOf(id));
      if (scales.scaled.empty()) continue;
      found.push_back(id);
      for (const auto& [mean, content] : graph_.initializers) {
        const bool fits = mean != id && mayBeTrained(mean) &&
                          elementCount(graph_.shape(mean)) == elementCount(graph_.shape(id));
        if (fits && isMean(mean, scales)) found.push_back(mean);
      }
    }
    return found;
  }

 private:
  struct Reader {
    const Node* node;
    ValueId value;  // as it reads it
  };
  // What a root becomes by multiplication with what no input reaches, and the nodes that scale by it.
  struct Scales {
    std::set<ValueId> values;
    std::vector<Reader> scaled;
  };

  bool mayBeTrained(ValueId id) const {
    using enum InitializerRole;
    const InitializerRole role = roles_[id.index()];
    return (role == kParameter || role == kUnclear) && !isMarkedParameter(graph_.value(id));
  }

  // Of the value, whatever its shape.
  std::vector<Reader> readersOf(ValueId value) const {
    std::vector<Reader> readers;
    std::vector<ValueId> forms = {value};
    for (size_t i = 0; i < forms.size(); ++i) {
      const ValueId form = forms[i];
      for (const NodeId id : uses_.consumers[form.index()]) {
        const Node& node = graph_.node(id);
        if (keepsElements(node) && node.inputs[0] == form) {
          forms.push_back(node.outputs[0]);
        } else {
          readers.push_back({&node, form});
        }
      }
    }
    return readers;
  }

  const Node* producerOf(ValueId value) const {
    const NodeId producer = value.valid() ? uses_.producer[value.index()] : NodeId();
    return producer.valid() ? &graph_.node(producer) : nullptr;
  }
  ValueId sourceOf(ValueId value) const {
    for (const Node* node = producerOf(value); node != nullptr && keepsElements(*node);
         node = producerOf(value))
      value = node->inputs[0];
    return value;
  }

  std::optional<double> numberOf(ValueId value) const {
    const ValueId source = sourceOf(value);
    if (!source.valid()) return std::nullopt;
    const Constant* constant = graph_.constant(source);
    if (const Node* node = producerOf(source); node != nullptr && node->is("Constant")) {
      if (node->hasAttribute("value_float")) return node->floatAttribute("value_float", 0);
      const auto tensor = node->attributes.find("value");
      if (tensor != node->attributes.end()) constant = std::get_if<Constant>(&tensor->second);
    }
    if (constant == nullptr || elementCount(constant->shape) != 1 || !isFloatingPoint(constant->data_type))
      return std::nullopt;
    return numericElements(*constant).at(0);
  }

  // sqrt(weight + epsilon), or one divided by it; none where the weight is read otherwise, too.
  std::vector<ValueId> rootsOf(ValueId weight) const {
    constexpr double kLargestEpsilon = 0.1;
    std::vector<ValueId> roots;
    for (const Reader& sum : readersOf(weight)) {
      if (!sum.node->is("Add")) return {};
      const std::optional<double> epsilon = numberOf(otherInput(*sum.node, sum.value));
      if (!epsilon || *epsilon <= 0 || *epsilon > kLargestEpsilon) return {};
      for (const Reader& root : readersOf(sum.node->outputs[0])) {
        const bool powers = root.node->is("Pow") && root.node->inputs[0] == root.value;
        const double power = powers ? numberOf(root.node->inputs[1]).value_or(0) : 0;
        if (!root.node->is("Sqrt") && power != 0.5 && power != -0.5) return {};
        roots.push_back(root.node->outputs[0]);
      }
    }
    return roots;
  }

  Scales scalesOf(std::vector<ValueId> open) const {
    Scales scales;
    while (!open.empty()) {
      const ValueId value = open.back();
      open.pop_back();
      if (!scales.values.insert(value).second) continue;
      for (const Reader& reader : readersOf(value)) {
        scales.values.insert(reader.value);
        const Node& node = *reader.node;
        if (node.is("Reciprocal")) {
          open.push_back(node.outputs[0]);
        } else if (multiplies(node) && depends_[otherInput(node, reader.value).index()]) {
          scales.scaled.push_back(reader);
        } else if (multiplies(node)) {
          open.push_back(node.outputs[0]);
        }
      }
    }
    return scales;
  }

  bool isMean(ValueId weight, const Scales& scales) const {
    const std::vector<Reader> readers = readersOf(weight);
    return !readers.empty() && std::all_of(readers.begin(), readers.end(), [&](const Reader& reader) {
      const Node& node = *reader.node;
      if (node.is("Sub")) return reader.value == node.inputs[1] && isScaled(node.outputs[0], scales);
      return node.is("Mul") && scales.values.contains(otherInput(node, reader.value)) &&
             isShift(node.outputs[0]);
    });
  }
  // A difference that is multiplied by one of the scales, at once or after another factor.
  bool isScaled(ValueId difference, const Scales& scales) const {
    if (!depends_[difference.index()]) return false;
    std::vector<Reader> open = readersOf(difference);
    while (!open.empty()) {
      const Reader reader = open.back();
      open.pop_back();
      if (!multiplies(*reader.node)) continue;
      const ValueId factor = otherInput(*reader.node, reader.value);
      if (scales.values.contains(factor)) return true;
      if (depends_[factor.index()]) continue;
      for (const Reader& next : readersOf(reader.node->outputs[0])) open.push_back(next);
    }
    return false;
  }
  // A product that is only added or subtracted.
  bool isShift(ValueId product) const {
    const std::vector<Reader> readers = readersOf(product);
    return !readers.empty() && std::all_of(readers.begin(), readers.end(), [](const Reader& reader) {
      return reader.node->is("Add") || reader.node->is("Sub");
    });
  }

  const Graph& graph_;
  UseDef uses_;
  std::vector<InitializerRole> roles_;
  std::vector<bool> depends_;
};

}  // namespace

int separateStatistics(Graph& graph) {
  std::map<std::string, std::string> name_of;  // by argument
  for (const SignatureParameter& buffer : signatureBuffers(graph)) name_of[buffer.argument] = buffer.name;
  GraphBuilder builder(graph);
  int made = 0;
  for (Node& node : graph.nodes) {
    if (!node.is("BatchNormalization") || node.inputs.size() != 5) continue;
    std::vector<std::string> names;
    for (const std::string& argument : exportedCall(node).arguments) {
      if (const auto found = name_of.find(argument); found != name_of.end()) names.push_back(found->second);
    }
    if (names.size() != 2) continue;
    for (size_t i = 0; i < 2; ++i) {
      ValueId& statistic = node.inputs[kFirstStatistic + i];
      const auto content = graph.initializers.find(statistic);
      if (content == graph.initializers.end() || graph.value(statistic).name == names[i]) continue;
      std::optional<ValueId> own = builder.find(names[i]);
      if (!own) {
        own = builder.addValue(names[i], graph.dataType(statistic), graph.shape(statistic));
        graph.initializers[*own] = content->second;
        setExportedKind(graph.value(*own), "BUFFER");
        ++made;
      } else if (!graph.initializers.contains(*own)) {
        continue;  // the name of something else
      }
      statistic = *own;
    }
  }
  return made;
}

std::string takeWrittenStatistics(Graph& graph) {
  constexpr size_t kMostNames = 6;
  std::vector<std::string> names;
  for (const ValueId statistic : WrittenNormalizations(graph).statistics()) {
    if (exportedKind(graph.value(statistic))) continue;  // of two normalisations
    setExportedKind(graph.value(statistic), "BUFFER");
    names.push_back(graph.value(statistic).name);
  }
  if (names.empty()) return "";
  return fmt::format(
      "taken for running statistics of batch normalisations that the converter wrote in pieces: {}: not "
      "trained (--train trains them), and --mode training cannot have them follow batches",
      listed(names, kMostNames));
}

namespace {

// What a running mean is a view of, or was before normalisations updated it.
ValueId firstStatistic(const Graph& graph, const std::vector<NodeId>& producer, ValueId mean) {
  while (mean.valid() && producer[mean.index()].valid()) {
    const Node& maker = graph.node(producer[mean.index()]);
    const bool updates = maker.is("BatchNormalization") && maker.outputs.size() > 1 &&
                         maker.outputs[1] == mean && maker.inputs.size() > kFirstStatistic;
    if (!updates && !isView(maker)) break;
    mean = maker.inputs.at(updates ? kFirstStatistic : 0);
  }
  return mean;
}

}  // namespace

std::map<ValueId, int> callsByMean(const Graph& graph) {
  const std::vector<NodeId> producer = computeUseDef(graph).producer;
  const bool tells = std::any_of(graph.nodes.begin(), graph.nodes.end(), losesTraining);
  std::map<ValueId, int> calls;
  for (const Node& node : graph.nodes) {
    if (!node.is("BatchNormalization") || node.inputs.size() <= kFirstStatistic) continue;
    if (tells && !losesTraining(node) && !normalizesByBatch(node)) continue;
    const ValueId mean = firstStatistic(graph, producer, node.inputs[kFirstStatistic]);
    if (mean.valid()) ++calls[mean];
  }
  return calls;
}

}  // namespace pipeshard
