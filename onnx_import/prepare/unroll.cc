#include "onnx_import/prepare/unroll.h"

#include <algorithm>
#include <map>
#include <optional>

#include "ir/base/error.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/prepare/hoist.h"
#include "onnx_import/prepare/inference.h"
#include "onnx_import/prepare/loop_trips.h"
#include "onnx_import/prepare/splice.h"

namespace pipeshard {
namespace {

bool isLoop(const Node& node) { return node.is("Loop") || node.is("Scan"); }

std::string nameFor(const Graph& graph, const Node& node) {
  if (!node.name.empty()) return node.name;
  for (ValueId id : node.outputs) {
    if (id.valid()) return graph.value(id).name;
  }
  return node.op_type;
}

// How many trips the graph has room for.
int64_t tripsThatFit(const Graph& graph, const Graph& body) {
  const uint64_t limit = ImportLimits().inlined_nodes;
  const uint64_t room = graph.nodes.size() < limit ? limit - graph.nodes.size() : 0;
  return static_cast<int64_t>(room / (body.nodes.size() + body.outputs.size() + 1));
}

// The axes of a Scan by its attributes; `what` is "input" or "output".
struct ScanWays {
  std::vector<int64_t> axes;
  std::vector<int64_t> backwards;  // 1: the last comes first
};

ScanWays scanWays(const Node& scan, const std::string& what, size_t count) {
  ScanWays ways{scan.intsAttribute("scan_" + what + "_axes", std::vector<int64_t>(count, 0)),
                scan.intsAttribute("scan_" + what + "_directions", std::vector<int64_t>(count, 0))};
  if (ways.axes.size() != count || ways.backwards.size() != count)
    fail(ErrorCode::kBadModel, "{}: it scans {} {}s, but says {} axes and {} directions for them",
         describeNode(scan), count, what, ways.axes.size(), ways.backwards.size());
  return ways;
}

// The parts of a Scan.
struct ScanParts {
  const Graph& body;
  size_t states = 0;
  size_t inputs = 0;
  size_t outputs = 0;
};

ScanParts scanParts(const Node& scan) {
  ScanParts parts{bodyOf(scan, "body")};
  const int64_t scanned = scan.intAttribute("num_scan_inputs", 0);
  const int64_t all = std::ssize(scan.inputs);
  const int64_t given = std::ssize(parts.body.outputs);
  if (scanned < 1 || scanned > all || std::ssize(parts.body.inputs) != all || given < all - scanned ||
      std::ssize(scan.outputs) > given) {
    fail(ErrorCode::kBadModel,
         "{}: {} inputs, of which it scans {}, and {} outputs do not fit a body of {} inputs and {} outputs",
         describeNode(scan), all, scanned, scan.outputs.size(), parts.body.inputs.size(), given);
  }
  parts.inputs = static_cast<size_t>(scanned);
  parts.states = static_cast<size_t>(all - scanned);
  parts.outputs = static_cast<size_t>(given) - parts.states;
  return parts;
}

// How long the scanned inputs of a Scan are; nothing while that is not known.
std::optional<int64_t> scanLength(const Graph& graph, const Node& scan, const ScanParts& parts,
                                  const ScanWays& ways) {
  std::optional<int64_t> length;
  for (size_t i = 0; i < parts.inputs; ++i) {
    const ValueId id = scan.inputs[parts.states + i];
    if (!id.valid() || !graph.value(id).shape) return std::nullopt;
    const Shape& shape = *graph.value(id).shape;
    const int64_t rank = std::ssize(shape);
    const int64_t axis = ways.axes[i] < 0 ? ways.axes[i] + rank : ways.axes[i];
    if (axis < 0 || axis >= rank)
      fail(ErrorCode::kBadModel, "{}: it scans axis {} of '{}', which is {}", describeNode(scan),
           ways.axes[i], graph.value(id).name, shapeToString(shape));
    if (shape[axis] < 0) return std::nullopt;
    if (length && *length != shape[axis])
      fail(ErrorCode::kBadModel, "{}: it scans '{}' for {} steps, and another input for {}",
           describeNode(scan), graph.value(id).name, shape[axis], *length);
    length = shape[axis];
  }
  return length;
}

// One loop: how its copies are put into the graph.
class LoopCopies {
 public:
  // `trips` of the loop `node`; its outputs are `carried` values, then what it collects.
  LoopCopies(GraphBuilder& builder, const Node& node, int64_t trips, size_t carried)
      : builder_(builder),
        graph_(builder.graph()),
        node_(node),
        name_(nameFor(graph_, node)),
        trips_(trips),
        carried_(carried),
        body_(hoistInvariants(builder, bodyOf(node, "body"), name_, graph_.nodes)) {
    for (const auto& [name, id] : capturedValues(body_)) {
      if (const std::optional<ValueId> outside = builder.find(name)) captures_.emplace(name, *outside);
    }
  }

