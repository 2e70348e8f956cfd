#include "tests/sharding/spmd/sharded_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "ir/graph/graph_print.h"
#include "onnx_import/prepare/inference.h"
#include "onnx_import/prepare/prepare.h"
#include "runtime/kernels/base/cpu_kernels.h"
#include "sharding/specs/cost_model.h"
#include "sharding/spmd/spmd_verify.h"

namespace pipeshard::testing {

namespace {

Constant fromDoubles(DataType type, const Shape& shape, const std::vector<double>& elements) {
  if (type == DataType::kFloat64) return makeConstant<double>(shape, elements);
  if (type == DataType::kInt64) return makeConstant<int64_t>(shape, {elements.begin(), elements.end()});
  if (type == DataType::kInt32) return makeConstant<int32_t>(shape, {elements.begin(), elements.end()});
  return makeConstant<float>(shape, {elements.begin(), elements.end()});
}

Constant combine(const std::vector<Constant>& parts, const std::string& reduction) {
  std::vector<double> result = numericElements(parts[0]);
  for (size_t p = 1; p < parts.size(); ++p) {
    const std::vector<double> more = numericElements(parts[p]);
    for (size_t i = 0; i < result.size(); ++i) {
      if (reduction == "sum") result[i] += more[i];
      if (reduction == "max") result[i] = std::max(result[i], more[i]);
      if (reduction == "min") result[i] = std::min(result[i], more[i]);
    }
  }
  return fromDoubles(parts[0].data_type, parts[0].shape, result);
}

std::vector<int64_t> range(int64_t start, int64_t size) {
  std::vector<int64_t> indices(size);
  std::iota(indices.begin(), indices.end(), start);
  return indices;
}

Constant join(const std::vector<Constant>& parts, size_t axis) {
  Constant whole = parts[0];
  whole.shape[axis] = 0;
  for (const Constant& part : parts) whole.shape[axis] += part.shape[axis];
  whole.bytes.resize(byteCount(whole.data_type, whole.shape));
  int64_t start = 0;
  for (const Constant& part : parts) {
    placeAlong(whole, part, axis, range(start, part.shape[axis]));
    start += part.shape[axis];
  }
  return whole;
}

Constant partOf(const Constant& whole, size_t axis, const std::vector<int64_t>& sizes, size_t member) {
  const int64_t start = std::accumulate(sizes.begin(), sizes.begin() + member, int64_t{0});
  return selectAlong(whole, axis, range(start, sizes[member]));
}

// What member `member` of a group gets from the members' inputs.
Constant collective(const Node& node, const std::vector<Constant>& inputs, size_t member) {
  const size_t axis = node.intAttribute("axis", 0);
  const std::string reduction = node.stringAttribute("reduction", "sum");
  switch (*collectiveKind(node)) {
    case CollectiveKind::kAllReduce: return combine(inputs, reduction);
    case CollectiveKind::kAllGather: return join(inputs, axis);
    case CollectiveKind::kReduceScatter:
      return partOf(combine(inputs, reduction), axis, node.intsAttribute("sizes"), member);
    case CollectiveKind::kAllToAll: break;
  }
  std::vector<Constant> parts;
  for (const Constant& input : inputs) {
    parts.push_back(partOf(input, node.intAttribute("to_axis", 0), node.intsAttribute("to_sizes"), member));
  }
  return join(parts, axis);
}

void runCollective(const std::vector<LocalPiece>& pieces, size_t n, std::vector<Tensors>& values) {
  std::map<int64_t, std::vector<size_t>> members;
  for (size_t d = 0; d < pieces.size(); ++d)
    members[pieces[d].graph.nodes[n].intAttribute("group", -1)].push_back(d);
  for (const auto& [group, devices] : members) {
    std::vector<Constant> inputs;
    for (size_t d : devices)
      inputs.push_back(values[d].at(pieces[d].graph.value(pieces[d].graph.nodes[n].inputs[0]).name));
    for (size_t m = 0; m < devices.size(); ++m) {
      const Graph& graph = pieces[devices[m]].graph;
      Constant& output = values[devices[m]][graph.value(graph.nodes[n].outputs[0]).name];
      output = collective(graph.nodes[n], inputs, m);
      EXPECT_EQ(output.shape, graph.shape(graph.nodes[n].outputs[0]));
    }
  }
}

// Devices that differ along mesh axes of `axes` only hold one tensor's summands.
bool firstAlong(const std::vector<int>& axes, const LogicalMesh& mesh, DeviceId device) {
  return std::all_of(axes.begin(), axes.end(), [&](int axis) { return mesh.coordinate(device, axis) == 0; });
}

Constant boxOf(const Constant& whole, const Shard& shard) {
  Constant part = whole;
  for (size_t axis = 0; axis < whole.shape.size(); ++axis)
    part = selectAlong(part, axis, range(shard.start[axis], shard.size[axis]));
  return part;
}

}  // namespace

bool isRunnable(const Graph& graph) {
  return std::all_of(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) {
    return collectiveKind(node) || cpuKernels().has(node.domain, node.op_type);
  });
}

