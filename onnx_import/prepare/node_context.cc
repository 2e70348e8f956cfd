#include "onnx_import/prepare/node_context.h"

#include <algorithm>
#include <limits>

#include "ir/base/error.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/format/graph_to_proto.h"
#include "onnx_import/format/tensor_proto.h"

namespace pipeshard {
namespace {

constexpr size_t kBigTensor = 4096;  // bytes; no schema looks into a bigger attribute

void typeFromProto(const onnx::TypeProto& type, Value& value) {
  constexpr auto kAny = std::numeric_limits<int64_t>::max();
  valueTypeFromProto(type, 64, kAny, fmt::format("value '{}'", value.name), value);
}

}  // namespace

// Infers a copy of a subgraph for the inputs that the operator passes, and keeps it in the node.
class SubgraphInferencer : public onnx::GraphInferencer {
 public:
  SubgraphInferencer(Inference& outer, Node& node, std::string attribute)
      : outer_(outer), node_(node), attribute_(std::move(attribute)) {}

  std::vector<const onnx::TypeProto*> doInferencing(const std::vector<const onnx::TypeProto*>& input_types,
                                                    const std::vector<const onnx::TensorProto*>&) override {
    if (is_done_ && input_types.empty()) return types();  // that of a branch stays
    auto& slot = std::get<std::shared_ptr<const Graph>>(node_.attributes.at(attribute_));
    auto copy = std::make_shared<Graph>(*slot);
    for (size_t i = 0; i < std::min(input_types.size(), copy->inputs.size()); ++i) {
      Value& value = copy->value(copy->inputs[i]);
      if (input_types[i] == nullptr) continue;
      Value given;
      given.name = value.name;
      typeFromProto(*input_types[i], given);
      if (value.data_type == DataType::kUndefined) value.data_type = given.data_type;
      if (!value.shape) value.shape = given.shape;
    }
    Inference inference(*copy, outer_, true);
    inference.run();
    types_.clear();
    for (ValueId id : copy->outputs) types_.push_back(knownType(copy->value(id)));
    slot = std::move(copy);
    is_done_ = true;
    return types();
  }

 private:
  std::vector<const onnx::TypeProto*> types() const {
    std::vector<const onnx::TypeProto*> result;
    for (const onnx::TypeProto& type : types_) result.push_back(&type);
    return result;
  }

