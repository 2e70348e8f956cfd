#include "onnx_import/prepare/inference.h"

#include <algorithm>
#include <limits>
#include <set>

#include <onnx/defs/schema.h>

#include "ir/base/error.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/attribute_limits.h"
#include "ir/operators/initializer_role.h"
#include "onnx_import/format/rehearsal.h"
#include "onnx_import/format/tensor_proto.h"
#include "onnx_import/lowering/lowering_rules.h"
#include "onnx_import/prepare/evaluator.h"
#include "onnx_import/prepare/expand.h"
#include "onnx_import/prepare/node_context.h"
#include "onnx_import/prepare/splice.h"

namespace pipeshard {
namespace {

constexpr int kDepthLimit = 64;                          // nested function calls and subgraphs
constexpr int64_t kEvaluationBudget = int64_t{1} << 30;  // bytes read and written by the evaluator in one run

std::string functionKey(const Node& node) { return node.domain + '\n' + node.op_type + '\n' + node.overload; }

bool isKnown(const Value& value) {
  return !value.opaque_type.empty() ||
         (value.data_type != DataType::kUndefined && value.shape && isStatic(*value.shape));
}

std::string describeType(const Value& value) {
  return fmt::format("{}{}", dataTypeName(value.data_type),
                     value.shape ? shapeToString(*value.shape) : "[...]");
}

// Of a tensor of one axis, also where its elements are of a type that nobody knows; otherwise -1.
int64_t lengthOf(const Value& value) {
  if (value.opaque_type.empty()) return value.shape && value.shape->size() == 1 ? value.shape->front() : -1;
  const onnx::TypeProto type = knownType(value);
  if (!type.has_tensor_type() || type.tensor_type().shape().dim_size() != 1) return -1;
  const auto& size = type.tensor_type().shape().dim(0);
  return size.has_dim_value() ? size.dim_value() : -1;
}

// The content of Shape and Size follows from the type alone.
std::optional<std::vector<Constant>> evaluateFromShape(const Graph& graph, const Node& node) {
  if (node.inputs.size() != 1 || !node.inputs[0].valid()) return std::nullopt;
  const Value& input = graph.value(node.inputs[0]);
  if (!input.shape) return std::nullopt;
  const Shape& shape = *input.shape;
  if (node.is("Size")) {
    if (!isStatic(shape)) return std::nullopt;
    return std::vector<Constant>{makeConstant<int64_t>({}, {elementCount(shape)})};
  }
  if (!node.is("Shape")) return std::nullopt;
  const int64_t rank = shape.size();
  const auto clamp = [&](int64_t axis) {
    return std::clamp<int64_t>(axis < 0 ? std::max(axis, -rank) + rank : axis, 0, rank);
  };
  const int64_t start = clamp(node.intAttribute("start", 0));
  const int64_t end = std::max(start, clamp(node.intAttribute("end", rank)));
  const Shape part(shape.begin() + start, shape.begin() + end);
  if (!isStatic(part)) return std::nullopt;
  return std::vector<Constant>{makeConstant<int64_t>({end - start}, part)};
}

// ONNX believes what a Reshape asks for.
void checkElements(const Graph& graph, const Node& node) {
  if (!node.is("Reshape") || !node.outputs[0].valid()) return;
  const Value &before = graph.value(node.inputs[0]), &after = graph.value(node.outputs[0]);
  if (!hasStaticType(before) || !hasStaticType(after)) return;
  if (elementCount(*before.shape) == elementCount(*after.shape)) return;
  throw Contradiction(
      Contradiction::Of::kSizes,
      fmt::format("{}: {} elements of shape {} are asked to have shape {}, which has {}", describeNode(node),
                  elementCount(*before.shape), shapeToString(*before.shape), shapeToString(*after.shape),
                  elementCount(*after.shape)));
}

}  // namespace

std::vector<bool> keptFromFolding(const Graph& graph) {
  const std::vector<InitializerRole> roles = initializerRoles(graph);
  std::vector<bool> result(graph.values.size(), false);
  for (const auto& [id, initializer] : graph.initializers) {
    const InitializerRole role = roles[id.index()];
    result[id.index()] = (role == InitializerRole::kParameter || role == InitializerRole::kUnclear) &&
                         !isFolded(graph.value(id));
  }
  for (const ValueId statistic : runningStatistics(graph)) result[statistic.index()] = true;
  return result;
}

Inference::Inference(Graph& graph, int64_t limit_bytes)
    : graph_(graph),
      functions_(std::make_shared<FunctionTable>()),
      kept_(keptFromFolding(graph)),
      limit_bytes_(limit_bytes),
      budget_(std::make_shared<int64_t>(kEvaluationBudget)) {
  for (const Function& function : graph.functions)
    functions_->emplace(function.domain + '\n' + function.name + '\n' + function.overload, &function);
}

Inference::Inference(Graph& graph, Inference& caller, bool is_subgraph)
    : graph_(graph),
      functions_(caller.functions_),
      kept_(graph.values.size(), false),
      limit_bytes_(caller.limit_bytes_),
      budget_(caller.budget_),
      depth_(caller.depth_ + 1) {
  if (depth_ > kDepthLimit)
    fail(ErrorCode::kBadModel, "functions and subgraphs are nested deeper than {}", kDepthLimit);
  if (!is_subgraph) return;
  outer_ = &caller;
  // Captured values have the type, and if it is known the content, of what they stand for.
  for (const auto& [name, id] : capturedValues(graph)) {
    for (Inference* scope = outer_; scope != nullptr; scope = scope->outer_) {
      const auto it = scope->names_.find(name);
      if (it == scope->names_.end()) continue;
      const Value& outside = scope->graph_.value(it->second);
      graph.value(id) = outside;
      if (const Constant* constant = scope->constantOf(it->second)) {
        if (std::ssize(constant->bytes) <= limit_bytes_) computed_.emplace(id, *constant);
      }
      break;
    }
  }
}

void Inference::run() {
  if (std::any_of(graph_.nodes.begin(), graph_.nodes.end(), hasSubgraphs)) {
    for (size_t i = 0; i < graph_.values.size(); ++i) names_.emplace(graph_.values[i].name, ValueId(i));
  }
  if (depth_ == 0 && Rehearsals::areWantedFor(graph_)) {
    rehearse([this](const RehearsalNote& note) {
      for (Node& node : graph_.nodes) {
        note(describeNode(node));
        inferNode(node);
      }
    });
  }
  for (Node& node : graph_.nodes) inferNode(node);
}

const Function* Inference::callee(const Node& node) const {
  if (functions_->empty()) return nullptr;
  const auto it = functions_->find(functionKey(node));
  return it == functions_->end() ? nullptr : it->second;
}

const Constant* Inference::constantOf(ValueId id) const {
  const auto it = computed_.find(id);
  return it != computed_.end() ? &it->second : graph_.constant(id);
}

// A node's outputs get their types from the body of the function that it calls, or from ONNX's schema; where
// the schema has no inference function, from the function body that the schema defines; where there is no
// schema, from a lowering. Then the content of
// the outputs is computed, if that of all inputs is known and the node calls no function of the model. Nodes
// are in topological order, so what a node needs is there when it is reached:
//   x [2,3,4];  s = Shape(x);  t = Slice(s, 0, 2);  y = Reshape(x, Concat(t, [2, 2]))
//   s = [2,3,4], t = [2,3] and the Concat [2,3,2,2] are computed on the way; so y gets the shape [2,3,2,2].
//
// Bodies of calls are walked by an Inference of their own (inferCall). All of them share one budget of bytes,
// and the depth is limited: a hostile model must end.
void Inference::inferNode(Node& node) {
  if (const Function* function = callee(node)) {
    const bool known = std::all_of(node.outputs.begin(), node.outputs.end(),
                                   [&](ValueId id) { return !id.valid() || isKnown(graph_.value(id)); });
    if (!known) inferCall(node, *function);
    return;
  }
  inferBySchema(node);
  evaluate(node);
}

// The node in a graph of its own: it reads copies of its inputs, with what is known of them, and writes
// values of which nothing is known.
Node Inference::copyAlone(const Node& node, GraphBuilder& builder) const {
  Graph& wrapper = builder.graph();
  Node copy = node;
  for (ValueId& id : copy.inputs) {
    if (!id.valid()) continue;
    const ValueId input = builder.addValue(graph_.value(id).name, DataType::kUndefined, {});
    const std::string name = wrapper.value(input).name;
    wrapper.value(input) = graph_.value(id);
    wrapper.value(input).name = name;
    const Constant* constant = constantOf(id);
    if (constant != nullptr && std::ssize(constant->bytes) <= limit_bytes_) {
      wrapper.initializers.emplace(input, *constant);
    } else {
      wrapper.inputs.push_back(input);
    }
    id = input;
  }
  for (ValueId& id : copy.outputs) {
    if (!id.valid()) continue;
    id = builder.addValue(graph_.value(id).name, DataType::kUndefined, {});
    wrapper.value(id).shape.reset();
  }
  return copy;
}

void Inference::inferCall(const Node& node, const Function& function) {
  Graph wrapper;
  wrapper.opset_imports = function.body->opset_imports;
  GraphBuilder builder(wrapper);
  Node call = copyAlone(node, builder);
  call.name.clear();
  std::map<std::string, Attribute> attributes = function.default_attributes;
  for (const auto& [name, attribute] : node.attributes) attributes[name] = attribute;
  spliceBody(builder, *function.body, call, attributes, {}, wrapper.nodes);
  Inference inference(wrapper, *this, false);
  try {
    inference.run();
  } catch (Error& error) {
    error.addContext(describeNode(node));
    throw;
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i].valid()) mergeOutput(node, i, wrapper.value(call.outputs[i]));
  }
}

