#include "onnx_import/format/proto_checks.h"

#include <unordered_map>
#include <vector>

#include "ir/base/error.h"
#include "onnx_import/format/tensor_proto.h"

namespace pipeshard {
namespace {

std::string nameNode(const onnx::NodeProto& node) {
  return fmt::format("node '{}' ({}::{})", node.name(), node.domain().empty() ? "onnx" : node.domain(),
                     node.op_type());
}

std::string functionKey(const std::string& domain, const std::string& name, const std::string& overload) {
  return normalDomain(domain) + '\n' + name + '\n' + overload;
}

// Calls of one body: how often each function is called, and how many nodes are its own.
struct Calls {
  uint64_t nodes = 0;
  std::unordered_map<std::string, uint64_t> callees;
};

class Walker {
 public:
  Walker(const ImportLimits& limits, ExternalData& external) : limits_(limits), external_(external) {}

  void graph(const onnx::GraphProto& graph, int depth, Calls& calls) {
    if (depth > limits_.subgraph_depth)
      fail(ErrorCode::kBadModel, "graph '{}' is nested deeper than the limit of {} subgraphs", graph.name(),
           limits_.subgraph_depth);
    initializers_ += static_cast<uint64_t>(graph.initializer_size()) +
                     static_cast<uint64_t>(graph.sparse_initializer_size());
    if (initializers_ > limits_.initializers)
      fail(ErrorCode::kBadModel, "the model has more than the limit of {} initializers",
           limits_.initializers);
    for (const auto& tensor : graph.initializer()) {
      name(tensor.name(), "an initializer");
      this->tensor(tensor, fmt::format("initializer '{}'", tensor.name()));
    }
    for (const auto& sparse : graph.sparse_initializer())
      sparseTensor(sparse, fmt::format("sparse initializer '{}'", sparse.values().name()));
    for (const auto& info : graph.input()) name(info.name(), "a graph input");
    for (const auto& info : graph.output()) name(info.name(), "a graph output");
    for (const auto& info : graph.value_info()) name(info.name(), "a value");
    nodes(graph.node(), depth, calls);
  }

  template <typename Nodes>
  void nodes(const Nodes& nodes, int depth, Calls& calls) {
    nodes_ += static_cast<uint64_t>(nodes.size());
    if (nodes_ > limits_.nodes)
      fail(ErrorCode::kBadModel, "the model has more than the limit of {} nodes", limits_.nodes);
    calls.nodes += static_cast<uint64_t>(nodes.size());
    for (const onnx::NodeProto& node : nodes) {
      name(node.name(), "a node");
      name(node.op_type(), "an operator type");
      for (const auto& input : node.input()) name(input, "an input of a node");
      for (const auto& output : node.output()) name(output, "an output of a node");
      ++calls.callees[functionKey(node.domain(), node.op_type(), node.overload())];
      for (const auto& attribute : node.attribute()) this->attribute(attribute, nameNode(node), depth, calls);
    }
  }

  void attribute(const onnx::AttributeProto& attribute, const std::string& owner, int depth, Calls& calls) {
    name(attribute.name(), "an attribute");
    const auto what = [&] { return fmt::format("attribute '{}' of {}", attribute.name(), owner); };
    if (attribute.has_t()) tensor(attribute.t(), what());
    for (const auto& t : attribute.tensors()) tensor(t, what());
    if (attribute.has_sparse_tensor()) sparseTensor(attribute.sparse_tensor(), what());
    for (const auto& t : attribute.sparse_tensors()) sparseTensor(t, what());
    if (attribute.has_g()) graph(attribute.g(), depth + 1, calls);
    if (attribute.graphs_size() > 0)
      fail(ErrorCode::kBadModel, "{} is a list of graphs, which pipeshard does not support", what());
  }

  void tensor(const onnx::TensorProto& tensor, const std::string& what) {
    const Shape shape = shapeOfTensor(tensor, limits_.rank, limits_.tensor_elements, what);
    if (tensor.data_location() != onnx::TensorProto::EXTERNAL) {
      if (tensor.external_data_size() > 0)
        fail(ErrorCode::kBadModel, "{} has external data entries but says that its data is inside", what);
      return;
    }
    if (tensor.has_raw_data()) fail(ErrorCode::kBadModel, "{} has both inline and external data", what);
    external_.check(tensor, rawByteCount(tensor.data_type(), shape, what), what);
  }