  Inference& outer_;
  Node& node_;
  std::string attribute_;
  std::vector<onnx::TypeProto> types_;
  bool is_done_ = false;
};

onnx::TypeProto knownType(const Value& value) {
  onnx::TypeProto type;
  // A shape without an element type is no type to ONNX.
  if (value.opaque_type.empty() && value.data_type == DataType::kUndefined) return type;
  valueTypeToProto(value, type);
  return type;
}

void shallowNode(const Graph& graph, const Node& node, onnx::NodeProto& proto) {
  const auto nameOf = [&](ValueId id) { return id.valid() ? graph.value(id).name : std::string(); };
  proto.set_name(node.name);
  proto.set_op_type(node.op_type);
  proto.set_domain(node.domain);
  for (ValueId id : node.inputs) proto.add_input(nameOf(id));
  for (ValueId id : node.outputs) proto.add_output(nameOf(id));
  for (const auto& [name, attribute] : node.attributes) {
    onnx::AttributeProto& slot = *proto.add_attribute();
    if (std::holds_alternative<std::shared_ptr<const Graph>>(attribute)) {
      slot.set_name(name);
      slot.set_type(onnx::AttributeProto::GRAPH);
      slot.mutable_g();
      continue;
    }
    const auto* constant = std::get_if<Constant>(&attribute);
    if (constant != nullptr && constant->bytes.size() > kBigTensor) {
      slot.set_name(name);
      slot.set_type(onnx::AttributeProto::TENSOR);
      slot.mutable_t()->set_data_type(static_cast<int32_t>(constant->data_type));
      for (int64_t size : constant->shape) slot.mutable_t()->add_dims(size);
      continue;
    }
    attributeToProto(name, attribute, slot);
  }
  // ONNX's inference function takes another default than its schema says.
  if (node.is("STFT") && !node.hasAttribute("onesided"))
    attributeToProto("onesided", int64_t{1}, *proto.add_attribute());
}

namespace {

// Range's inference function wants scalars, but ONNX's own bodies (AffineGrid) give it tensors of one
// element, which runtimes take. (An axis of unknown size can only be of one element then.)
bool countsAsScalar(const Node& node, const Shape& shape) {
  return node.is("Range") && shape.size() == 1 && (shape[0] == 1 || shape[0] == kUnknownSize);
}

onnx::TypeProto typeForSchema(const Node& node, const Value& value) {
  if (!value.shape || !countsAsScalar(node, *value.shape)) return knownType(value);
  Value scalar = value;
  scalar.shape = Shape{};
  scalar.symbols.clear();
  return knownType(scalar);
}

}  // namespace

NodeContext::NodeContext(Inference& inference, Node& node, const onnx::NodeProto& proto)
    : inference_(inference), node_(node), proto_(proto) {
  for (ValueId id : node.inputs)
    input_types_.push_back(id.valid() ? typeForSchema(node, inference.graph_.value(id)) : onnx::TypeProto());
  // Inference of a Loop speaks of an output for every carried value before it looks how many there are.
  output_types_.resize(node.outputs.size() + node.inputs.size());
}

NodeContext::~NodeContext() = default;

const onnx::AttributeProto* NodeContext::getAttribute(const std::string& name) const {
  for (const auto& attribute : proto_.attribute()) {
    if (attribute.name() == name) return &attribute;
  }
  return nullptr;
}

const onnx::TypeProto* NodeContext::getInputType(size_t index) const {
  if (index >= input_types_.size() || input_types_[index].value_case() == onnx::TypeProto::VALUE_NOT_SET)
    return nullptr;
  return &input_types_[index];
}

std::optional<int64_t> NodeContext::inputRank(size_t index) const {
  const onnx::TypeProto* type = getInputType(index);
  if (type == nullptr || !type->has_tensor_type() || !type->tensor_type().has_shape()) return std::nullopt;
  return type->tensor_type().shape().dim_size();
}

bool NodeContext::hasInput(size_t index) const {
  return index < node_.inputs.size() && node_.inputs[index].valid();
}

const onnx::TensorProto* NodeContext::getInputData(size_t index) const {
  if (!hasInput(index)) return nullptr;
  const auto known = input_data_.find(index);
  if (known != input_data_.end()) return &known->second;
  const Constant* constant = inference_.constantOf(node_.inputs[index]);
  // Schemas read axes, sizes and scalars, never whole weights.
  if (constant == nullptr || constant->bytes.size() > kBigTensor * 16) return nullptr;
  onnx::TensorProto& tensor = input_data_[index];
  constantToTensor(*constant, tensor);
  if (countsAsScalar(node_, constant->shape)) tensor.clear_dims();
  return &tensor;
}

onnx::TypeProto* NodeContext::getOutputType(size_t index) {
  return index < output_types_.size() ? &output_types_[index] : nullptr;
}

// A condition that is known decides: its branch stands for both, as the other one may not go with the sizes
// that are given.
std::string NodeContext::branchTaken(const std::string& attribute_name) const {
  if (!node_.is("If") || !hasInput(0)) return attribute_name;
  const Constant* condition = inference_.constantOf(node_.inputs[0]);
  if (condition == nullptr || condition->data_type != DataType::kBool || condition->bytes.size() != 1)
    return attribute_name;
  return condition->bytes[0] != std::byte{0} ? "then_branch" : "else_branch";
}

onnx::GraphInferencer* NodeContext::getGraphAttributeInferencer(const std::string& name) {
  const std::string attribute_name = branchTaken(name);
  const auto it = node_.attributes.find(attribute_name);
  if (it == node_.attributes.end() || !std::holds_alternative<std::shared_ptr<const Graph>>(it->second)) {
    fail(ErrorCode::kBadModel, "{} has no subgraph '{}'", describeNode(node_), attribute_name);
  }
  std::unique_ptr<onnx::GraphInferencer>& inferencer = inferencers_[attribute_name];
  if (!inferencer) inferencer = std::make_unique<SubgraphInferencer>(inference_, node_, attribute_name);
  return inferencer.get();
}

namespace {

// A node as another context sees it, but with tensors of any sizes: of types and numbers of axes alone.
class OpenSizesContext : public onnx::InferenceContext {
 public:
  explicit OpenSizesContext(NodeContext& bound) : bound_(bound), output_types_(bound.getNumOutputs()) {
    for (size_t i = 0; i < bound.getNumInputs(); ++i) {
      const onnx::TypeProto* type = bound.getInputType(i);
      onnx::TypeProto& open = input_types_.emplace_back(type == nullptr ? onnx::TypeProto() : *type);
      if (!open.has_tensor_type() || !open.tensor_type().has_shape()) continue;
      for (auto& dimension : *open.mutable_tensor_type()->mutable_shape()->mutable_dim()) dimension.Clear();
    }
  }