// What ONNX does not know, or does not say all of, may have a lowering that gives the outputs their types.
// One that refuses the node says why when the node is replaced.
bool Inference::inferByLowering(const Node& node) {
  const LoweringRule* rule = findLowering(graph_, node);
  if (rule == nullptr || !rule->typesOutputs(node)) return false;
  Graph wrapper;
  wrapper.opset_imports = graph_.opset_imports;
  GraphBuilder builder(wrapper);
  const Node alone = copyAlone(node, builder);
  const bool known = std::all_of(alone.inputs.begin(), alone.inputs.end(),
                                 [&](ValueId id) { return !id.valid() || hasStaticType(wrapper.value(id)); });
  if (!known) return false;
  try {
    LoweringContext context(builder, alone);
    rule->apply(context);
  } catch (const Error&) {
    return false;
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i].valid()) mergeOutput(node, i, wrapper.value(alone.outputs[i]));
  }
  return true;
}

// What ONNX's own functions do not look at.
void Inference::checkNumbers(const Node& node) const {
  checkAs(Contradiction::Of::kTypes, [&] { checkAttributes(node); });
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i].valid()) checkShapeInput(node, i, lengthOf(graph_.value(node.inputs[i])));
  }
  if (!node.domain.empty() || !node.op_type.starts_with("Reduce")) return;
  if (node.inputs.empty() || !node.inputs[0].valid()) return;  // the schema says that it needs one
  const Value& reduced = graph_.value(node.inputs[0]);
  if (!reduced.shape) return;
  std::vector<int64_t> axes = node.intsAttribute("axes");
  const Constant* given =
      node.inputs.size() > 1 && node.inputs[1].valid() ? constantOf(node.inputs[1]) : nullptr;
  if (given != nullptr && given->data_type == DataType::kInt64) axes = integerElements(*given);
  checkAs(Contradiction::Of::kRanks, [&] { checkReducedAxes(node, axes, std::ssize(*reduced.shape)); });
}