void makeRunnable(Graph& graph) {
  PrepareOptions options;
  options.supported = [](const Node& node) { return cpuKernels().has("", node.op_type); };
  if (!isRunnable(graph)) graph = prepareModel(std::move(graph), options);
}

Constant singlePrecision(const Constant& tensor) {
  if (tensor.data_type != DataType::kFloat64) return tensor;
  const std::vector<double> elements = numericElements(tensor);
  return makeConstant<float>(tensor.shape, {elements.begin(), elements.end()});
}

Graph singlePrecision(Graph graph) {
  for (Value& value : graph.values) {
    if (value.data_type == DataType::kFloat64) value.data_type = DataType::kFloat32;
  }
  for (auto& [id, initializer] : graph.initializers) {
    if (auto* constant = std::get_if<Constant>(&initializer)) *constant = singlePrecision(*constant);
  }
  for (Node& node : graph.nodes) {
    for (auto& [name, attribute] : node.attributes) {
      const bool names_type = name == "to" || name == "dtype" || name == "stash_type";
      if (names_type && attribute == Attribute(static_cast<int64_t>(DataType::kFloat64)))
        attribute = static_cast<int64_t>(DataType::kFloat32);
      if (auto* constant = std::get_if<Constant>(&attribute)) *constant = singlePrecision(*constant);
    }
  }
  return graph;
}

std::string shapeFault(const Graph& graph) {
  Graph inferred = singlePrecision(graph);
  for (size_t v = 0; v < inferred.values.size(); ++v) {
    const bool made =
        !inferred.initializers.contains(ValueId(v)) &&
        std::find(inferred.inputs.begin(), inferred.inputs.end(), ValueId(v)) == inferred.inputs.end();
    if (made) inferred.values[v].shape.reset();
  }
  for (const Node& node : inferred.nodes) {
    if (!collectiveKind(node)) continue;  // ONNX does not know them
    for (ValueId output : node.outputs) inferred.value(output).shape = graph.value(output).shape;
  }
  inferShapes(inferred);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& found = inferred.values[v];
    if (!found.shape || !isStatic(*found.shape) || *found.shape == *graph.values[v].shape) continue;
    return "'" + found.name + "' is " + shapeToString(*found.shape) + ", not " +
           shapeToString(*graph.values[v].shape);
  }
  return "";
}

MeshGroups groupsOf(const LogicalMesh& mesh, DeviceId device) {
  MeshGroups groups;
  int first = 0;
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    GroupId& group = groups.group_of_axis.emplace_back();
    if (mesh.axisSize(axis) > 1) group = GroupId(first + mesh.lineOf(device, axis)[0].index());
    first += mesh.deviceCount();
  }
  return groups;
}