  void sparseTensor(const onnx::SparseTensorProto& sparse, const std::string& what) {
    tensor(sparse.values(), what);
    tensor(sparse.indices(), what);
    onnx::TensorProto dense;
    *dense.mutable_dims() = sparse.dims();
    shapeOfTensor(dense, limits_.rank, limits_.tensor_elements, what);
  }

  void name(const std::string& text, const char* what) const {
    if (text.size() <= limits_.name_bytes) return;
    fail(ErrorCode::kBadModel, "the name of {} has {} bytes, more than the limit of {}; it starts with '{}'",
         what, text.size(), limits_.name_bytes, text.substr(0, 40));
  }

 private:
  const ImportLimits& limits_;
  ExternalData& external_;
  uint64_t nodes_ = 0;
  uint64_t initializers_ = 0;
};

// Depth and size of what a call expands to.
class CallGraph {
 public:
  CallGraph(const std::unordered_map<std::string, Calls>& functions, const ImportLimits& limits)
      : functions_(functions), limits_(limits) {}

  // Nodes that the calls of `calls` expand to, its own included; saturates above the limit.
  uint64_t expand(const Calls& calls, int depth) {
    if (depth > limits_.function_call_depth) {
      fail(ErrorCode::kBadModel, "function '{}' is called through more than the limit of {} functions",
           display(path_.back()), limits_.function_call_depth);
    }
    uint64_t total = calls.nodes;
    for (const auto& [key, count] : calls.callees) {
      const auto function = functions_.find(key);
      if (function == functions_.end()) continue;
      const uint64_t each = sizeOf(key, function->second, depth);
      const uint64_t room = limits_.inlined_nodes + 1;
      total = each != 0 && count > room / each ? room : std::min(room, total + count * each);
    }
    return total;
  }

 private:
  static std::string display(std::string key) {
    for (char& c : key) {
      if (c == '\n') c = ':';
    }
    while (!key.empty() && key.back() == ':') key.pop_back();
    return key;
  }

  uint64_t sizeOf(const std::string& key, const Calls& body, int depth) {
    const auto known = sizes_.find(key);
    if (known != sizes_.end()) {
      if (known->second == kInProgress)
        fail(ErrorCode::kBadModel, "function '{}' calls itself, directly or through others", display(key));
      return known->second;
    }
    sizes_[key] = kInProgress;
    path_.push_back(key);
    const uint64_t size = expand(body, depth + 1);
    path_.pop_back();
    return sizes_[key] = size;
  }

  static constexpr uint64_t kInProgress = ~uint64_t{0};
  const std::unordered_map<std::string, Calls>& functions_;
  const ImportLimits& limits_;
  std::unordered_map<std::string, uint64_t> sizes_;
  std::vector<std::string> path_;
};

}  // namespace

std::string normalDomain(const std::string& domain) { return domain == "ai.onnx" ? std::string() : domain; }

void checkStructure(const onnx::ModelProto& model, const ImportLimits& limits, ExternalData& external) {
  Walker walker(limits, external);
  Calls main_calls;
  walker.graph(model.graph(), 0, main_calls);
  for (const auto& training : model.training_info()) {
    Calls unused;
    walker.graph(training.initialization(), 0, unused);
    walker.graph(training.algorithm(), 0, unused);
  }
  std::unordered_map<std::string, Calls> functions;
  for (const auto& function : model.functions()) {
    const std::string key = functionKey(function.domain(), function.name(), function.overload());
    if (functions.contains(key))
      fail(ErrorCode::kBadModel, "function '{}::{}' is defined twice", function.domain(), function.name());
    Calls& calls = functions[key];
    for (const auto& attribute : function.attribute_proto())
      walker.attribute(attribute, "function " + function.name(), 0, calls);
    walker.nodes(function.node(), 0, calls);
  }
  CallGraph graph(functions, limits);
  for (const auto& [key, calls] : functions) {
    Calls call;
    call.callees[key] = 1;
    graph.expand(call, 0);
  }
  if (graph.expand(main_calls, 0) > limits.inlined_nodes) {
    fail(ErrorCode::kBadModel,
         "the model has more than the limit of {} nodes after its functions are expanded",
         limits.inlined_nodes);
  }
}

}  // namespace pipeshard
