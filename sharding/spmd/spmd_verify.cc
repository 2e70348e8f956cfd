// The proof that local pieces do together what the piece does: a walk over all devices' nodes in step, with
// the spec of every local value.
#include "sharding/spmd/spmd_verify.h"

#include <algorithm>
#include <functional>
#include <map>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "sharding/spmd/local_nodes.h"
#include "sharding/spmd/spmd_rewrite.h"
#include "sharding/spmd/work_count.h"

namespace pipeshard {

namespace {

// What a local value is a part of.
struct Placed {
  ValueId value;          // of the piece; invalid: something inside of an exchange form, or a constant
  ShardingSpec spec;      // without mesh axes of one device
  bool unscaled = false;  // a mean of this device's part, not yet multiplied by its share
};

// All devices have the same nodes with the same connections (checkAlike). So one walk over the first device's
// nodes stands for all of them, and only what may differ is compared device by device: shapes, constants,
// groups and part sizes. Of devices with one graph only the constants that follow from their places differ.
//
// placed_ says of every local value that the walk has passed which value of the piece it is, and how it lies
// (Placed). It begins with the inputs as they are kept. Every node of the piece has a run of local nodes
// (origins), each of which must follow from what is placed:
//   * a step of a resharding turns the spec of its input into that of its output;
//   * the operator must find its inputs in the specs that its strategy needs, and gives what that one gives;
//   * of an exchange form only the ends are known: what it reads from outside, and what it gives.
// At the end of a run the node's outputs must lie as they are kept. So nothing is read in a spec that it does
// not have; above all, no partial sum is read as a value.
//
//   Mesh [2], y = MatMul(x, w), strategy "0:k", x kept "R,S0", w "S0,R", y "R,R": the operator places y_part
//   as "R,R;P0", the AllReduce places y as "R,R". Without the AllReduce, y would end as "R,R;P0": a fault.
class Verifier {
 public:
  Verifier(const Graph& piece, const PieceSharding& sharding, const DevicePieces& devices)
      : piece_(piece), sharding_(sharding), mesh_(sharding.mesh), devices_(devices) {}

  void run() {
    checkDevices();
    for (const auto& [device, local] : devices_) {
      verifyGraph(local->graph);
      checkAlike(device);
      for (const DeviceConstant& constant : local->own) own_[device][constant.value] = &constant;
    }
    placed_.resize(first().values.size());
    for (size_t v = 0; v < first().values.size(); ++v) by_name_[first().values[v].name] = ValueId(v);
    producer_ = computeUseDef(first()).producer;
    for (size_t i = 0; i < piece_.inputs.size(); ++i) {
      place(first().inputs[i], piece_.inputs[i], sharding_.kept[piece_.inputs[i].index()], nullptr);
    }
    size_t next = 0;
    for (size_t n = 0; n < piece_.nodes.size(); ++n) checkPieceNode(n, next);
    checkOutputs();
    for (const auto& [device, local] : devices_) checkOwn(device);
  }

 private:
  static constexpr DeviceId kFirst{0};

  const LocalPiece& pieceOf(DeviceId device) const { return *devices_.at(device); }
  const Graph& first() const { return pieceOf(kFirst).graph; }
  const Graph& graphOf(DeviceId device) const { return pieceOf(device).graph; }
  const Node& nodeOf(DeviceId device, size_t n) const { return graphOf(device).nodes[n]; }

  [[noreturn]] void fault(DeviceId device, const Node* node, const std::string& what) const {
    fail(ErrorCode::kInternal, "device {} of mesh {}: {}{}", device, printMesh(mesh_),
         node ? describeNode(*node) + ": " : "", what);
  }

  ShardingSpec normal(ShardingSpec spec) const {
    const auto single = [&](int axis) { return mesh_.axisSize(axis) == 1; };
    for (std::vector<int>& axis : spec.axes) std::erase_if(axis, single);
    std::erase_if(spec.partial, single);
    return spec;
  }