void Inference::inferBySchema(Node& node) {
  checkNumbers(node);
  const auto* schema =
      onnx::OpSchemaRegistry::Instance()->GetSchema(node.op_type, node.opset_version, node.domain);
  const LoweringRule* rule = findLowering(graph_, node);
  if (schema == nullptr || (rule != nullptr && rule->isBeyondSchema(node))) {
    inferByLowering(node);
    return;
  }
  // Behind an operator that nobody knows, nothing can be said, and schemas do not expect to be asked.
  for (ValueId id : node.inputs) {
    if (!id.valid()) continue;
    if (knownType(graph_.value(id)).value_case() == onnx::TypeProto::VALUE_NOT_SET) return;
    if (node.is("MaxUnpool") && !graph_.value(id).shape) return;  // its function reads all shapes
  }
  if (!schema->has_type_and_shape_inference_function() &&
      (schema->HasFunction() || schema->HasContextDependentFunction())) {
    if (inferByLowering(node)) return;
    if (const std::optional<Function> function = schemaFunction(graph_, node))
      return inferCall(node, *function);
  }
  onnx::NodeProto proto;
  shallowNode(graph_, node, proto);
  NodeContext context(*this, node, proto);
  if (const std::optional<size_t> weights = windowInput(node)) {
    const std::optional<int64_t> image = context.inputRank(0), window = context.inputRank(*weights);
    if (image && window) checkAs(Contradiction::Of::kRanks, [&] { checkWindow(node, *image, *window); });
  }
  applySchema(*schema, node, proto, context);
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (!node.outputs[i].valid()) continue;
    Value inferred;
    const std::string what = fmt::format("output {} of {}", i, describeNode(node));
    valueTypeFromProto(*context.getOutputType(i), 1024, uint64_t{1} << 62, what, inferred);
    mergeOutput(node, i, inferred);
  }
  checkElements(graph_, node);
  inferByLowering(node);
}

