#include "sharding/batch/time_rewrite.h"

#include <algorithm>

#include "ir/base/error.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/operator_facts.h"

namespace pipeshard {

namespace {

// Makes nodes without adding them to the graph. Names start with the name of the node that they replace.
class NodeMaker {
 public:
  NodeMaker(GraphBuilder& builder, const Node& origin) : builder_(builder), origin_(origin) {}

  ValueId add(std::string_view op_type, std::vector<ValueId> inputs, std::string_view name, DataType type,
              Shape shape, std::map<std::string, Attribute> attributes = {}) {
    const ValueId output = builder_.addValue(
        fmt::format("{}.{}", builder_.graph().value(origin_.outputs[0]).name, name), type, std::move(shape));
    append(op_type, std::move(inputs), output, std::move(attributes), name);
    return output;
  }

  void append(std::string_view op_type, std::vector<ValueId> inputs, ValueId output,
              std::map<std::string, Attribute> attributes, std::string_view name) {
    Node node;
    node.op_type = op_type;
    node.opset_version = origin_.opset_version;
    node.inputs = std::move(inputs);
    node.outputs = {output};
    node.attributes = std::move(attributes);
    node.name = fmt::format("{}/{}", origin_.name, name);
    node.metadata = origin_.metadata;
    const auto imported = builder_.graph().opset_imports.find("");
    if (imported != builder_.graph().opset_imports.end()) node.opset_version = imported->second;
    nodes.push_back(std::move(node));
  }

  ValueId constant(std::string_view name, DataType type, double number) {
    return builder_.addConstant(fmt::format("{}.{}", builder_.graph().value(origin_.outputs[0]).name, name),
                                makeScalar(type, number));
  }

  std::vector<Node> nodes;

