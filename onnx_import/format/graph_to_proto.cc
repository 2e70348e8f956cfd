#include "onnx_import/format/graph_to_proto.h"

#include <unordered_map>

#include <onnx/defs/schema.h>

#include "ir/base/error.h"
#include "onnx_import/format/proto_to_graph.h"
#include "onnx_import/format/tensor_proto.h"

namespace pipeshard {
namespace {

using onnx::AttributeProto;

template <typename Entries>
void metadataToProto(const Metadata& metadata, Entries* entries) {
  for (const auto& [key, value] : metadata) {
    auto* entry = entries->Add();
    entry->set_key(key);
    entry->set_value(value);
  }
}

void setIfAny(const std::string& text, const auto& set) {
  if (!text.empty()) set(text);
}

class AttributeWriter {
 public:
  explicit AttributeWriter(AttributeProto& proto) : proto_(proto) {}

  void operator()(int64_t v) const {
    proto_.set_type(AttributeProto::INT);
    proto_.set_i(v);
  }
  void operator()(float v) const {
    proto_.set_type(AttributeProto::FLOAT);
    proto_.set_f(v);
  }
  void operator()(const std::string& v) const {
    proto_.set_type(AttributeProto::STRING);
    proto_.set_s(v);
  }
  void operator()(const std::vector<int64_t>& v) const {
    proto_.set_type(AttributeProto::INTS);
    proto_.mutable_ints()->Add(v.begin(), v.end());
  }
  void operator()(const std::vector<float>& v) const {
    proto_.set_type(AttributeProto::FLOATS);
    proto_.mutable_floats()->Add(v.begin(), v.end());
  }
  void operator()(const std::vector<std::string>& v) const {
    proto_.set_type(AttributeProto::STRINGS);
    for (const std::string& s : v) proto_.add_strings(s);
  }
  void operator()(const Constant& v) const {
    proto_.set_type(AttributeProto::TENSOR);
    constantToTensor(v, *proto_.mutable_t());
  }
  void operator()(const std::shared_ptr<const Graph>& v) const;
  void operator()(const AttributeReference& v) const {
    proto_.set_type(static_cast<AttributeProto::AttributeType>(v.type));
    proto_.set_ref_attr_name(v.name);
  }
  void operator()(const OpaqueAttribute& v) const {
    const std::string name = proto_.name();
    PIPESHARD_CHECK(proto_.ParseFromString(v.bytes), "attribute '{}' holds bytes that are no AttributeProto",
                    name);
    proto_.set_name(name);
  }

 private:
  AttributeProto& proto_;
};

// Writes one graph (main, subgraph or function body). What Graph has fields for is written from these. What
// it has none for is its *residue*: Graph::opaque, a ModelProto of which only such fields are filled
// (proto_to_graph.cc makes it). An entry of the residue is found again by the name of its value or tensor,
// and adds to what was written: documentation, denotations, metadata of tensors, checksums. So a change to
// the graph wins over the residue, and an entry whose value is gone is left out.
//
// A value is described once: inputs and outputs in their lists, an initializer's type in its tensor, all
// other values that this graph defines in value_info. A value that a subgraph reads from outside is described
// where it is defined.
class GraphWriter {
 public:
  GraphWriter(const Graph& graph, WeightForm form) : graph_(graph), form_(form) {
    if (!graph.opaque.empty())
      PIPESHARD_CHECK(residue_.ParseFromString(graph.opaque),
                      "graph '{}' carries bytes that are no ModelProto", graph.name);
    for (const auto& info : residue_.graph().value_info()) infos_.emplace(info.name(), &info);
  }

  void write(onnx::GraphProto& proto);
  template <typename Infos>
  void writeValueInfo(Infos* infos) const;
  const onnx::ModelProto& residue() const { return residue_; }

 private:
  void writeInfo(ValueId id, onnx::ValueInfoProto& info) const;
  void writeInitializers(onnx::GraphProto& proto) const;
  void writeReference(const WeightReference& reference, onnx::TensorProto& tensor) const;
  void writeMarkedInitializer(const Node& node, onnx::GraphProto& proto) const;