  // Every device is here, or another one that has the same graph.
  void checkDevices() {
    const auto first = devices_.find(kFirst);
    if (first == devices_.end() || std::ssize(devices_) > mesh_.deviceCount())
      fail(ErrorCode::kInternal, "{} local pieces for mesh {}", devices_.size(), printMesh(mesh_));
    std::map<std::vector<int64_t>, DeviceId> found;
    for (const auto& [device, local] : devices_)
      found.emplace(markedCoordinates(device, mesh_, first->second->differs_along), device);
    for (const DeviceId device : mesh_.devices()) {
      const auto alike = found.find(markedCoordinates(device, mesh_, first->second->differs_along));
      if (alike == found.end())
        fail(ErrorCode::kInternal, "no local piece for device {} of mesh {}", device, printMesh(mesh_));
      stand_in_.push_back(devices_.contains(device) ? device : alike->second);
    }
  }

  // What a piece says of the constants of devices' places is true of its own.
  void checkOwn(DeviceId device) const {
    for (const DeviceConstant& constant : pieceOf(device).own) {
      const Constant* found = graphOf(device).constant(constant.value);
      if (found == nullptr || !(*found == constant.of(device)))
        fault(device, nullptr, fmt::format("its constant '{}' is another one", constant.key));
    }
  }

  // Same nodes and connections as the first device's.
  void checkAlike(DeviceId device) const {
    const Graph& graph = graphOf(device);
    const LocalPiece& piece = pieceOf(device);
    if (graph.nodes.size() != first().nodes.size() || graph.values.size() != first().values.size() ||
        piece.origins != pieceOf(kFirst).origins || piece.origins.size() != graph.nodes.size()) {
      fault(device, nullptr,
            fmt::format("it has {} nodes, device 0 has {}", graph.nodes.size(), first().nodes.size()));
    }
    if (graph.inputs != first().inputs || graph.outputs != first().outputs ||
        graph.inputs.size() != piece_.inputs.size() || graph.outputs.size() != piece_.outputs.size()) {
      fault(device, nullptr, "its inputs and outputs are not those of the piece");
    }
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const Node& node = graph.nodes[n];
      const Node& other = first().nodes[n];
      const bool alike = node.op_type == other.op_type && node.domain == other.domain &&
                         node.overload == other.overload && node.inputs == other.inputs &&
                         node.outputs == other.outputs && isPlacing(node) == isPlacing(other);
      if (!alike || (!collectiveKind(node) && node.attributes != other.attributes)) {
        fault(device, &node, "it is not the node that device 0 has here");
      }
    }
    if (collectiveGroups(graph) != piece.collectives)
      fault(device, nullptr, "its list of groups is not that of its collectives");
  }

  // Says what a local value is, and compares the shapes of all devices with it.
  void place(ValueId local, ValueId value, const ShardingSpec& spec, const Node* node,
             bool unscaled = false) {
    const Shape& whole = piece_.shape(value);
    if (const std::string wrong = specFault(spec, whole, mesh_); !wrong.empty()) fault(kFirst, node, wrong);
    for (const auto& [device, of_device] : devices_) {
      const Shape expected = shardOf(spec, whole, mesh_, device).size;
      const Shape& found = graphOf(device).shape(local);
      if (found != expected || graphOf(device).dataType(local) != piece_.dataType(value)) {
        fault(device, node,
              fmt::format("'{}' has shape {}, {} of '{}' {} is {}", first().value(local).name,
                          shapeToString(found), printSpec(spec), piece_.value(value).name,
                          shapeToString(whole), shapeToString(expected)));
      }
    }
    placed_[local.index()] = {value, normal(spec), unscaled};
  }

  // The mesh axis for which `holds` is true; a fault where there is none.
  int findAxis(const Node& node, const std::function<bool(int)>& holds, const char* what) const {
    for (int axis = 0; axis < mesh_.rank(); ++axis) {
      if (mesh_.axisSize(axis) > 1 && holds(axis)) return axis;
    }
    fault(kFirst, &node, what);
  }