  // The copies. `carried`: at the start. They are the body's inputs from `first_carried` on, and its outputs
  // from `first_output` on; `read(trip)`: its other inputs.
  template <typename Read>
  void copy(std::vector<ValueId> carried, size_t first_carried, size_t first_output, Read&& read) {
    collected_.assign(body_.outputs.size() - first_output - carried_, {});
    for (int64_t trip = 0; trip < trips_; ++trip) {
      Node call;
      call.op_type = node_.op_type;
      call.name = fmt::format("{}/{}", name_, trip);
      call.metadata = node_.metadata;
      call.inputs = read(trip);
      call.inputs.insert(call.inputs.begin() + first_carried, carried.begin(), carried.end());
      call.outputs.assign(first_output, ValueId());
      for (size_t j = 0; j < carried_; ++j)
        call.outputs.push_back(trip + 1 == trips_ ? output(j) : given(call.name, first_output + j));
      carried.assign(call.outputs.begin() + first_output, call.outputs.end());
      for (size_t j = 0; j < collected_.size(); ++j) {
        const bool wanted = output(carried_ + j).valid();
        call.outputs.push_back(wanted ? given(call.name, first_output + carried_ + j) : ValueId());
        collected_[j].push_back(call.outputs.back());
      }
      spliceBody(builder_, body_, call, {}, captures_, graph_.nodes);
    }
  }

  // Output `carried + j` of the node: what the trips gave, stacked along a new axis.
  void collect(size_t j, int64_t axis, bool backwards) {
    const ValueId stacked = output(carried_ + j);
    if (!stacked.valid()) return;
    std::vector<ValueId> parts = collected_[j];
    if (backwards) std::reverse(parts.begin(), parts.end());
    const std::string name = fmt::format("{}/stack_{}", name_, j);
    const ValueId axes = integers(name + "/axis", {axis});
    for (size_t i = 0; i < parts.size(); ++i) {
      const ValueId with_axis =
          parts.size() == 1 ? stacked : fresh(fmt::format("{}/{}", name, i), graph_.value(parts[i]));
      add("Unsqueeze", fmt::format("{}/{}", name, i), {parts[i], axes}, {with_axis});
      parts[i] = with_axis;
    }
    if (parts.size() > 1) add("Concat", name, parts, {stacked}, {{"axis", axis}});
  }

  // The parts of `whole`, one for each trip, without the axis.
  std::vector<ValueId> cut(ValueId whole, size_t input, int64_t axis) {
    const std::string name = fmt::format("{}/cut_{}", name_, input);
    std::vector<ValueId> parts{whole};
    if (trips_ > 1) {
      parts.clear();
      for (int64_t i = 0; i < trips_; ++i)
        parts.push_back(fresh(fmt::format("{}/{}", name, i), graph_.value(whole)));
      add("Split", name, {whole, integers(name + "/sizes", std::vector<int64_t>(trips_, 1))}, parts,
          {{"axis", axis}});
    }
    const ValueId axes = integers(name + "/axis", {axis});
    for (size_t i = 0; i < parts.size(); ++i) {
      const ValueId part = fresh(fmt::format("{}/{}/part", name, i), graph_.value(whole));
      add("Squeeze", fmt::format("{}/{}", name, i), {parts[i], axes}, {part});
      parts[i] = part;
    }
    return parts;
  }