  const onnx::AttributeProto* getAttribute(const std::string& name) const override {
    return bound_.getAttribute(name);
  }
  size_t getNumInputs() const override { return input_types_.size(); }
  const onnx::TypeProto* getInputType(size_t index) const override {
    return bound_.getInputType(index) == nullptr ? nullptr : &input_types_[index];
  }
  bool hasInput(size_t index) const override { return bound_.hasInput(index); }
  const onnx::TensorProto* getInputData(size_t) const override { return nullptr; }
  size_t getNumOutputs() const override { return output_types_.size(); }
  onnx::TypeProto* getOutputType(size_t index) override {
    return index < output_types_.size() ? &output_types_[index] : nullptr;
  }
  onnx::GraphInferencer* getGraphAttributeInferencer(const std::string&) override { return nullptr; }
  const onnx::SparseTensorProto* getInputSparseData(size_t) const override { return nullptr; }
  const onnx::TensorShapeProto* getSymbolicInput(size_t) const override { return nullptr; }

 private:
  NodeContext& bound_;
  std::vector<onnx::TypeProto> input_types_;
  std::vector<onnx::TypeProto> output_types_;
};

// Inference that was refused: also whatever the sizes are?
bool isRefusedAtAnySizes(const onnx::OpSchema& schema, const onnx::NodeProto& proto, NodeContext& bound) {
  const bool has_subgraphs = std::ranges::any_of(
      proto.attribute(),
      [](const onnx::AttributeProto& attribute) { return attribute.type() == onnx::AttributeProto::GRAPH; });
  if (has_subgraphs) return false;  // not looked into
  OpenSizesContext open(bound);
  try {
    schema.GetTypeAndShapeInferenceFunction()(open);
  } catch (const std::exception&) {
    return true;
  }
  return false;
}

// What to write in the place of a node that PyTorch's TorchScript exporter writes against ONNX's rules.
std::string_view insteadOf(const Node& node, const NodeContext& context) {
  const onnx::TypeProto* labels = node.inputs.size() > 1 ? context.getInputType(1) : nullptr;
  if (!operatorFacts(node).takes_labels || labels == nullptr ||
      !isFloatingPoint(DataType(labels->tensor_type().elem_type())))
    return "";
  return " (its labels are to be numbers of classes. Of probabilities: export with dynamo=True, or write it "
         "-(targets * torch.log_softmax(logits, 1)).sum(1).mean())";
}

}  // namespace

void checkAs(Contradiction::Of of, const std::function<void()>& check) {
  try {
    check();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadModel) throw;
    throw Contradiction(of, error.message());
  }
}

void applySchema(const onnx::OpSchema& schema, const Node& node, const onnx::NodeProto& proto,
                 NodeContext& context) {
  using Of = Contradiction::Of;
  const auto refuse = [&](Of of, const std::exception& error) {
    throw Contradiction(of,
                        fmt::format("{}: {}{}", describeNode(node), error.what(), insteadOf(node, context)));
  };
  const auto check = [&](const auto& step, const auto& refused_of) {
    try {
      step();
    } catch (Error&) {
      throw;
    } catch (const std::exception& error) {
      refuse(refused_of(), error);
    }
  };
  const auto types = [] { return Of::kTypes; };
  check([&] { schema.Verify(proto); }, types);
  if (schema.has_type_and_shape_inference_function()) {
    check([&] { schema.GetTypeAndShapeInferenceFunction()(context); },
          [&] { return isRefusedAtAnySizes(schema, proto, context) ? Of::kRanks : Of::kSizes; });
  }
  check([&] { schema.CheckInputOutputType(context); }, types);
}

}  // namespace pipeshard