  // The mesh axis along which all devices meet in this collective.
  int axisOfGroups(size_t n) const {
    int mesh_axis = -1;
    for (const auto& [device, of_device] : devices_) {
      const Node& node = nodeOf(device, n);
      const std::vector<GroupId>& groups = pieceOf(device).groups.group_of_axis;
      const auto found = std::find(groups.begin(), groups.end(), collectiveGroup(node));
      const int axis = found - groups.begin();
      if (axis >= mesh_.rank() || mesh_.axisSize(axis) == 1)
        fault(device, &node, "its group is no line of the mesh");
      if (device != kFirst && axis != mesh_axis)
        fault(device, &node, "it meets along another mesh axis than device 0");
      mesh_axis = axis;
    }
    return mesh_axis;
  }

  // `sizes` must be those of the parts under `spec` along the tensor axis, in the order of the line.
  void checkSizes(size_t n, int mesh_axis, const char* attribute, ValueId value, const ShardingSpec& spec,
                  size_t axis) const {
    for (const auto& [device, of_device] : devices_) {
      std::vector<int64_t> expected;
      for (const DeviceId member : mesh_.lineOf(device, mesh_axis))
        expected.push_back(shardOf(spec, piece_.shape(value), mesh_, member).size[axis]);
      if (nodeOf(device, n).intsAttribute(attribute) != expected)
        fault(device, &nodeOf(device, n), "its part sizes are wrong");
    }
  }

  int64_t sameAttribute(size_t n, const char* name) const {
    const int64_t value = nodeOf(kFirst, n).intAttribute(name, -1);
    for (const auto& [device, of_device] : devices_) {
      if (nodeOf(device, n).intAttribute(name, -1) != value)
        fault(device, &nodeOf(device, n), fmt::format("its {} differs", name));
    }
    return value;
  }

  void checkSum(size_t n) const {
    for (const auto& [device, of_device] : devices_) {
      if (nodeOf(device, n).stringAttribute("reduction", "sum") != "sum")
        fault(device, &nodeOf(device, n), "it does not sum");
    }
  }

  ShardingSpec afterCollective(size_t n, CollectiveKind kind, const Placed& before) const {
    const Node& node = nodeOf(kFirst, n);
    const int mesh_axis = axisOfGroups(n);
    ShardingSpec spec = before.spec;
    const auto takePartial = [&] {
      checkSum(n);
      if (std::erase(spec.partial, mesh_axis) == 0)
        fault(kFirst, &node, fmt::format("it sums what is no sum: {}", printSpec(before.spec)));
    };
    const auto cut = [&](const char* axis_name, const char* sizes) {
      const size_t axis = sameAttribute(n, axis_name);
      spec.axes.at(axis).push_back(mesh_axis);
      checkSizes(n, mesh_axis, sizes, before.value, spec, axis);
    };
    const auto gather = [&] {
      const size_t axis = sameAttribute(n, "axis");
      checkSizes(n, mesh_axis, "sizes", before.value, before.spec, axis);
      if (spec.axes.at(axis).empty() || spec.axes[axis].back() != mesh_axis)
        fault(kFirst, &node, "it gathers what is not cut so");
      spec.axes[axis].pop_back();
    };
    if (kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter) takePartial();
    if (kind == CollectiveKind::kAllGather || kind == CollectiveKind::kAllToAll) gather();
    if (kind == CollectiveKind::kReduceScatter) cut("axis", "sizes");
    if (kind == CollectiveKind::kAllToAll) cut("to_axis", "to_sizes");
    return spec;
  }

  // Of any device of the mesh; `node` is the node of the one that has its graph.
  Constant constantOf(DeviceId device, const Node& node, size_t input) const {
    const DeviceId stand_in = stand_in_[device];
    const Constant* constant =
        input < node.inputs.size() ? graphOf(stand_in).constant(node.inputs[input]) : nullptr;
    if (constant == nullptr) fault(device, &node, fmt::format("input {} is no constant", input));
    if (device == stand_in || !own_.contains(stand_in)) return *constant;
    const auto& own = own_.at(stand_in);
    const auto found = own.find(node.inputs[input]);
    return found == own.end() ? *constant : found->second->of(device);
  }
  // Of any device of the mesh.
  const Node& nodeAlike(DeviceId device, size_t n) const { return nodeOf(stand_in_[device], n); }

