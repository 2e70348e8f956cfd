// Graph: an ONNX graph as plain data. Values and nodes live in vectors and are addressed by ValueId and
// NodeId.
//
// Invariants (verifyGraph checks them):
//   * value names are unique and not empty; every id in the graph is in range;
//   * every value has exactly one definition: a graph input, an initializer, or one node output
//     (a graph input may also have an initializer: its default, ONNX IR >= 4);
//   * nodes are in topological order;
//   * initializers have a static shape and a data type equal to their value's.
// A *prepared* graph (onnx_import/prepare/prepare.h) has in addition a static shape and a type for every
// value, and no calls of model-local functions other than those of the pipeshard domain.
//
// Weights are references (file, offset, length): a Graph of a 100 GB model is small. Analyses are side tables
// keyed by id (UseDef below). Nothing here knows protobuf. A Graph is copyable, comparable by printing, and
// thread-compatible.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "ir/base/data_type.h"
#include "ir/base/ids.h"
#include "ir/base/random_numbers.h"
#include "ir/base/shape.h"

namespace pipeshard {

// The domain of pipeshard's own functions and collectives.
inline constexpr std::string_view kPipeshardDomain = "pipeshard";

struct Graph;

// A small tensor held in memory, row-major, little-endian. bytes.size() == byteCount(type, shape).
struct Constant {
  DataType data_type = DataType::kUndefined;
  Shape shape;
  std::vector<std::byte> bytes;
  friend bool operator==(const Constant&, const Constant&) = default;
};

// A tensor that stays where the model has it. The bytes are raw little-endian row-major elements.
struct WeightReference {
  std::string location;  // path relative to Graph::directory (as in the model), or absolute in a Program
  uint64_t offset = 0;   // bytes
  uint64_t length = 0;   // bytes; equals byteCount(type, shape) of the value
  // No file has it (location is ""): it is drawn when a job loads its weights, from the job's seed.
  std::optional<RandomNumbers> drawn = {};
  bool transposed = false;  // the file has the transposed matrix
  friend bool operator==(const WeightReference&, const WeightReference&) = default;
};

using Initializer = std::variant<Constant, WeightReference>;

// In a function body: "the attribute `name` of the calling node", with the ONNX attribute type number.
struct AttributeReference {
  std::string name;
  int32_t type = 0;
  friend bool operator==(const AttributeReference&, const AttributeReference&) = default;
};

// An attribute that pipeshard carries but does not interpret: a serialised onnx.AttributeProto.
struct OpaqueAttribute {
  std::string bytes;
  friend bool operator==(const OpaqueAttribute&, const OpaqueAttribute&) = default;
};

using Attribute = std::variant<int64_t, float, std::string, std::vector<int64_t>, std::vector<float>,
                               std::vector<std::string>, Constant, std::shared_ptr<const Graph>,
                               AttributeReference, OpaqueAttribute>;

using Metadata = std::vector<std::pair<std::string, std::string>>;

struct Value {
  std::string name;
  DataType data_type = DataType::kUndefined;  // kUndefined: not known (yet)
  // kUnknownSize for unknown or symbolic axes; nullopt: rank unknown
  std::optional<Shape> shape;
  // per axis the symbolic name ("batch") or ""; empty when none is symbolic
  std::vector<std::string> symbols;
  Metadata metadata;  // the exporter's, e.g. InputSpec.kind
  // serialised onnx.TypeProto of a value that is no dense tensor, else empty
  std::string opaque_type;
  std::optional<RandomNumbers> drawn = {};  // a graph input that no data give: it is drawn in every step
};

struct Node {
  std::string domain;  // "" is ai.onnx
  std::string op_type;
  std::string overload;
  int opset_version = 0;         // version of `domain` that gives the operator its meaning
  std::vector<ValueId> inputs;   // an invalid id is an omitted optional input
  std::vector<ValueId> outputs;  // likewise
  std::map<std::string, Attribute> attributes;
  // Provenance: for messages, layer boundaries and repeated-block recognition; never for meaning.
  std::string name;
  std::string doc;
  Metadata metadata;   // the exporter's, e.g. module path
  std::string opaque;  // other serialised fields of onnx.NodeProto (device configurations), carried unchanged

  bool is(std::string_view standard_op_type) const { return domain.empty() && op_type == standard_op_type; }

  // Attribute `attribute_name` if present, else the default. Throws Error(kBadModel) when it has another
  // type.
  int64_t intAttribute(std::string_view attribute_name, int64_t default_value) const;
  float floatAttribute(std::string_view attribute_name, float default_value) const;
  std::string stringAttribute(std::string_view attribute_name, std::string_view default_value) const;
  std::vector<int64_t> intsAttribute(std::string_view attribute_name,
                                     std::vector<int64_t> default_value = {}) const;
  bool hasAttribute(std::string_view attribute_name) const;
};

// A model-local function. Its body's graph inputs and outputs are the formal parameters; nodes in the body
// may hold AttributeReference attributes.
struct Function {
  std::string domain;
  std::string name;
  std::string overload;
  std::string doc;
  std::vector<std::string> attributes;                  // required of a call
  std::map<std::string, Attribute> default_attributes;  // optional in a call
  std::shared_ptr<const Graph> body;                    // with its own opset_imports
  Metadata metadata;
};

struct Graph {
  std::string name = "main_graph";
  std::string doc;
  std::vector<Value> values;
  std::vector<Node> nodes;  // topological order
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  std::map<ValueId, Initializer> initializers;