std::vector<Constant> distribute(const Constant& whole, const ShardingSpec& spec, const LogicalMesh& mesh,
                                 std::mt19937_64& generator) {
  // Summands along the partial axes, one whole tensor for each of their coordinates; devices that agree there
  // share it.
  std::map<std::vector<int>, Constant> summands;
  const auto coordinates = [&](DeviceId device) {
    std::vector<int> result;
    for (int axis : spec.partial) result.push_back(mesh.coordinate(device, axis));
    return result;
  };
  Constant left = whole;
  for (const DeviceId device : mesh.devices()) {
    if (firstAlong(spec.partial, mesh, device) || summands.contains(coordinates(device))) continue;
    const Constant summand = randomReals(generator, whole.shape, whole.data_type);
    std::vector<double> rest = numericElements(left);
    const std::vector<double> taken = numericElements(summand);
    for (size_t i = 0; i < rest.size(); ++i) rest[i] -= taken[i];
    left = fromDoubles(whole.data_type, whole.shape, rest);
    summands[coordinates(device)] = summand;
  }
  std::vector<Constant> parts;
  for (const DeviceId device : mesh.devices()) {
    const Constant& summand =
        firstAlong(spec.partial, mesh, device) ? left : summands.at(coordinates(device));
    parts.push_back(boxOf(summand, shardOf(spec, whole.shape, mesh, device)));
  }
  return parts;
}

Constant collect(const std::vector<Constant>& parts, const ShardingSpec& spec, const Shape& shape,
                 const LogicalMesh& mesh, const std::string& what) {
  Constant whole{parts[0].data_type, shape, std::vector<std::byte>(byteCount(parts[0].data_type, shape))};
  std::map<std::vector<int>, size_t> seen;  // devices by what they hold: start of the shard, and summand
  std::vector<double> sums(elementCount(shape), 0);
  for (size_t d = 0; d < parts.size(); ++d) {
    const DeviceId device(d);
    std::vector<int> key;
    for (int axis = 0; axis < mesh.rank(); ++axis)
      key.push_back(spec.uses(axis) ? mesh.coordinate(device, axis) : 0);
    const auto [same, fresh] = seen.emplace(key, d);
    if (!fresh) {
      EXPECT_TRUE(parts[same->second] == parts[d])
          << what << ": devices " << same->second << " and " << d << " differ";
      continue;
    }
    const Shard shard = shardOf(spec, shape, mesh, device);
    EXPECT_EQ(parts[d].shape, shard.size) << what << " on device " << d;
    Constant box = parts[d];
    for (size_t axis = 0; axis < shape.size(); ++axis) {  // grow the part to the whole, axis by axis
      Constant grown = box;
      grown.shape[axis] = shape[axis];
      grown.bytes.assign(byteCount(grown.data_type, grown.shape), std::byte{});
      placeAlong(grown, box, axis, range(shard.start[axis], shard.size[axis]));
      box = std::move(grown);
    }
    if (spec.partial.empty()) {  // bit by bit
      for (size_t b = 0; b < whole.bytes.size(); ++b) whole.bytes[b] |= box.bytes[b];
    } else {
      const std::vector<double> elements = numericElements(box);
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += elements[i];
    }
  }
  return spec.partial.empty() ? whole : fromDoubles(whole.data_type, shape, sums);
}

std::vector<Tensors> runPieces(const std::vector<LocalPiece>& pieces, const std::vector<Tensors>& given) {
  std::vector<Tensors> values = given;
  for (size_t n = 0; n < pieces[0].graph.nodes.size(); ++n) {
    if (collectiveKind(pieces[0].graph.nodes[n])) {
      runCollective(pieces, n, values);
      continue;
    }
    for (size_t d = 0; d < pieces.size(); ++d) runNode(pieces[d].graph, pieces[d].graph.nodes[n], values[d]);
  }
  for (size_t d = 0; d < pieces.size(); ++d) {
    for (ValueId output : pieces[d].graph.outputs) {
      const Constant* constant = pieces[d].graph.constant(output);
      if (constant != nullptr) values[d][pieces[d].graph.value(output).name] = *constant;
    }
  }
  return values;
}

namespace {

ShardingSpec randomSpec(std::mt19937_64& generator, const Shape& shape, bool may_be_partial,
                        const LogicalMesh& mesh) {
  while (true) {
    ShardingSpec spec = replicated(shape.size());
    for (int axis = 0; axis < mesh.rank(); ++axis) {
      const size_t choice = generator() % (shape.size() + 2);
      if (choice < shape.size()) spec.axes[choice].push_back(axis);
      if (choice == shape.size() && may_be_partial) spec.partial.push_back(axis);
    }
    if (specFault(spec, shape, mesh).empty()) return spec;
  }
}

}  // namespace