  ShardingSpec afterSlice(size_t n, const Placed& before) const {
    const Node& node = nodeOf(kFirst, n);
    const size_t axis = integerElements(constantOf(kFirst, node, 3)).at(0);
    const Shape& whole = piece_.shape(before.value);
    ShardingSpec spec;
    findAxis(
        node,
        [&](int mesh_axis) {
          if (before.spec.uses(mesh_axis)) return false;
          spec = before.spec;
          spec.axes.at(axis).push_back(mesh_axis);
          for (const DeviceId device : mesh_.devices()) {
            const Node& local = nodeAlike(device, n);
            const Shard to = shardOf(spec, whole, mesh_, device);
            const int64_t start = to.start[axis] - shardOf(before.spec, whole, mesh_, device).start[axis];
            if (integerElements(constantOf(device, local, 1)) != std::vector{start}) return false;
            if (integerElements(constantOf(device, local, 2)) != std::vector{start + to.size[axis]})
              return false;
          }
          return true;
        },
        "it takes no shard");
    return spec;
  }

  ShardingSpec afterKeepOne(size_t n, const Placed& before) const {
    const auto keepsFirst = [&](int mesh_axis) {
      if (before.spec.uses(mesh_axis)) return false;
      for (const DeviceId device : mesh_.devices()) {
        const Node& local = nodeAlike(device, n);
        if (numericElements(constantOf(device, local, 0)).at(0) != (mesh_.coordinate(device, mesh_axis) == 0))
          return false;
        if (numericElements(constantOf(device, local, 2)).at(0) != 0) return false;
      }
      return true;
    };
    ShardingSpec spec = before.spec;
    spec.partial.push_back(findAxis(nodeOf(kFirst, n), keepsFirst, "it does not keep one summand"));
    std::sort(spec.partial.begin(), spec.partial.end());
    return spec;
  }

  void checkShare(const Node& node, const Strategy& strategy, const StrategyBuilder& strategies, size_t n,
                  ValueId value) const {
    const auto output = std::find(node.outputs.begin(), node.outputs.end(), value) - node.outputs.begin();
    for (const auto& [device, of_device] : devices_) {
      const double share = meanShare(strategies, mesh_, device, strategy.uses, output);
      const bool equal =
          constantOf(device, nodeOf(device, n), 1) == makeScalar(piece_.dataType(value), share);
      if (!equal) fault(device, &nodeOf(device, n), fmt::format("its share of the mean is {}", share));
    }
  }

  // A node of a resharding, or the share of a mean.
  void checkPlacing(const Node& of, const Strategy& strategy, const StrategyBuilder& strategies, size_t n) {
    const Node& node = nodeOf(kFirst, n);
    const size_t position = node.is("Where") ? 1 : 0;
    const Placed before = placed_[node.inputs.at(position).index()];
    if (!before.value.valid()) fault(kFirst, &node, "it places what is no value of the piece");
    if (before.unscaled != node.is("Mul")) fault(kFirst, &node, "a mean over a part is read as a value");
    ShardingSpec spec = before.spec;
    if (const auto kind = collectiveKind(node)) {
      spec = afterCollective(n, *kind, before);
    } else if (node.is("Slice")) {
      spec = afterSlice(n, before);
    } else if (node.is("Where")) {
      spec = afterKeepOne(n, before);
    } else if (node.is("Mul")) {
      checkShare(of, strategy, strategies, n, before.value);
    } else {
      fault(kFirst, &node, "it is no step of a resharding");
    }
    place(node.outputs[0], before.value, spec, &node);
  }