  // Of the model (empty in a function body, but for opset_imports, and in subgraphs).
  std::map<std::string, int> opset_imports;  // domain -> version
  std::vector<Function> functions;
  int64_t ir_version = 10;
  std::string producer_name;
  std::string producer_version;
  std::string model_domain;
  int64_t model_version = 0;
  std::string model_doc;
  Metadata metadata;        // of the graph
  Metadata model_metadata;  // of the model
  std::string opaque;       // other serialised fields of onnx.ModelProto/GraphProto, carried unchanged
  std::string directory;    // where WeightReference::location starts; "" when built in memory

  Value& value(ValueId id) { return values[id.index()]; }
  const Value& value(ValueId id) const { return values[id.index()]; }
  Node& node(NodeId id) { return nodes[id.index()]; }
  const Node& node(NodeId id) const { return nodes[id.index()]; }

  // The static shape of a value of a prepared graph. Throws Error(kInternal), naming the value, if it has
  // none.
  const Shape& shape(ValueId id) const;
  DataType dataType(ValueId id) const { return value(id).data_type; }
  // byteCount of type and static shape.
  int64_t bytes(ValueId id) const { return byteCount(dataType(id), shape(id)); }

  // The in-memory constant of a value, or nullptr (no initializer, or a weight reference).
  const Constant* constant(ValueId id) const;
  const Function* findFunction(std::string_view domain, std::string_view op_type,
                               std::string_view overload = "") const;
};

// "MatMul 'node_linear_1' (onnx::MatMul)": how every message names a node.
std::string describeNode(const Node& node);
bool hasSubgraphs(const Node& node);  // of an If, a Loop or a Scan

// ---- building
// ----------------------------------------------------------------------------------------------------

// Adds values with unique names; keeps the name index that Graph itself does not carry. Use one per pass that
// adds values. Names that are taken get a suffix "_1", "_2", ...
class GraphBuilder {
 public:
  explicit GraphBuilder(Graph& graph);  // the graph must outlive the builder and get values only through it

  ValueId addValue(std::string_view name, DataType type, Shape shape);
  ValueId addConstant(std::string_view name, Constant constant);  // an initializer
  // Appends a node (outputs must be fresh values). `opset` defaults to the graph's import of the domain.
  NodeId addNode(std::string_view domain, std::string_view op_type, std::vector<ValueId> inputs,
                 std::vector<ValueId> outputs, std::map<std::string, Attribute> attributes = {});
  std::optional<ValueId> find(std::string_view name) const;
  Graph& graph() { return graph_; }

 private:
  std::string uniqueName(std::string_view name) const;
  Graph& graph_;
  std::unordered_map<std::string, ValueId> names_;
};

// A dense tensor of known element type and static shape, as all values of a prepared graph are.
bool hasStaticType(const Value& value);

// The value of that name, or an invalid id. Linear time: for the odd lookup, not for loops.
ValueId findValue(const Graph& graph, std::string_view name);

// Constants from C++ values: makeConstant<int64_t>({2}, {3, 4}).
template <typename T>
Constant makeConstant(Shape shape, const std::vector<T>& elements);
// A scalar of a floating-point or integer type holding `number`.
Constant makeScalar(DataType type, double number);
// The elements of an integer constant (int32 or int64) as int64. Throws Error(kInternal) for other types.
std::vector<int64_t> integerElements(const Constant& constant);
// The elements of any numeric or bool constant as double.
std::vector<double> numericElements(const Constant& constant);

// ---- analyses
// ----------------------------------------------------------------------------------------------------

// Who makes and who reads each value. Valid until the graph changes.
struct UseDef {
  std::vector<NodeId> producer;                // by value index; invalid for inputs and initializers
  std::vector<std::vector<NodeId>> consumers;  // by value index, in node order, without repetitions
};
UseDef computeUseDef(const Graph& graph);

// By node index: does one of the values depend on it?
std::vector<bool> ancestorsOf(const Graph& graph, const std::vector<ValueId>& values);

// Throws Error(kBadModel) naming the first broken invariant of the list on top.
void verifyGraph(const Graph& graph);

// Removes nodes whose outputs nobody needs, and values and initializers that are then unused. `keep`: values
// needed beside the graph outputs. Ids change: returns the new id of each old value (invalid: gone).
std::vector<ValueId> removeDeadCode(Graph& graph, const std::vector<ValueId>& keep = {});

// ---- subgraphs
// ----------------------------------------------------------------------------------------------------

// A graph cut out of another: `nodes` in the given (topological) order, reading `inputs`, giving `outputs`.
// Constants that the nodes read come along; weight references become inputs' values only if listed in
// `inputs`. Names, types and shapes are kept, functions that are called come along. Values needed but neither
// listed, produced nor constant: Error(kInternal).
Graph extractSubgraph(const Graph& graph, std::string_view name, const std::vector<NodeId>& nodes,
                      const std::vector<ValueId>& inputs, const std::vector<ValueId>& outputs);

// ---- implementation of templates
// ----------------------------------------------------------------------------------

template <typename T>
Constant makeConstant(Shape shape, const std::vector<T>& elements) {
  Constant constant{dataTypeOf<T>(), std::move(shape), std::vector<std::byte>(elements.size() * sizeof(T))};
  auto* out = reinterpret_cast<T*>(constant.bytes.data());
  for (size_t i = 0; i < elements.size(); ++i) out[i] = elements[i];
  return constant;
}

}  // namespace pipeshard
