#include "onnx_import/format/proto_to_graph.h"

#include <unordered_map>

#include "ir/base/error.h"
#include "onnx_import/format/proto_checks.h"
#include "onnx_import/format/tensor_proto.h"

namespace pipeshard {
namespace {

template <typename Entries>
Metadata metadataFrom(const Entries& entries) {
  Metadata metadata;
  for (const auto& entry : entries) metadata.emplace_back(entry.key(), entry.value());
  return metadata;
}

// Names that a graph and its subgraphs can read.
struct Scope {
  const Scope* parent = nullptr;
  const Graph* graph = nullptr;
  std::unordered_map<std::string, ValueId> names;
};

using OpsetImports = std::map<std::string, int>;

template <typename Imports>
OpsetImports opsetsFrom(const Imports& imports) {
  OpsetImports opsets;
  for (const auto& import : imports) {
    if (import.version() < 1 || import.version() > 1'000'000) {
      fail(ErrorCode::kBadModel, "opset_import of domain '{}' has the version {}", import.domain(),
           import.version());
    }
    const auto [it, added] =
        opsets.emplace(normalDomain(import.domain()), static_cast<int>(import.version()));
    if (!added && it->second != import.version()) {
      fail(ErrorCode::kBadModel, "opset_import lists domain '{}' with the versions {} and {}",
           import.domain(), it->second, import.version());
    }
  }
  return opsets;
}

// That the bytes in the file are all elements of the initializer, of its type.
void checkInlineWeight(const InlineWeight& weight, const onnx::TensorProto& tensor, uint64_t expected,
                       const std::string& what) {
  using Tensor = onnx::TensorProto;
  const int type = tensor.data_type();
  const bool floats = type == Tensor::FLOAT || type == Tensor::COMPLEX64;
  const bool doubles = type == Tensor::DOUBLE || type == Tensor::COMPLEX128;
  const bool fits = weight.field == Tensor::kFloatDataFieldNumber    ? floats
                    : weight.field == Tensor::kDoubleDataFieldNumber ? doubles
                                                                     : true;
  const bool more = tensor.has_raw_data() || tensor.float_data_size() > 0 || tensor.double_data_size() > 0 ||
                    tensor.int32_data_size() > 0 || tensor.int64_data_size() > 0 ||
                    tensor.uint64_data_size() > 0;
  if (!fits || more)
    fail(ErrorCode::kBadModel, "{} holds its elements in {}", what,
         more ? "more than one field" : "a field of another type");
  if (weight.length != expected) {
    fail(ErrorCode::kBadModel, "{} holds {} bytes, but its type and shape need {}", what, weight.length,
         expected);
  }
}

// Reads one graph (main, subgraph or function body), once, in the order in which names become known:
// initializers, inputs, then node by node with the types of its outputs, so that a subgraph sees the types of
// the outer values that it reads; then the list of outputs.
//
// scope_.names has the values that are defined so far. A node may read these, or a value of an enclosing
// graph; the latter becomes a value of this graph too, with the same name and type, that nothing here
// defines. A name that is in neither comes later (later_, for the message) or never: the file is refused. So
// topological order and uniqueness of names hold for every graph that was read.
//
// Fields for which Graph and Node have no place go into residues (graphResidue, nodeResidue), which the
// writer merges in again.
class GraphReader {
 public:
  GraphReader(const ProtoSource& source, const OpsetImports& opsets, const Scope* parent)
      : source_(source), opsets_(opsets) {
    scope_.parent = parent;
  }

  Graph readGraph(onnx::GraphProto& proto, bool top);
  Graph readFunctionBody(const onnx::FunctionProto& proto);
  Attribute readAttribute(const onnx::AttributeProto& proto);

 private:
  ValueId define(const std::string& name, const std::string& by);
  ValueId resolve(const std::string& name, const std::string& reader);
  void describe(ValueId id, const onnx::ValueInfoProto& info);
  void readInitializer(onnx::TensorProto& tensor, int position, bool top);
  void addMarkedConstant(const std::string& name, const onnx::AttributeProto& attribute);
  void readNode(const onnx::NodeProto& proto);
  void applyValueInfo(const google::protobuf::RepeatedPtrField<onnx::ValueInfoProto>& infos);