  void checkConstant(const Node& node, const Node& local, size_t position, const ShardingSpec& spec) const {
    const Constant& whole = *piece_.constant(node.inputs[position]);
    for (const DeviceId device : mesh_.devices()) {
      if (spec.isReplicated() && !devices_.contains(device)) continue;
      if (!(constantOf(device, local, position) == localConstant(whole, spec, mesh_, device))) {
        fault(device, &local, fmt::format("constant input {} is not this device's part", position));
      }
    }
  }

  // What an operator (or the nodes in its place) reads is what its strategy needs.
  void checkRead(const Node& node, const Node& local, size_t position, const ShardingSpec& spec) const {
    const Placed& found = placed_[local.inputs[position].index()];
    if (found.value == node.inputs[position] && found.spec == normal(spec) && !found.unscaled) return;
    fault(
        kFirst, &local,
        fmt::format("input {} is {} of '{}', its strategy needs {} of '{}'", position, printSpec(found.spec),
                    found.value.valid() ? piece_.value(found.value).name : "something else", printSpec(spec),
                    piece_.value(node.inputs[position]).name));
  }

  void checkSizesInput(const Node& local, size_t position) const {
    for (const auto& [device, of_device] : devices_) {
      const Shape sizes = integerElements(constantOf(device, local, position));
      if (sizes != graphOf(device).shape(local.outputs[0]))
        fault(device, &local, "it is given the sizes of another output");
    }
  }