void Inference::mergeOutput(const Node& node, size_t index, const Value& inferred) {
  Value& value = graph_.value(node.outputs[index]);
  const auto disagree = [&](Contradiction::Of of) {
    throw Contradiction(
        of, fmt::format("{}: its output '{}' is {} in the model, but follows from its inputs as {}",
                        describeNode(node), value.name, describeType(value), describeType(inferred)));
  };
  if (!inferred.opaque_type.empty()) {
    if (value.opaque_type.empty()) value.opaque_type = inferred.opaque_type;
    return;
  }
  if (value.data_type == DataType::kUndefined) value.data_type = inferred.data_type;
  if (inferred.data_type != DataType::kUndefined && value.data_type != inferred.data_type)
    disagree(Contradiction::Of::kTypes);
  if (!inferred.shape) return;
  if (!value.shape) {
    value.shape = inferred.shape;
    value.symbols = inferred.symbols;
    return;
  }
  // The rank of a model's output is only declared: what follows counts. PyTorch's exporter declares [] where
  // it has not found a shape (a cross-entropy without reduction, and all that is computed from it).
  if (value.shape->size() != inferred.shape->size()) {
    const auto& outputs = graph_.outputs;
    const bool is_output = std::find(outputs.begin(), outputs.end(), node.outputs[index]) != outputs.end();
    if (is_output ? depth_ > 0 : !value.shape->empty()) disagree(Contradiction::Of::kRanks);
    value.shape = inferred.shape;
    value.symbols = inferred.symbols;
  }
  // Beside a size, the name that says it (bindDimensions): only a name, such as the height of an image for
  // that of its logits. On axis 0 it is the rows of the batch, of which a file may have a fixed number
  // inside.
  for (size_t axis = 0; axis < value.shape->size(); ++axis) {
    int64_t& size = (*value.shape)[axis];
    const int64_t other = (*inferred.shape)[axis];
    if (other < 0) continue;
    const bool is_named = axis < value.symbols.size() && !value.symbols[axis].empty();
    if (size >= 0 && size != other && !(is_named && axis > 0)) disagree(Contradiction::Of::kSizes);
    size = other;
    if (is_named) value.symbols[axis].clear();
  }
  if (std::all_of(value.symbols.begin(), value.symbols.end(), [](const auto& name) { return name.empty(); }))
    value.symbols.clear();
}

void Inference::record(const Node& node, std::vector<Constant> results) {
  for (size_t i = 0; i < std::min(results.size(), node.outputs.size()); ++i) {
    if (!node.outputs[i].valid()) continue;
    Value computed;
    computed.data_type = results[i].data_type;
    computed.shape = results[i].shape;
    mergeOutput(node, i, computed);
    *budget_ -= std::ssize(results[i].bytes) + 64;
    computed_.insert_or_assign(node.outputs[i], std::move(results[i]));
  }
}