  // An input of the body that has one element.
  ValueId oneElement(int64_t trip, size_t input, Constant content) {
    const std::optional<Shape>& shape = body_.value(body_.inputs[input]).shape;
    if (shape && isStatic(*shape) && elementCount(*shape) == 1) content.shape = *shape;
    return made(fmt::format("{}/{}/{}", name_, trip, body_.value(body_.inputs[input]).name),
                std::move(content));
  }

 private:
  ValueId output(size_t position) const {
    return position < node_.outputs.size() ? node_.outputs[position] : ValueId();
  }

  ValueId made(const std::string& name, Constant content) {
    const ValueId id = builder_.addConstant(name, std::move(content));
    markMade(graph_.value(id));
    return id;
  }

  ValueId integers(const std::string& name, const std::vector<int64_t>& numbers) {
    return made(name, makeConstant<int64_t>({std::ssize(numbers)}, numbers));
  }

  // A value of the element type of `like`, and of a shape that inference finds.
  ValueId fresh(const std::string& name, const Value& like) {
    const std::string opaque_type = like.opaque_type;
    const ValueId id = builder_.addValue(name, like.data_type, {});
    graph_.value(id).shape.reset();
    graph_.value(id).opaque_type = opaque_type;
    return id;
  }

  // What a trip gives as output `position` of the body.
  ValueId given(const std::string& trip, size_t position) {
    const Value& inside = body_.value(body_.outputs[position]);
    return fresh(trip + "/" + inside.name, inside);
  }

  void add(const char* op_type, const std::string& name, std::vector<ValueId> inputs,
           std::vector<ValueId> outputs, std::map<std::string, Attribute> attributes = {}) {
    builder_.addNode("", op_type, std::move(inputs), std::move(outputs), std::move(attributes));
    graph_.nodes.back().name = name;
    graph_.nodes.back().metadata = node_.metadata;
  }

  GraphBuilder& builder_;
  Graph& graph_;
  const Node& node_;
  std::string name_;
  int64_t trips_;
  size_t carried_;
  Graph body_;
  std::map<std::string, ValueId> captures_;
  std::vector<std::vector<ValueId>> collected_;  // by what is collected: one value for each trip
};

class LoopUnroller {
 public:
  explicit LoopUnroller(Graph& graph) : graph_(graph), builder_(graph), kept_(keptFromFolding(graph)) {}

  int run() {
    int unrolled = 0;
    std::vector<Node> nodes;
    nodes.swap(graph_.nodes);
    for (Node& node : nodes) {
      if (isLoop(node) && (node.is("Loop") ? unrollLoop(node) : unrollScan(node))) {
        ++unrolled;
      } else {
        graph_.nodes.push_back(std::move(node));
      }
    }
    return unrolled;
  }

  std::string obstacleOf(const Node& node) {
    if (node.is("Scan")) {
      if (node.opset_version < 9)
        return "a Scan of opset 8 has a batch axis; export the model with opset_version=9 or later";
      return "it cannot be unrolled: the length of what it scans is not known; export the model with static "
             "shapes";
    }
    const int64_t limit = tripsThatFit(graph_, bodyOf(node, "body"));
    const std::string obstacle = tripsOfLoop(builder_, node, kept_, limit).obstacle;
    return fmt::format(
        "it cannot be unrolled: {}; export the model with a loop whose number of trips is known, or "
        "without it",
        obstacle.empty() ? "the shape of what it collects in no trips is not known" : obstacle);
  }

 private:
  void checkSize(const Node& node, const Graph& body, int64_t trips) const {
    const int64_t fits = tripsThatFit(graph_, body);
    if (trips <= fits) return;
    fail(ErrorCode::kBadModel,
         "{}: unrolling more than {} trips of {} nodes gives more than the limit of {} nodes; export the "
         "model "
         "with fewer trips, or with operators on whole tensors instead of the loop",
         describeNode(node), fits, body.nodes.size(), ImportLimits().inlined_nodes);
  }