  void checkOperator(const Node& node, const Strategy& strategy, const StrategyBuilder& strategies,
                     const Node& local) {
    if (node.op_type != local.op_type || node.domain != local.domain ||
        node.inputs.size() != local.inputs.size() || node.outputs.size() != local.outputs.size() ||
        node.attributes != local.attributes) {
      fault(kFirst, &local, "it is not the piece's " + describeNode(node));
    }
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i].valid() != local.inputs[i].valid())
        fault(kFirst, &local, fmt::format("input {} is missing or too much", i));
      if (!node.inputs[i].valid()) continue;
      if (i == sizesInput(node)) {
        checkSizesInput(local, i);
      } else if (first().constant(local.inputs[i]) != nullptr && piece_.constant(node.inputs[i]) != nullptr) {
        checkConstant(node, local, i, strategy.inputs[i]);
      } else {
        checkRead(node, local, i, strategy.inputs[i]);
      }
    }
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      if (!node.outputs[o].valid()) continue;
      place(local.outputs[o], node.outputs[o], strategy.outputs[o], &local,
            strategies.scalesMean(strategy.uses, o));
    }
  }

  // Inside of an exchange form only what it reads from outside is checked, that its collectives run along
  // axes that it cuts, and what it gives.
  void checkExchange(const Node& node, const Strategy& strategy, size_t n,
                     const std::vector<ValueId>& natural) {
    const Node& local = nodeOf(kFirst, n);
    for (ValueId input : local.inputs) {
      if (!input.valid() || !placed_[input.index()].value.valid()) continue;
      const Placed& found = placed_[input.index()];
      bool wanted = false;
      for (size_t i = 0; i < node.inputs.size(); ++i)
        wanted |= node.inputs[i] == found.value && normal(strategy.inputs[i]) == found.spec;
      for (size_t o = 0; o < natural.size(); ++o) wanted |= natural[o] == input;  // read again inside
      if (!wanted)
        fault(kFirst, &local,
              fmt::format("it reads {} of '{}'", printSpec(found.spec), piece_.value(found.value).name));
    }
    if (collectiveKind(local)) {
      const AxisUse& use = strategy.uses.at(axisOfGroups(n));
      if (use.kind != AxisUse::Kind::kFactor)
        fault(kFirst, &local, "it exchanges along a mesh axis that does not share the operator");
    }
    for (size_t o = 0; o < natural.size(); ++o) {
      const bool given =
          std::find(local.outputs.begin(), local.outputs.end(), natural[o]) != local.outputs.end();
      if (natural[o].valid() && given) place(natural[o], node.outputs[o], strategy.outputs[o], &local);
    }
  }

  // The local value that the operator itself gives, before it is put into place.
  ValueId naturalOutput(ValueId value) const {
    const auto found = by_name_.find(piece_.value(value).name);
    if (found == by_name_.end())
      fault(kFirst, nullptr, fmt::format("there is no value '{}'", piece_.value(value).name));
    ValueId local = found->second;
    while (producer_[local.index()].valid() && isPlacing(first().node(producer_[local.index()]))) {
      const Node& node = first().node(producer_[local.index()]);
      local = node.inputs.at(node.is("Where") ? 1 : 0);
    }
    return local;
  }

  void checkPieceNode(size_t n, size_t& next) {
    const Node& node = piece_.nodes[n];
    const Strategy& strategy = sharding_.strategies[n];
    const StrategyBuilder strategies(piece_, node, mesh_);
    const auto expected = strategies.make(strategy.uses);
    if (!expected || expected->inputs != strategy.inputs || expected->outputs != strategy.outputs) {
      fail(ErrorCode::kInternal, "{} has no such strategy on mesh {}", describeNode(node), printMesh(mesh_));
    }
    std::vector<ValueId> natural;
    for (ValueId output : node.outputs) natural.push_back(output.valid() ? naturalOutput(output) : ValueId());
    const bool exchanges = strategies.exchangesAny(strategy.uses);
    int operators = 0;
    for (; next < first().nodes.size() && pieceOf(kFirst).origins[next] == n; ++next) {
      const Node& local = nodeOf(kFirst, next);
      if (isPlacing(local)) {
        checkPlacing(node, strategy, strategies, next);
      } else if (exchanges) {
        checkExchange(node, strategy, next, natural);
      } else if (++operators == 1) {
        checkOperator(node, strategy, strategies, local);
      } else {
        fault(kFirst, &local, "it is a second operator for " + describeNode(node));
      }
    }
    for (ValueId output : node.outputs) {
      if (output.valid()) checkKept(output, by_name_.at(piece_.value(output).name));
    }
  }

  void checkKept(ValueId value, ValueId local) const {
    const Placed& found = placed_[local.index()];
    const ShardingSpec& kept = sharding_.kept[value.index()];
    if (found.value == value && found.spec == normal(kept) && !found.unscaled) return;
    fault(kFirst, nullptr,
          fmt::format("'{}' ends as {}, it is kept as {}", piece_.value(value).name, printSpec(found.spec),
                      printSpec(kept)));
  }

  void checkOutputs() const {
    for (size_t i = 0; i < piece_.outputs.size(); ++i) {
      const ValueId output = piece_.outputs[i];
      const bool constant =
          piece_.constant(output) != nullptr && !placed_[first().outputs[i].index()].value.valid();
      if (!constant) checkKept(output, first().outputs[i]);
    }
  }

  const Graph& piece_;
  const PieceSharding& sharding_;
  const LogicalMesh& mesh_;
  const DevicePieces& devices_;
  IdVector<DeviceId, DeviceId> stand_in_;                             // which device has the graph of each
  std::map<DeviceId, std::map<ValueId, const DeviceConstant*>> own_;  // of those that have graphs
  std::vector<Placed> placed_;  // by local value, the same of all devices
  std::map<std::string, ValueId> by_name_;
  std::vector<NodeId> producer_;
};

}  // namespace

void verifyLocalPieces(const Graph& piece, const PieceSharding& sharding, const DevicePieces& devices) {
  Verifier(piece, sharding, devices).run();
}

void verifyLocalPieces(const Graph& piece, const PieceSharding& sharding,
                       const IdVector<DeviceId, LocalPiece>& devices) {
  if (std::ssize(devices) != sharding.mesh.deviceCount())
    fail(ErrorCode::kInternal, "{} local pieces for mesh {}", devices.size(), printMesh(sharding.mesh));
  DevicePieces pieces;
  for (const DeviceId device : devices.ids()) pieces[device] = &devices[device];
  verifyLocalPieces(piece, sharding, pieces);
}

}  // namespace pipeshard