void Inference::evaluate(const Node& node) {
  if (*budget_ <= 0 || node.outputs.empty()) return;
  if (node.domain.empty() && (node.op_type == "Shape" || node.op_type == "Size")) {
    if (auto results = evaluateFromShape(graph_, node)) record(node, std::move(*results));
    return;
  }
  ConstantInputs inputs;
  int64_t touched = 0;
  for (ValueId id : node.inputs) {
    const Constant* constant =
        id.valid() && !(id.index() < kept_.size() && kept_[id.index()]) ? constantOf(id) : nullptr;
    if (id.valid() && constant == nullptr) return;
    if (constant != nullptr) touched += std::ssize(constant->bytes);
    inputs.push_back(constant);
  }
  const bool shape_depends_on_data = node.is("NonZero");
  for (ValueId id : node.outputs) {
    if (!id.valid() || shape_depends_on_data) continue;
    const Value& value = graph_.value(id);
    if (!value.opaque_type.empty() || !value.shape || !isStatic(*value.shape) ||
        dataTypeSize(value.data_type) == 0)
      return;
    const int64_t bytes = byteCount(value.data_type, *value.shape);
    if (bytes > limit_bytes_) return;
    touched += bytes;
  }
  if (shape_depends_on_data && touched * 64 > limit_bytes_) return;
  *budget_ -= touched;
  if (*budget_ <= 0) return;
  if (auto results = evaluateNode(node, inputs)) record(node, std::move(*results));
}

void inferShapes(Graph& graph) {
  constexpr int64_t kShapeBytes = 1 << 16;  // what shapes depend on is small
  Inference(graph, kShapeBytes).run();
}

namespace {

// The file has it, and it is no weight: a limit, a buffer, what is taken for a number of the arithmetic.
bool isConstantOfFile(const Value& value, InitializerRole role) {
  using enum InitializerRole;
  return !isFolded(value) && (role == kConstant || role == kBuffer || role == kSetting);
}

// No weight of the file is in it: zeros of some shape, one number or a constant of the file, and what is
// computed from such alone (the first state of a recurrence). Nor what is computed from integers alone, which
// nothing trains: positions, the codes of a quantized weight.
bool holdsNoWeight(const Graph& graph, const std::vector<InitializerRole>& roles, const Node& node) {
  if (node.is("ConstantOfShape")) return true;
  const auto isNoWeight = [&](ValueId id) {
    if (!id.valid()) return true;
    const Value& value = graph.value(id);  // of an open shape: Shape gives a part of it that is known
    return !isFloatingPoint(value.data_type) || isMade(value) ||
           (hasStaticType(value) && elementCount(*value.shape) == 1) ||
           isConstantOfFile(value, roles[id.index()]);
  };
  return std::any_of(node.inputs.begin(), node.inputs.end(), [](ValueId id) { return id.valid(); }) &&
         std::all_of(node.inputs.begin(), node.inputs.end(), isNoWeight);
}

// Marks what is computed of frozen weights (a layer that reads it would be taken for trained), and of what is
// taken for constants (the notes name it).
void tellSources(Graph& graph, const std::vector<InitializerRole>& roles, const Node& node) {
  FrozenWeights frozen;
  std::set<std::string> constants;
  for (ValueId id : node.inputs) {
    if (!id.valid() || !isFloatingPoint(graph.dataType(id))) continue;
    const Value& value = graph.value(id);
    frozen.merge(frozenWeights(value));
    constants.merge(foldedConstants(value));
    if (roles[id.index()] == InitializerRole::kConstant && !isFolded(value)) constants.insert(value.name);
  }
  for (ValueId id : node.outputs) {
    if (!id.valid() || !isFloatingPoint(graph.dataType(id))) continue;
    if (!frozen.empty()) addFrozenWeights(graph.value(id), frozen);
    if (!constants.empty()) addFoldedConstants(graph.value(id), constants);
  }
}

}  // namespace

int foldConstants(Graph& graph, int64_t limit_bytes) {
  Inference inference(graph, limit_bytes);
  inference.run();
  std::map<ValueId, Constant>& computed = inference.computed();
  const auto foldable = [&](const Node& node) {
    return !node.outputs.empty() && std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
      return !id.valid() || computed.contains(id);
    });
  };
  const std::vector<InitializerRole> roles = initializerRoles(graph);  // of what the file has
  int folded = 0;
  for (const Node& node : graph.nodes) {
    if (!foldable(node)) continue;
    ++folded;
    const auto mark = holdsNoWeight(graph, roles, node) ? markMade : markFolded;
    tellSources(graph, roles, node);
    for (ValueId id : node.outputs) {
      if (!id.valid()) continue;
      mark(graph.value(id));
      graph.initializers.emplace(id, std::move(computed.at(id)));
    }
  }
  std::erase_if(graph.nodes, [&](const Node& node) {
    return !node.outputs.empty() && std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
      return !id.valid() || graph.initializers.contains(id);
    });
  });
  return folded;
}

}  // namespace pipeshard