  const Graph& graph_;
  WeightForm form_;
  onnx::ModelProto residue_;
  std::unordered_map<std::string, const onnx::ValueInfoProto*> infos_;
};

void GraphWriter::writeInfo(ValueId id, onnx::ValueInfoProto& info) const {
  const Value& value = graph_.value(id);
  info.set_name(value.name);
  onnx::TypeProto type;
  if (valueTypeToProto(value, type)) *info.mutable_type() = std::move(type);
  metadataToProto(value.metadata, info.mutable_metadata_props());
  const auto more = infos_.find(value.name);
  if (more == infos_.end()) return;
  setIfAny(more->second->doc_string(), [&](const std::string& doc) { info.set_doc_string(doc); });
  if (!more->second->has_type()) return;
  const onnx::TypeProto& original = more->second->type();
  setIfAny(original.denotation(),
           [&](const std::string& text) { info.mutable_type()->set_denotation(text); });
  const auto& dims = original.tensor_type().shape().dim();
  auto* shape = info.mutable_type()->has_tensor_type() ? info.mutable_type()->mutable_tensor_type() : nullptr;
  if (shape == nullptr || !shape->has_shape() || shape->shape().dim_size() != dims.size()) return;
  for (int axis = 0; axis < dims.size(); ++axis) {
    if (dims[axis].has_denotation())
      shape->mutable_shape()->mutable_dim(axis)->set_denotation(dims[axis].denotation());
  }
}

void GraphWriter::writeReference(const WeightReference& reference, onnx::TensorProto& tensor) const {
  tensor.set_data_location(onnx::TensorProto::EXTERNAL);
  const std::pair<const char*, std::string> entries[] = {{"location", reference.location},
                                                         {"offset", std::to_string(reference.offset)},
                                                         {"length", std::to_string(reference.length)}};
  for (const auto& [key, value] : entries) {
    auto* entry = tensor.add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  }
}

void GraphWriter::writeInitializers(onnx::GraphProto& proto) const {
  std::unordered_map<std::string, const onnx::TensorProto*> more;
  for (const auto& tensor : residue_.graph().initializer()) more.emplace(tensor.name(), &tensor);
  for (const auto& [id, initializer] : graph_.initializers) {
    const Value& value = graph_.value(id);
    const auto* reference = std::get_if<WeightReference>(&initializer);
    if (reference != nullptr && form_ == WeightForm::kInputs) {
      if (std::find(graph_.inputs.begin(), graph_.inputs.end(), id) == graph_.inputs.end())
        writeInfo(id, *proto.add_input());
      continue;
    }
    auto& tensor = *proto.add_initializer();
    tensor.set_name(value.name);
    if (reference != nullptr) {
      tensor.set_data_type(static_cast<int32_t>(value.data_type));
      PIPESHARD_CHECK(value.shape && isStatic(*value.shape), "initializer '{}' has no static shape",
                      value.name);
      for (int64_t size : *value.shape) tensor.add_dims(size);
      writeReference(*reference, tensor);
    } else {
      constantToTensor(std::get<Constant>(initializer), tensor);
    }
    const auto extra = more.find(value.name);
    if (extra == more.end()) continue;
    setIfAny(extra->second->doc_string(), [&](const std::string& doc) { tensor.set_doc_string(doc); });
    *tensor.mutable_metadata_props() = extra->second->metadata_props();
    if (reference != nullptr) tensor.mutable_external_data()->MergeFrom(extra->second->external_data());
  }
}

void GraphWriter::writeMarkedInitializer(const Node& node, onnx::GraphProto& proto) const {
  AttributeProto attribute;
  for (const auto& [name, value] : node.attributes) attributeToProto(name, value, attribute);
  const std::string& name = graph_.value(node.outputs.front()).name;
  if (attribute.has_sparse_tensor()) {
    *proto.add_sparse_initializer() = attribute.sparse_tensor();
    proto.mutable_sparse_initializer()->rbegin()->mutable_values()->set_name(name);
  } else {
    *proto.add_initializer() = attribute.t();
    proto.mutable_initializer()->rbegin()->set_name(name);
  }
}

template <typename Infos>
void GraphWriter::writeValueInfo(Infos* infos) const {
  std::vector<bool> written(graph_.values.size(), false);
  std::vector<bool> defined(graph_.values.size(), false);
  for (const auto* list : {&graph_.inputs, &graph_.outputs}) {
    for (ValueId id : *list) written[id.index()] = true;
  }
  for (const Node& node : graph_.nodes) {
    for (ValueId id : node.outputs) {
      if (id.valid()) defined[id.index()] = true;
    }
  }
  for (size_t i = 0; i < graph_.values.size(); ++i) {
    const Value& value = graph_.values[i];
    const bool initializer = graph_.initializers.contains(ValueId(i));
    // A captured value is described where it is defined; an initializer's type is in the tensor.
    if (written[i] || !(initializer ? !value.metadata.empty() || infos_.contains(value.name) : defined[i]))
      continue;
    if (initializer && form_ == WeightForm::kInputs) continue;
    if (value.data_type == DataType::kUndefined && !value.shape && value.opaque_type.empty() &&
        value.metadata.empty())
      continue;
    writeInfo(ValueId(i), *infos->Add());
  }
}

void GraphWriter::write(onnx::GraphProto& proto) {
  proto.set_name(graph_.name);
  setIfAny(graph_.doc, [&](const std::string& doc) { proto.set_doc_string(doc); });
  metadataToProto(graph_.metadata, proto.mutable_metadata_props());
  *proto.mutable_quantization_annotation() = residue_.graph().quantization_annotation();
  for (ValueId id : graph_.inputs) writeInfo(id, *proto.add_input());
  for (ValueId id : graph_.outputs) writeInfo(id, *proto.add_output());
  writeInitializers(proto);
  for (const Node& node : graph_.nodes) {
    if (isMarkedInitializer(node)) {
      writeMarkedInitializer(node, proto);
    } else {
      nodeToProto(graph_, node, *proto.add_node());
    }
  }
  writeValueInfo(proto.mutable_value_info());
}

void AttributeWriter::operator()(const std::shared_ptr<const Graph>& v) const {
  proto_.set_type(AttributeProto::GRAPH);
  graphToProto(*v, *proto_.mutable_g());
}

template <typename Imports>
void opsetsToProto(const std::map<std::string, int>& opsets, Imports* imports) {
  for (const auto& [domain, version] : opsets) {
    auto* import = imports->Add();
    import->set_domain(domain);
    import->set_version(version);
  }
}

}  // namespace

bool isMarkedInitializer(const Node& node) {
  if (!node.is("Constant")) return false;
  for (const auto& [key, value] : node.metadata) {
    if (key == kInitializerMark) return true;
  }
  return false;
}

void attributeToProto(const std::string& name, const Attribute& attribute, AttributeProto& proto) {
  proto.set_name(name);
  std::visit(AttributeWriter(proto), attribute);
}

onnx::NodeProto residueOf(const Node& node) {
  onnx::NodeProto residue;
  PIPESHARD_CHECK(residue.ParseFromString(node.opaque), "{} carries bytes that are no NodeProto",
                  describeNode(node));
  return residue;
}

void nodeToProto(const Graph& graph, const Node& node, onnx::NodeProto& proto) {
  const auto nameOf = [&](ValueId id) { return id.valid() ? graph.value(id).name : std::string(); };
  for (ValueId id : node.inputs) proto.add_input(nameOf(id));
  for (ValueId id : node.outputs) proto.add_output(nameOf(id));
  proto.set_op_type(node.op_type);
  setIfAny(node.name, [&](const std::string& text) { proto.set_name(text); });
  setIfAny(node.domain, [&](const std::string& text) { proto.set_domain(text); });
  setIfAny(node.overload, [&](const std::string& text) { proto.set_overload(text); });
  setIfAny(node.doc, [&](const std::string& text) { proto.set_doc_string(text); });
  metadataToProto(node.metadata, proto.mutable_metadata_props());
  for (const auto& [name, attribute] : node.attributes)
    attributeToProto(name, attribute, *proto.add_attribute());
  if (node.opaque.empty()) return;
  const onnx::NodeProto residue = residueOf(node);
  *proto.mutable_device_configurations() = residue.device_configurations();
  for (const auto& more : residue.attribute()) {
    for (auto& attribute : *proto.mutable_attribute()) {
      if (attribute.name() != more.name()) continue;
      setIfAny(more.doc_string(), [&](const std::string& doc) { attribute.set_doc_string(doc); });
      if (more.has_t() && attribute.has_t()) attribute.mutable_t()->MergeFrom(more.t());
    }
  }
}

void graphToProto(const Graph& graph, onnx::GraphProto& proto) {
  GraphWriter(graph, WeightForm::kExternalData).write(proto);
}

void functionToProto(const Function& function, onnx::FunctionProto& proto) {
  proto.set_name(function.name);
  proto.set_domain(function.domain);
  setIfAny(function.overload, [&](const std::string& text) { proto.set_overload(text); });
  setIfAny(function.doc, [&](const std::string& text) { proto.set_doc_string(text); });
  for (const std::string& attribute : function.attributes) proto.add_attribute(attribute);
  for (const auto& [name, attribute] : function.default_attributes)
    attributeToProto(name, attribute, *proto.add_attribute_proto());
  metadataToProto(function.metadata, proto.mutable_metadata_props());
  const Graph& body = *function.body;
  PIPESHARD_CHECK(body.initializers.empty(), "the body of function '{}' has initializers; use Constant nodes",
                  function.name);
  for (ValueId id : body.inputs) proto.add_input(body.value(id).name);
  for (ValueId id : body.outputs) proto.add_output(body.value(id).name);
  for (const Node& node : body.nodes) nodeToProto(body, node, *proto.add_node());
  opsetsToProto(body.opset_imports, proto.mutable_opset_import());
  GraphWriter(body, WeightForm::kExternalData).writeValueInfo(proto.mutable_value_info());
}

void checkVersions(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    const auto import = graph.opset_imports.find(node.domain);
    if (import == graph.opset_imports.end()) {
      fail(ErrorCode::kBadModel, "{}: the graph imports no opset of the domain '{}'", describeNode(node),
           node.domain);
    }
    if (node.opset_version == 0 || node.opset_version == import->second) continue;
    const auto* registry = onnx::OpSchemaRegistry::Instance();
    const auto* own = registry->GetSchema(node.op_type, node.opset_version, node.domain);
    const auto* imported = registry->GetSchema(node.op_type, import->second, node.domain);
    if (own == imported) continue;
    fail(ErrorCode::kBadModel,
         "{} has the meaning of opset {}, which differs from that of opset {} that the graph imports",
         describeNode(node), node.opset_version, import->second);
  }
}

void modelToProto(const Graph& graph, WeightForm form, onnx::ModelProto& model) {
  model.set_ir_version(graph.ir_version);
  setIfAny(graph.producer_name, [&](const std::string& text) { model.set_producer_name(text); });
  setIfAny(graph.producer_version, [&](const std::string& text) { model.set_producer_version(text); });
  setIfAny(graph.model_domain, [&](const std::string& text) { model.set_domain(text); });
  if (graph.model_version != 0) model.set_model_version(graph.model_version);
  setIfAny(graph.model_doc, [&](const std::string& text) { model.set_doc_string(text); });
  opsetsToProto(graph.opset_imports, model.mutable_opset_import());
  metadataToProto(graph.model_metadata, model.mutable_metadata_props());
  GraphWriter writer(graph, form);
  writer.write(*model.mutable_graph());
  *model.mutable_training_info() = writer.residue().training_info();
  *model.mutable_configuration() = writer.residue().configuration();
  for (const Function& function : graph.functions) functionToProto(function, *model.add_functions());
}

}  // namespace pipeshard