  const ProtoSource& source_;
  const OpsetImports& opsets_;
  Graph graph_;
  Scope scope_;
  // value name -> the node that defines it, for messages
  std::unordered_map<std::string, std::string> later_;
};

std::string quote(const std::string& name) { return "'" + name + "'"; }

ValueId GraphReader::define(const std::string& name, const std::string& by) {
  if (name.empty()) fail(ErrorCode::kBadModel, "{} defines a value without a name", by);
  const ValueId id(graph_.values.size());
  if (!scope_.names.emplace(name, id).second)
    fail(ErrorCode::kBadModel,
         "{} defines '{}', which is already defined (PyTorch's exporter does so where a parameter or buffer "
         "of "
         "the module is called like an operator: rename it in the module)",
         by, name);
  graph_.values.emplace_back().name = name;
  return id;
}

ValueId GraphReader::resolve(const std::string& name, const std::string& reader) {
  if (name.empty()) return ValueId();
  const auto own = scope_.names.find(name);
  if (own != scope_.names.end()) return own->second;
  for (const Scope* scope = scope_.parent; scope != nullptr; scope = scope->parent) {
    const auto outer = scope->names.find(name);
    if (outer == scope->names.end()) continue;
    const ValueId id = define(name, reader);
    graph_.value(id) = scope->graph->value(outer->second);
    return id;
  }
  const auto later = later_.find(name);
  if (later != later_.end()) {
    fail(ErrorCode::kBadModel,
         "{} reads '{}' before {} defines it: the nodes form a cycle or are not in topological order", reader,
         name, later->second);
  }
  fail(ErrorCode::kBadModel,
       "{} reads '{}', which nothing defines: the file is not valid ONNX (onnx.checker refuses it, too). "
       "PyTorch's exporter writes such a file where its optimizer merges equal calls, as of torch.clamp; "
       "export the model with torch.onnx.export(..., optimize=False)",
       reader, name);
}

void GraphReader::describe(ValueId id, const onnx::ValueInfoProto& info) {
  Value& value = graph_.value(id);
  const std::string what = "value " + quote(value.name);
  if (!value.shape && value.opaque_type.empty()) {
    Value typed;
    valueTypeFromProto(info.type(), source_.limits.rank, source_.limits.tensor_elements, what, typed);
    if (value.data_type == DataType::kUndefined) value.data_type = typed.data_type;
    value.shape = std::move(typed.shape);
    value.symbols = std::move(typed.symbols);
    value.opaque_type = std::move(typed.opaque_type);
  }
  for (const auto& entry : info.metadata_props()) {
    const bool known = std::any_of(value.metadata.begin(), value.metadata.end(),
                                   [&](const auto& pair) { return pair.first == entry.key(); });
    if (!known) value.metadata.emplace_back(entry.key(), entry.value());
  }
}

void GraphReader::addMarkedConstant(const std::string& name, const onnx::AttributeProto& attribute) {
  Node node;
  node.op_type = "Constant";
  const auto opset = opsets_.find("");
  if (opset != opsets_.end()) node.opset_version = opset->second;
  node.outputs = {define(name, "initializer " + quote(name))};
  node.attributes.emplace(attribute.name(), OpaqueAttribute{attribute.SerializeAsString()});
  node.metadata.emplace_back(kInitializerMark, "true");
  graph_.nodes.push_back(std::move(node));
}

void GraphReader::readInitializer(onnx::TensorProto& tensor, int position, bool top) {
  const std::string what = "initializer " + quote(tensor.name());
  const bool external = tensor.data_location() == onnx::TensorProto::EXTERNAL;
  onnx::TensorProto inside;
  inside.set_data_type(tensor.data_type());
  if (!isPlainTensor(inside) || tensor.has_segment()) {
    onnx::AttributeProto attribute;
    attribute.set_name("value");
    attribute.set_type(onnx::AttributeProto::TENSOR);
    const std::string name = tensor.name();
    *attribute.mutable_t() = std::move(tensor);
    return addMarkedConstant(name, attribute);
  }
  const ValueId id = define(tensor.name(), what);
  const Shape shape = shapeOfTensor(tensor, source_.limits.rank, source_.limits.tensor_elements, what);
  graph_.value(id).data_type = static_cast<DataType>(tensor.data_type());
  graph_.value(id).shape = shape;
  const auto weight = source_.inline_weights.find(position);
  const bool inside_file = top && weight != source_.inline_weights.end();
  const DataType type = graph_.value(id).data_type;
  const bool packed = type == DataType::kInt4 || type == DataType::kUint4 || type == DataType::kFloat4E2M1;
  if (packed && (external || inside_file)) {
    fail(ErrorCode::kBadModel,
         "{} has large weights of 4 bits ({}), which pipeshard does not read; store them in 8 bits", what,
         shapeToString(shape));
  }
  if (external && inside_file) fail(ErrorCode::kBadModel, "{} has both inline and external data", what);
  if (external) {
    if (source_.external == nullptr)
      fail(ErrorCode::kBadModel, "{} has external data where none is allowed", what);
    graph_.initializers.emplace(
        id, source_.external->check(tensor, rawByteCount(tensor.data_type(), shape, what), what));
  } else if (inside_file) {
    checkInlineWeight(weight->second, tensor, rawByteCount(tensor.data_type(), shape, what), what);
    graph_.initializers.emplace(id,
                                WeightReference{source_.file, weight->second.offset, weight->second.length});
  } else {
    graph_.initializers.emplace(id, constantFromTensor(tensor, shape, what));
    // a model with inline weights is not held twice
    onnx::TensorProto().mutable_raw_data()->swap(*tensor.mutable_raw_data());
  }
}

Attribute GraphReader::readAttribute(const onnx::AttributeProto& proto) {
  using Proto = onnx::AttributeProto;
  if (!proto.ref_attr_name().empty()) return AttributeReference{proto.ref_attr_name(), proto.type()};
  Proto::AttributeType type = proto.type();
  if (type == Proto::UNDEFINED) {  // files of IR version 1
    type = proto.has_f()              ? Proto::FLOAT
           : proto.has_i()            ? Proto::INT
           : proto.has_s()            ? Proto::STRING
           : proto.has_t()            ? Proto::TENSOR
           : proto.has_g()            ? Proto::GRAPH
           : proto.floats_size() > 0  ? Proto::FLOATS
           : proto.ints_size() > 0    ? Proto::INTS
           : proto.strings_size() > 0 ? Proto::STRINGS
                                      : Proto::UNDEFINED;
  }
  switch (type) {
    case Proto::FLOAT: return proto.f();
    case Proto::INT: return proto.i();
    case Proto::STRING: return proto.s();
    case Proto::FLOATS: return std::vector<float>(proto.floats().begin(), proto.floats().end());
    case Proto::INTS: return std::vector<int64_t>(proto.ints().begin(), proto.ints().end());
    case Proto::STRINGS: return std::vector<std::string>(proto.strings().begin(), proto.strings().end());
    case Proto::TENSOR: {
      if (!isPlainTensor(proto.t())) break;
      const std::string what = "attribute " + quote(proto.name());
      return constantFromTensor(
          proto.t(), shapeOfTensor(proto.t(), source_.limits.rank, source_.limits.tensor_elements, what),
          what);
    }
    case Proto::GRAPH: {
      onnx::GraphProto body = proto.g();
      return std::make_shared<const Graph>(GraphReader(source_, opsets_, &scope_).readGraph(body, false));
    }
    default: break;
  }
  return OpaqueAttribute{proto.SerializeAsString()};
}

// Fields of a node that Node does not have.
std::string nodeResidue(const onnx::NodeProto& proto) {
  onnx::NodeProto residue;
  *residue.mutable_device_configurations() = proto.device_configurations();
  for (const auto& attribute : proto.attribute()) {
    const bool named = isPlainTensor(attribute.t()) &&
                       (!attribute.t().name().empty() || !attribute.t().doc_string().empty() ||
                        attribute.t().metadata_props_size() > 0);
    if (attribute.doc_string().empty() && !named) continue;
    auto* kept = residue.add_attribute();
    kept->set_name(attribute.name());
    if (!attribute.doc_string().empty()) kept->set_doc_string(attribute.doc_string());
    if (!named) continue;
    if (!attribute.t().name().empty()) kept->mutable_t()->set_name(attribute.t().name());
    if (!attribute.t().doc_string().empty()) kept->mutable_t()->set_doc_string(attribute.t().doc_string());
    *kept->mutable_t()->mutable_metadata_props() = attribute.t().metadata_props();
  }
  return residue.SerializeAsString();
}

void GraphReader::readNode(const onnx::NodeProto& proto) {
  Node node;
  node.domain = normalDomain(proto.domain());
  node.op_type = proto.op_type();
  node.overload = proto.overload();
  node.name = proto.name();
  node.doc = proto.doc_string();
  node.metadata = metadataFrom(proto.metadata_props());
  node.opaque = nodeResidue(proto);
  const std::string what = describeNode(node);
  if (node.op_type.empty()) fail(ErrorCode::kBadModel, "{} has no operator type", what);
  const auto opset = opsets_.find(node.domain);
  if (opset == opsets_.end()) {
    fail(ErrorCode::kBadModel, "{} uses the domain '{}', which opset_import does not list", what,
         node.domain.empty() ? "ai.onnx" : node.domain);
  }
  node.opset_version = opset->second;
  for (const auto& input : proto.input()) node.inputs.push_back(resolve(input, what));
  for (const auto& attribute : proto.attribute()) {
    try {
      if (!node.attributes.emplace(attribute.name(), readAttribute(attribute)).second) {
        fail(ErrorCode::kBadModel, "the attribute '{}' occurs twice", attribute.name());
      }
    } catch (Error& error) {
      error.addContext(what);
      throw;
    }
  }
  for (const auto& output : proto.output())
    node.outputs.push_back(output.empty() ? ValueId() : define(output, what));
  graph_.nodes.push_back(std::move(node));
}

void GraphReader::applyValueInfo(const google::protobuf::RepeatedPtrField<onnx::ValueInfoProto>& infos) {
  for (const auto& info : infos) {
    const auto it = scope_.names.find(info.name());
    if (it != scope_.names.end()) describe(it->second, info);
  }
}

bool hasDenotation(const onnx::TypeProto& type) {
  if (!type.denotation().empty()) return true;
  for (const auto& dim : type.tensor_type().shape().dim()) {
    if (!dim.denotation().empty()) return true;
  }
  return false;
}

// Fields of a graph that Graph does not have.
onnx::GraphProto graphResidue(const onnx::GraphProto& proto) {
  onnx::GraphProto residue;
  *residue.mutable_quantization_annotation() = proto.quantization_annotation();
  for (const auto& tensor : proto.initializer()) {
    bool more = !tensor.doc_string().empty() || tensor.metadata_props_size() > 0;
    for (const auto& entry : tensor.external_data()) more = more || entry.key() == "checksum";
    if (!more) continue;
    auto* kept = residue.add_initializer();
    kept->set_name(tensor.name());
    if (!tensor.doc_string().empty()) kept->set_doc_string(tensor.doc_string());
    *kept->mutable_metadata_props() = tensor.metadata_props();
    for (const auto& entry : tensor.external_data()) {
      if (entry.key() == "checksum") *kept->add_external_data() = entry;
    }
  }
  const auto keep = [&](const auto& infos) {
    for (const auto& info : infos) {
      if (info.doc_string().empty() && !hasDenotation(info.type())) continue;
      auto* kept = residue.add_value_info();
      kept->set_name(info.name());
      if (!info.doc_string().empty()) kept->set_doc_string(info.doc_string());
      if (hasDenotation(info.type())) *kept->mutable_type() = info.type();
    }
  };
  keep(proto.input());
  keep(proto.output());
  keep(proto.value_info());
  return residue;
}

Graph GraphReader::readGraph(onnx::GraphProto& proto, bool top) {
  scope_.graph = &graph_;
  graph_.name = proto.name();
  graph_.doc = proto.doc_string();
  graph_.metadata = metadataFrom(proto.metadata_props());
  onnx::ModelProto residue;
  *residue.mutable_graph() = graphResidue(proto);
  if (residue.graph().ByteSizeLong() > 0) graph_.opaque = residue.SerializeAsString();
  for (const auto& node : proto.node()) {
    for (const auto& output : node.output())
      later_.emplace(output, fmt::format("node '{}' ({})", node.name(), node.op_type()));
  }
  for (int i = 0; i < proto.initializer_size(); ++i) readInitializer(*proto.mutable_initializer(i), i, top);
  for (auto& sparse : *proto.mutable_sparse_initializer()) {
    onnx::AttributeProto attribute;
    attribute.set_name("sparse_value");
    attribute.set_type(onnx::AttributeProto::SPARSE_TENSOR);
    *attribute.mutable_sparse_tensor() = sparse;
    addMarkedConstant(sparse.values().name(), attribute);
  }
  for (const auto& info : proto.input()) {
    const auto known = scope_.names.find(info.name());
    const bool default_value = known != scope_.names.end() && graph_.initializers.contains(known->second);
    const ValueId id =
        default_value ? known->second : define(info.name(), "graph input " + quote(info.name()));
    if (std::find(graph_.inputs.begin(), graph_.inputs.end(), id) != graph_.inputs.end()) {
      fail(ErrorCode::kBadModel, "the graph input '{}' is listed twice", info.name());
    }
    describe(id, info);
    graph_.inputs.push_back(id);
  }
  // Types first, so that a subgraph sees those of the values it captures.
  std::unordered_map<std::string, const onnx::ValueInfoProto*> infos;
  for (const auto& info : proto.output()) infos[info.name()] = &info;
  for (const auto& info : proto.value_info()) infos[info.name()] = &info;
  for (const auto& node : proto.node()) {
    readNode(node);
    for (ValueId output : graph_.nodes.back().outputs) {
      if (!output.valid()) continue;
      const auto info = infos.find(graph_.value(output).name);
      if (info != infos.end()) describe(output, *info->second);
    }
  }
  applyValueInfo(proto.value_info());
  for (const auto& info : proto.output()) {
    if (info.name().empty())
      fail(ErrorCode::kBadModel, "graph '{}' has an output without a name", graph_.name);
    graph_.outputs.push_back(
        resolve(info.name(), fmt::format("the list of outputs of graph '{}'", graph_.name)));
    describe(graph_.outputs.back(), info);
  }
  return std::move(graph_);
}

Graph GraphReader::readFunctionBody(const onnx::FunctionProto& proto) {
  scope_.graph = &graph_;
  graph_.name = proto.name();
  graph_.opset_imports = opsets_;
  for (const auto& node : proto.node()) {
    for (const auto& output : node.output())
      later_.emplace(output, fmt::format("node '{}' ({})", node.name(), node.op_type()));
  }
  for (const auto& input : proto.input()) graph_.inputs.push_back(define(input, "input " + quote(input)));
  for (const auto& node : proto.node()) readNode(node);
  for (const auto& output : proto.output()) graph_.outputs.push_back(resolve(output, "the list of outputs"));
  applyValueInfo(proto.value_info());
  for (ValueId id : graph_.outputs) {
    if (!id.valid()) fail(ErrorCode::kBadModel, "an output has no name");
  }
  return std::move(graph_);
}

}  // namespace

Function functionFromProto(const onnx::FunctionProto& proto, const ProtoSource& source) {
  Function function;
  function.domain = normalDomain(proto.domain());
  function.name = proto.name();
  function.overload = proto.overload();
  function.doc = proto.doc_string();
  function.attributes.assign(proto.attribute().begin(), proto.attribute().end());
  function.metadata = metadataFrom(proto.metadata_props());
  try {
    const OpsetImports opsets = opsetsFrom(proto.opset_import());
    for (const auto& attribute : proto.attribute_proto())
      function.default_attributes.emplace(attribute.name(), attributeFromProto(attribute, source));
    function.body =
        std::make_shared<const Graph>(GraphReader(source, opsets, nullptr).readFunctionBody(proto));
  } catch (Error& error) {
    error.addContext(fmt::format("function '{}::{}'", proto.domain(), proto.name()));
    throw;
  }
  return function;
}

Attribute attributeFromProto(const onnx::AttributeProto& attribute, const ProtoSource& source) {
  const OpsetImports none;
  return GraphReader(source, none, nullptr).readAttribute(attribute);
}

Graph graphInside(onnx::GraphProto& proto, const Graph& outer, const ProtoSource& source) {
  Scope scope;
  scope.graph = &outer;
  for (size_t i = 0; i < outer.values.size(); ++i) scope.names.emplace(outer.values[i].name, ValueId(i));
  return GraphReader(source, outer.opset_imports, &scope).readGraph(proto, false);
}

Graph graphFromModel(onnx::ModelProto& model, const ProtoSource& source) {
  if (!model.has_graph()) fail(ErrorCode::kBadModel, "the model has no graph; is this an ONNX file?");
  if (!model.has_ir_version())
    fail(ErrorCode::kBadModel, "the model has no ir_version; is this an ONNX file?");
  if (model.ir_version() < 1 || model.ir_version() > onnx::Version::IR_VERSION) {
    fail(ErrorCode::kBadModel,
         "the model has the IR version {}; 1 to {} are supported. Export it again with an older version",
         model.ir_version(), static_cast<int>(onnx::Version::IR_VERSION));
  }
  OpsetImports opsets = opsetsFrom(model.opset_import());
  if (opsets.empty() && model.ir_version() < 3) opsets[""] = 1;
  Graph graph = GraphReader(source, opsets, nullptr).readGraph(*model.mutable_graph(), true);
  graph.opset_imports = opsets;
  graph.ir_version = model.ir_version();
  graph.producer_name = model.producer_name();
  graph.producer_version = model.producer_version();
  graph.model_domain = model.domain();
  graph.model_version = model.model_version();
  graph.model_doc = model.doc_string();
  graph.model_metadata = metadataFrom(model.metadata_props());
  for (const auto& function : model.functions())
    graph.functions.push_back(functionFromProto(function, source));
  onnx::ModelProto residue;
  if (!graph.opaque.empty()) residue.ParseFromString(graph.opaque);
  *residue.mutable_training_info() = model.training_info();
  *residue.mutable_configuration() = model.configuration();
  graph.opaque = residue.ByteSizeLong() > 0 ? residue.SerializeAsString() : std::string();
  return graph;
}

}  // namespace pipeshard