  bool unrollLoop(const Node& node) {
    const Graph& body = bodyOf(node, "body");
    const LoopTrips trips = tripsOfLoop(builder_, node, kept_, tripsThatFit(graph_, body));
    if (!trips.count) return false;
    checkSize(node, body, *trips.count);
    const size_t carried = std::max<size_t>(node.inputs.size(), 2) - 2;
    std::vector<ValueId> at_start(node.inputs.end() - carried, node.inputs.end());
    if (*trips.count == 0) {
      return passThrough(node, at_start, [&](size_t j) -> std::optional<Value> {
        Value type = typeInFirstTrip(builder_, node, 1 + carried + j, kept_);
        if (type.shape) type.shape->insert(type.shape->begin(), 0);
        return type;
      });
    }
    LoopCopies copies(builder_, node, *trips.count, carried);
    copies.copy(at_start, 2, 1, [&](int64_t trip) {
      return std::vector<ValueId>{copies.oneElement(trip, 0, makeConstant<int64_t>({}, {trip})),
                                  copies.oneElement(trip, 1, makeScalar(DataType::kBool, 1))};
    });
    for (size_t j = carried; j < node.outputs.size(); ++j) copies.collect(j - carried, 0, false);
    return true;
  }

  bool unrollScan(const Node& node) {
    if (node.opset_version < 9) return false;
    const ScanParts parts = scanParts(node);
    const ScanWays in = scanWays(node, "input", parts.inputs);
    const ScanWays out = scanWays(node, "output", parts.outputs);
    const std::optional<int64_t> length = scanLength(graph_, node, parts, in);
    if (!length) return false;
    checkSize(node, parts.body, *length);
    const std::vector<ValueId> at_start(node.inputs.begin(), node.inputs.begin() + parts.states);
    if (*length == 0) {
      return passThrough(node, at_start,
                         [&](size_t j) { return graph_.value(node.outputs[parts.states + j]); });
    }
    LoopCopies copies(builder_, node, *length, parts.states);
    std::vector<std::vector<ValueId>> scanned;
    for (size_t i = 0; i < parts.inputs; ++i)
      scanned.push_back(copies.cut(node.inputs[parts.states + i], i, in.axes[i]));
    copies.copy(at_start, 0, 0, [&](int64_t trip) {
      std::vector<ValueId> read;
      for (size_t i = 0; i < parts.inputs; ++i)
        read.push_back(scanned[i][in.backwards[i] != 0 ? *length - 1 - trip : trip]);
      return read;
    });
    for (size_t j = 0; j < parts.outputs; ++j) copies.collect(j, out.axes[j], out.backwards[j] != 0);
    return true;
  }

  // No trip. `collected`: the type of what output `carried + j` collects. False while that is not known.
  template <typename TypeOf>
  bool passThrough(const Node& node, const std::vector<ValueId>& carried, TypeOf&& collected) {
    std::map<ValueId, Constant> empty;
    for (size_t j = carried.size(); j < node.outputs.size(); ++j) {
      if (!node.outputs[j].valid()) continue;
      const std::optional<Value> type = collected(j - carried.size());
      if (!type || !hasStaticType(*type) || elementCount(*type->shape) != 0) return false;
      empty.emplace(node.outputs[j], Constant{type->data_type, *type->shape, {}});
    }
    for (auto& [id, constant] : empty) {
      Value& value = graph_.value(id);
      value.data_type = constant.data_type;
      value.shape = constant.shape;
      value.symbols.clear();
      markMade(value);
      graph_.initializers.emplace(id, std::move(constant));
    }
    const std::string name = nameFor(graph_, node);
    for (size_t j = 0; j < std::min(carried.size(), node.outputs.size()); ++j) {
      if (!node.outputs[j].valid()) continue;
      builder_.addNode("", "Identity", {carried[j]}, {node.outputs[j]});
      graph_.nodes.back().name = fmt::format("{}/pass_{}", name, j);
      graph_.nodes.back().metadata = node.metadata;
    }
    return true;
  }

  Graph& graph_;
  GraphBuilder builder_;
  std::vector<bool> kept_;
};

}  // namespace

int unrollLoops(Graph& graph) {
  if (std::none_of(graph.nodes.begin(), graph.nodes.end(), isLoop)) return 0;
  return LoopUnroller(graph).run();
}

std::string loopObstacle(Graph& graph, const Node& node) {
  return isLoop(node) ? LoopUnroller(graph).obstacleOf(node) : "";
}

}  // namespace pipeshard