 private:
  GraphBuilder& builder_;
  const Node& origin_;
};

// The denominator of a mean loss: per label its weight, or 0 when it is ignored; summed.
ValueId appendDenominator(NodeMaker& maker, const Graph& graph, const Node& loss) {
  const ValueId labels = loss.inputs[1];
  const Shape shape = graph.shape(labels);
  const DataType label_type = graph.dataType(labels);
  const DataType type = graph.dataType(loss.outputs[0]);
  const bool weighted = loss.inputs.size() > 2 && loss.inputs[2].valid();
  const auto to = std::map<std::string, Attribute>{{"to", static_cast<int64_t>(type)}};
  ValueId ignored;
  ValueId counted;  // 1 per label that counts
  if (loss.hasAttribute("ignore_index")) {
    const ValueId ignore_index =
        maker.constant("ignore_index", label_type, static_cast<double>(loss.intAttribute("ignore_index", 0)));
    ignored = maker.add("Equal", {labels, ignore_index}, "ignored", DataType::kBool, shape);
    const ValueId used = maker.add("Not", {ignored}, "used", DataType::kBool, shape);
    counted = maker.add("Cast", {used}, "counted", type, shape, to);
  }
  ValueId per_label = counted;
  if (weighted) {
    ValueId known = labels;  // an ignored label need not name a class
    if (ignored.valid())
      known = maker.add("Where", {ignored, maker.constant("class_0", label_type, 0), labels}, "known",
                        label_type, shape);
    per_label = maker.add("Gather", {loss.inputs[2], known}, "weights", type, shape, {{"axis", int64_t{0}}});
    if (ignored.valid()) per_label = maker.add("Mul", {per_label, counted}, "used_weights", type, shape);
  }
  return maker.add("ReduceSum", {per_label}, "denominator", type, {}, {{"keepdims", int64_t{0}}});
}

// A copy of the node with outputs of its own.
Node copyNode(GraphBuilder& builder, const Node& node, TimeFactsTable& facts,
              std::map<ValueId, ValueId>& copies) {
  Node copy = node;
  copy.name += "/prologue";
  for (ValueId& output : copy.outputs) {
    if (!output.valid()) continue;
    const Value original = builder.graph().value(output);
    const ValueId copied = builder.addValue(original.name + ".prologue", original.data_type, *original.shape);
    copies[output] = copied;
    const TimeFacts known = facts[output.index()];
    facts.resize(builder.graph().values.size());
    facts[copied.index()] = known;
    output = copied;
  }
  return copy;
}

}  // namespace

std::vector<Node> expandMeanLoss(GraphBuilder& builder, const Node& node) {
  const bool is_loss = node.domain.empty() && operatorFacts(node).takes_labels;
  const bool weighted = node.inputs.size() > 2 && node.inputs[2].valid();
  if (!is_loss || node.stringAttribute("reduction", "mean") != "mean" ||
      (!node.hasAttribute("ignore_index") && !weighted))
    return {};
  const Graph& graph = builder.graph();
  NodeMaker maker(builder, node);
  const ValueId denominator = appendDenominator(maker, graph, node);
  const ValueId loss = node.outputs[0];
  Node sum = node;
  sum.attributes["reduction"] = std::string("sum");
  sum.outputs[0] = builder.addValue(graph.value(loss).name + ".sum", graph.dataType(loss), {});
  std::vector<Node> nodes = std::move(maker.nodes);
  nodes.push_back(sum);
  NodeMaker last(builder, node);
  last.append("Div", {sum.outputs[0], denominator}, loss, {}, "mean");
  nodes.push_back(std::move(last.nodes.front()));
  return nodes;
}

void separatePrologue(GraphBuilder& builder, const std::vector<ValueId>& results,
                      std::vector<PrologueTotal>& totals, TimeFactsTable& facts) {
  Graph& graph = builder.graph();
  std::vector<ValueId> parts;
  for (const PrologueTotal& total : totals) parts.push_back(total.part);
  std::vector<ValueId> forward = graph.outputs;
  forward.insert(forward.end(), results.begin(), results.end());
  const std::vector<bool> in_prologue = ancestorsOf(graph, parts);
  const std::vector<bool> in_forward = ancestorsOf(graph, forward);

  std::map<ValueId, ValueId> copies;
  std::vector<Node> nodes;
  const std::vector<Node> old = std::move(graph.nodes);
  for (size_t n = 0; n < old.size(); ++n) {
    const bool copied = in_prologue[n] && in_forward[n];
    if (!in_prologue[n] || copied) nodes.push_back(old[n]);
    if (!in_prologue[n]) continue;
    Node node = old[n];
    for (ValueId& input : node.inputs) {
      if (const auto copy = copies.find(input); copy != copies.end()) input = copy->second;
    }
    nodes.push_back(copied ? copyNode(builder, node, facts, copies) : node);
  }
  graph.nodes = std::move(nodes);
  for (PrologueTotal& total : totals) {
    if (const auto copy = copies.find(total.part); copy != copies.end()) total.part = copy->second;
  }
}

void freezeForPrologue(Graph& graph, const std::vector<PrologueTotal>& totals,
                       const std::vector<ValueId>& constants) {
  std::vector<ValueId> parts;
  for (const PrologueTotal& total : totals) parts.push_back(total.part);
  const std::vector<bool> in_prologue = ancestorsOf(graph, parts);
  for (const ValueId constant : constants) {
    bool is_read = false;
    for (size_t n = 0; n < graph.nodes.size() && !is_read; ++n) {
      const std::vector<ValueId>& inputs = graph.nodes[n].inputs;
      is_read = in_prologue[n] && std::find(inputs.begin(), inputs.end(), constant) != inputs.end();
    }
    if (!is_read) continue;
    Metadata& metadata = graph.value(constant).metadata;
    std::erase_if(metadata, [](const auto& entry) { return entry.first == kTrainedMark; });
    metadata.emplace_back(kTrainedMark, "no");
  }
}

}  // namespace pipeshard