PieceSharding randomSharding(std::mt19937_64& generator, const Graph& graph, const LogicalMesh& mesh,
                             bool partial_inputs) {
  PieceSharding sharding{mesh, CostModel::uniform(mesh), {}, {}};
  for (const Node& node : graph.nodes) {
    const std::vector<Strategy> all = strategies(graph, node, mesh);
    sharding.strategies.push_back(all[generator() % all.size()]);
  }
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const bool input = std::find(graph.inputs.begin(), graph.inputs.end(), ValueId(v)) != graph.inputs.end();
    const bool may_be_partial = isFloatingPoint(graph.values[v].data_type) && (partial_inputs || !input);
    sharding.kept.push_back(randomSpec(generator, graph.shape(ValueId(v)), may_be_partial, mesh));
  }
  return sharding;
}

namespace {

// The piece of `other`, with its own constants, is that of `device`.
void expectAlike(const LocalPiece& piece, DeviceId device, const LocalPiece& other) {
  ASSERT_EQ(piece.differs_along, other.differs_along);
  ASSERT_EQ(piece.graph.values.size(), other.graph.values.size());
  for (size_t v = 0; v < piece.graph.values.size(); ++v) {
    EXPECT_EQ(piece.graph.values[v].name, other.graph.values[v].name);
    EXPECT_EQ(piece.graph.values[v].shape, other.graph.values[v].shape) << piece.graph.values[v].name;
  }
  std::map<ValueId, Initializer> constants = other.graph.initializers;
  for (const DeviceConstant& constant : other.own) constants.at(constant.value) = constant.of(device);
  for (const auto& [value, constant] : piece.graph.initializers)
    EXPECT_EQ(std::get<Constant>(constant), std::get<Constant>(constants.at(value)))
        << piece.graph.value(value).name;
}

}  // namespace

IdVector<DeviceId, LocalPiece> rewriteAll(const Graph& graph, const PieceSharding& sharding) {
  IdVector<DeviceId, LocalPiece> pieces;
  for (const DeviceId device : sharding.mesh.devices()) {
    pieces.push_back(rewriteForDevice(graph, sharding, device, groupsOf(sharding.mesh, device)));
  }
  verifyLocalPieces(graph, sharding, pieces);
  DevicePieces first;  // of devices that do not differ
  std::map<std::vector<int64_t>, DeviceId> place;
  for (const DeviceId device : pieces.ids()) {
    const LocalPiece& piece = pieces[device];
    const auto [found, is_new] =
        place.try_emplace(markedCoordinates(device, sharding.mesh, piece.differs_along), device);
    if (is_new) first[device] = &piece;
    expectAlike(piece, device, pieces[found->second]);
  }
  verifyLocalPieces(graph, sharding, first);
  return pieces;
}

void checkPieces(const Graph& graph, const Tensors& inputs, const Tensors& outputs,
                 const PieceSharding& sharding, std::vector<LocalPiece> pieces, double tolerance) {
  std::mt19937_64 generator(11);
  const auto kept = [&](ValueId id) -> const ShardingSpec& { return sharding.kept[id.index()]; };
  std::vector<Tensors> given(pieces.size());
  for (ValueId input : graph.inputs) {
    const std::string& name = graph.value(input).name;
    const std::vector<Constant> parts = distribute(inputs.at(name), kept(input), sharding.mesh, generator);
    for (size_t d = 0; d < parts.size(); ++d) given[d][name] = parts[d];
  }
  for (LocalPiece& piece : pieces) {
    EXPECT_EQ(shapeFault(piece.graph), "") << printGraph(piece.graph);
    makeRunnable(piece.graph);
  }
  const std::vector<Tensors> values = runPieces(pieces, given);
  for (ValueId output : graph.outputs) {
    const std::string& name = graph.value(output).name;
    std::vector<Constant> parts;
    for (const Tensors& device : values) parts.push_back(device.at(name));
    const Constant found = collect(parts, kept(output), graph.shape(output), sharding.mesh, name);
    EXPECT_LE(distance(found, outputs.at(name)), tolerance) << name;
  }
}

}  // namespace pipeshard::testing
