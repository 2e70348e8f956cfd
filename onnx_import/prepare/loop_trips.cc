#include "onnx_import/prepare/loop_trips.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "ir/base/error.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/prepare/inference.h"
#include "onnx_import/prepare/simplify.h"
#include "onnx_import/prepare/splice.h"

namespace pipeshard {
namespace {

constexpr int64_t kKnownBytes = 1 << 16;  // conditions follow from small values
constexpr int kFoldingRounds = 16;

// What is known of a value before the model runs.
struct KnownValue {
  Value type;
  std::optional<Constant> content;
};

KnownValue knownOutside(const Graph& graph, ValueId id, const std::vector<bool>& kept) {
  KnownValue known;
  if (!id.valid()) return known;
  known.type = graph.value(id);
  known.type.metadata.clear();
  const Constant* constant = graph.constant(id);
  const bool trained = id.index() >= kept.size() || kept[id.index()];
  if (constant != nullptr && !trained && std::ssize(constant->bytes) <= kKnownBytes)
    known.content = *constant;
  return known;
}

// `id`, of a part of a body, is this.
void setKnown(Graph& part, ValueId id, const KnownValue& known) {
  std::string name = std::move(part.value(id).name);
  part.value(id) = known.type;
  part.value(id).name = std::move(name);
  if (!known.content) return;
  markFolded(part.value(id));
  part.initializers.insert_or_assign(id, *known.content);
}

// By value index: what the nodes read that `needed` follows from, and `needed` itself.
std::vector<bool> readFor(const Graph& body, const std::vector<ValueId>& needed) {
  std::vector<bool> read(body.values.size(), false);
  for (ValueId id : needed) read[id.index()] = true;
  const std::vector<bool> used = ancestorsOf(body, needed);
  std::vector<std::string> captures;
  for (size_t n = 0; n < body.nodes.size(); ++n) {
    if (!used[n]) continue;
    for (ValueId id : body.nodes[n].inputs) {
      if (id.valid()) read[id.index()] = true;
    }
    collectCaptures(body.nodes[n], captures);
  }
  const std::unordered_set<std::string> names(captures.begin(), captures.end());
  for (size_t i = 0; i < body.values.size(); ++i) read[i] = read[i] || names.contains(body.values[i].name);
  return read;
}

// The nodes of the body that `needed` follows from, with what is known of the values that they capture.
Graph partOfBody(GraphBuilder& builder, const Graph& body, const std::vector<ValueId>& needed,
                 const std::vector<bool>& kept) {
  Graph part = body;
  part.outputs = needed;
  part.opset_imports = builder.graph().opset_imports;
  part.nodes.clear();
  const std::vector<bool> used = ancestorsOf(body, needed);
  std::vector<std::string> names;
  for (size_t n = 0; n < body.nodes.size(); ++n) {
    if (!used[n]) continue;
    part.nodes.push_back(body.nodes[n]);
    collectCaptures(body.nodes[n], names);
  }
  for (const auto& [name, id] : capturedValues(body)) {
    if (const std::optional<ValueId> outside = builder.find(name))
      setKnown(part, id, knownOutside(builder.graph(), *outside, kept));
  }
  GraphBuilder part_builder(part);
  for (const std::string& name : names) {
    const std::optional<ValueId> outside = builder.find(name);
    if (!outside || part_builder.find(name)) continue;
    const ValueId id = part_builder.addValue(name, DataType::kUndefined, {});
    setKnown(part, id, knownOutside(builder.graph(), *outside, kept));
  }
  return part;
}

// Until the first output is known, or nothing changes any more.
void foldPart(Graph& part, const Node& loop) {
  try {
    for (int round = 0; round < kFoldingRounds; ++round) {
      const int folded = foldConstants(part, kKnownBytes);
      if (part.constant(part.outputs[0]) != nullptr) return;
      if (folded + simplify(part) == 0) return;
    }
  } catch (Error& error) {
    error.addContext(describeNode(loop));
    throw;
  }
}

bool isTrue(const Constant& condition) {
  return std::any_of(condition.bytes.begin(), condition.bytes.end(),
                     [](std::byte byte) { return byte != std::byte{0}; });
}

// The part of a body that its condition follows from.
struct ConditionPart {
  Graph graph;                  // outputs: the condition, then what `carried` are after the trip
  std::vector<size_t> carried;  // positions among the carried values
  bool varies = false;          // from trip to trip
};

ConditionPart conditionPart(GraphBuilder& builder, const Graph& body, const std::vector<bool>& kept) {
  ConditionPart part;
  std::vector<ValueId> needed{body.outputs[0]};
  std::vector<bool> read;
  for (size_t before = 0; before != needed.size();) {
    before = needed.size();
    read = readFor(body, needed);
    for (size_t j = 0; j + 2 < body.inputs.size(); ++j) {
      const bool known = std::find(part.carried.begin(), part.carried.end(), j) != part.carried.end();
      if (known || !read[body.inputs[j + 2].index()]) continue;
      part.carried.push_back(j);
      needed.push_back(body.outputs[j + 1]);
    }
  }
  part.varies = !part.carried.empty() || read[body.inputs[0].index()];
  part.graph = partOfBody(builder, body, needed, kept);
  return part;
}

// Says which trip it is, and that the condition has been true.
void setTrip(Graph& part, const Graph& body, int64_t trip) {
  const std::vector<Constant> contents{makeConstant<int64_t>({}, {trip}), makeScalar(DataType::kBool, 1)};
  for (size_t input = 0; input < contents.size(); ++input) {
    KnownValue known{{}, contents[input]};
    const std::optional<Shape>& shape = body.value(body.inputs[input]).shape;
    if (shape && isStatic(*shape) && elementCount(*shape) == 1) known.content->shape = *shape;
    known.type.data_type = known.content->data_type;
    known.type.shape = known.content->shape;
    setKnown(part, body.inputs[input], known);
  }
}

// Walks through the trips until the condition is false; `most` if it never is.
LoopTrips countTrips(const Node& loop, const Graph& body, const ConditionPart& condition,
                     std::vector<KnownValue> carried, int64_t most, int64_t limit) {
  for (int64_t trip = 0; trip < most; ++trip) {
    if (trip > limit) return {trip, ""};
    Graph part = condition.graph;
    setTrip(part, body, trip);
    for (size_t i = 0; i < carried.size(); ++i)
      setKnown(part, body.inputs[condition.carried[i] + 2], carried[i]);
    foldPart(part, loop);
    const Constant* again = part.constant(part.outputs[0]);
    if (again == nullptr)
      return {{},
              fmt::format("the condition that its body gives, '{}', depends on data",
                          body.value(body.outputs[0]).name)};
    if (!isTrue(*again)) return {trip + 1, ""};
    if (!condition.varies) break;
    const std::vector<bool> none_kept(part.values.size(), false);
    for (size_t i = 0; i < carried.size(); ++i)
      carried[i] = knownOutside(part, part.outputs[i + 1], none_kept);
  }
  return {most, ""};
}

void checkLoop(const Node& loop, const Graph& body) {
  const size_t carried = std::max<size_t>(loop.inputs.size(), 2) - 2;
  if (body.inputs.size() == carried + 2 && body.outputs.size() > carried &&
      loop.outputs.size() < body.outputs.size())
    return;
  fail(ErrorCode::kBadModel,
       "{}: its body has {} inputs and {} outputs; expected {} inputs (trip, condition, carried values), and "
       "outputs for the condition, {} carried values and what is left of the node's {} outputs",
       describeNode(loop), body.inputs.size(), body.outputs.size(), carried + 2, carried,
       loop.outputs.size());
}

std::vector<KnownValue> carriedAtStart(const Graph& graph, const Node& loop, const std::vector<size_t>& which,
                                       const std::vector<bool>& kept) {
  std::vector<KnownValue> carried;
  for (size_t j : which) carried.push_back(knownOutside(graph, loop.inputs[j + 2], kept));
  return carried;
}

}  // namespace

const Graph& bodyOf(const Node& node, const std::string& attribute) {
  const auto found = node.attributes.find(attribute);
  const auto* body =
      found == node.attributes.end() ? nullptr : std::get_if<std::shared_ptr<const Graph>>(&found->second);
  if (body == nullptr || *body == nullptr)
    fail(ErrorCode::kBadModel, "{} has no subgraph '{}'", describeNode(node), attribute);
  return **body;
}

LoopTrips tripsOfLoop(GraphBuilder& builder, const Node& loop, const std::vector<bool>& kept, int64_t limit) {
  const Graph& graph = builder.graph();
  const Graph& body = bodyOf(loop, "body");
  checkLoop(loop, body);
  const auto given = [&](size_t input) { return input < loop.inputs.size() && loop.inputs[input].valid(); };
  if (given(1)) {
    const Constant* condition = graph.constant(loop.inputs[1]);
    if (condition == nullptr)
      return {{},
              fmt::format("whether it runs at all ('{}') depends on data", graph.value(loop.inputs[1]).name)};
    if (!isTrue(*condition)) return {0, ""};
  }
  int64_t most = std::numeric_limits<int64_t>::max();
  if (given(0)) {
    const Constant* count = graph.constant(loop.inputs[0]);
    if (count == nullptr)
      return {{},
              fmt::format("its number of trips ('{}') depends on data", graph.value(loop.inputs[0]).name)};
    if (count->data_type != DataType::kInt64 || elementCount(count->shape) != 1)
      fail(ErrorCode::kBadModel, "{}: its number of trips is {}{}; expected one int64", describeNode(loop),
           dataTypeName(count->data_type), shapeToString(count->shape));
    most = std::max<int64_t>(integerElements(*count)[0], 0);
  }
  const ConditionPart condition = conditionPart(builder, body, kept);
  LoopTrips trips =
      countTrips(loop, body, condition, carriedAtStart(graph, loop, condition.carried, kept), most, limit);
  // ONNX says that the body's condition is then ignored; ONNX Runtime stops at it.
  if (!given(1) && trips.count != most)
    return {{},
            "its condition is left out, but its body gives one that is not always true, of which "
            "runtimes make different things; give the node a condition"};
  return trips;
}

Value typeInFirstTrip(GraphBuilder& builder, const Node& loop, size_t index, const std::vector<bool>& kept) {
  const Graph& body = bodyOf(loop, "body");
  Graph part = partOfBody(builder, body, {body.outputs[index]}, kept);
  setTrip(part, body, 0);
  for (size_t j = 0; j + 2 < body.inputs.size(); ++j)
    setKnown(part, body.inputs[j + 2], knownOutside(builder.graph(), loop.inputs[j + 2], kept));
  foldPart(part, loop);
  return part.value(part.outputs[0]);
}

}  // namespace pipeshard
