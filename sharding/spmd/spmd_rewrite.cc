#include "sharding/spmd/spmd_rewrite.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "sharding/spmd/local_nodes.h"
#include "sharding/spmd/work_count.h"

namespace pipeshard {

namespace {

// Walks the piece's nodes in order. kept_ has, for every value that is defined so far, the local value in the
// spec in which it is kept. A node's inputs are resharded from there to what its strategy needs, once for all
// positions that need the same; its outputs from what the strategy gives to how they are kept. A constant is
// never resharded, but cut for each spec that is read of it.
//
// What is emitted follows from specs, strategies and whole shapes, not from the device: so all devices get
// the same nodes in the same order, and collectives meet. The device decides shapes, constants and groups.
class Rewriter {
 public:
  Rewriter(const Graph& piece, const PieceSharding& sharding, DeviceId device, const MeshGroups& groups)
      : piece_(piece),
        sharding_(sharding),
        groups_(groups),
        context_{piece, sharding.mesh, device, groups, &emitted_},
        builder_(result_.graph) {
    PIPESHARD_CHECK(sharding.strategies.size() == piece.nodes.size(), "{} strategies for {} nodes",
                    sharding.strategies.size(), piece.nodes.size());
    PIPESHARD_CHECK(sharding.kept.size() == piece.values.size(), "{} specs for {} values",
                    sharding.kept.size(), piece.values.size());
    kept_.resize(piece.values.size());
    result_.differs_along.resize(sharding.mesh.rank());
  }

  LocalPiece run() {
    copyHeader();
    for (ValueId input : piece_.inputs) {
      checkSpec(input, kept(input));
      kept_[input.index()] =
          builder_.addValue(piece_.value(input).name, piece_.dataType(input), localShape(input, kept(input)));
      graph().inputs.push_back(kept_[input.index()]);
    }
    for (size_t n = 0; n < piece_.nodes.size(); ++n) {
      rewriteNode(piece_.nodes[n], sharding_.strategies[n]);
      result_.origins.resize(graph().nodes.size(), n);
    }
    for (ValueId output : piece_.outputs) graph().outputs.push_back(held(output, kept(output)));
    nameValues();
    result_.collectives = collectiveGroups(graph());
    result_.groups = groups_;
    result_.own = std::move(emitted_.own);
    return std::move(result_);
  }

 private:
  Graph& graph() { return result_.graph; }
  const ShardingSpec& kept(ValueId value) const { return sharding_.kept[value.index()]; }
  Shape localShape(ValueId value, const ShardingSpec& spec) const {
    return shardOf(spec, piece_.shape(value), sharding_.mesh, context_.device).size;
  }

  void checkSpec(ValueId value, const ShardingSpec& spec) {
    const std::string fault = specFault(spec, piece_.shape(value), sharding_.mesh);
    PIPESHARD_CHECK(fault.empty(), "value '{}' cannot lie as {} on mesh {}: {}", piece_.value(value).name,
                    printSpec(spec), printMesh(sharding_.mesh), fault);
    markUneven(spec, piece_.shape(value), sharding_.mesh, result_.differs_along);
  }

  // Of a constant every device has another part, and of a sum one device has all; but rows of a mask are
  // often equal.
  ValueId partOf(const Constant& constant, const std::string& name, const ShardingSpec& spec) {
    const LogicalMesh& mesh = sharding_.mesh;
    const Constant local = localConstant(constant, spec, mesh, context_.device);
    const ValueId part = builder_.addConstant(name, local);
    MeshAxes used;
    int64_t parts = 1;
    for (int axis = 0; axis < mesh.rank(); ++axis) {
      used.push_back(spec.uses(axis));
      const bool cuts = used.back() && !std::binary_search(spec.partial.begin(), spec.partial.end(), axis);
      parts *= cuts ? mesh.axisSize(axis) : 1;
    }
    const auto of = [constant, spec, mesh](DeviceId device) {
      return localConstant(constant, spec, mesh, device);
    };
    const std::vector<DeviceId> others = devicesThatDiffer(mesh, used);
    if (std::all_of(others.begin(), others.end(), [&](DeviceId device) { return of(device) == local; }))
      return part;
    if (std::ssize(constant.bytes) / parts > kMostDeviceConstantBytes) {
      for (int axis = 0; axis < mesh.rank(); ++axis) {
        if (used[axis]) result_.differs_along[axis] = true;
      }
    } else {
      const std::string key =
          fmt::format("{} of constant {} {}", printSpec(spec), name, shapeToString(constant.shape));
      emitted_.own.push_back({part, key, of});
    }
    return part;
  }

  // A mean over parts knows its share.
  void markUses(const StrategyBuilder& strategies, const Node& node, const Strategy& strategy) {
    for (size_t axis = 0; axis < strategy.uses.size(); ++axis) {
      const AxisUse& use = strategy.uses[axis];
      if (use.kind != AxisUse::Kind::kFactor) continue;
      bool marked = false;
      for (size_t o = 0; o < node.outputs.size(); ++o) {
        const std::vector<int> means = strategies.meanFactors(strategy.uses, o);
        const int64_t size = strategies.rule()->factors[use.index].size;
        const int64_t devices = strategies.devicesAlong(strategy.uses, use.index);
        const bool even = size / sharding_.mesh.unit(size) % devices == 0;
        marked = marked || (!even && std::find(means.begin(), means.end(), use.index) != means.end());
      }
      if (marked) result_.differs_along[axis] = true;
    }
  }

  void copyHeader() {
    Graph& local = graph();
    local.name = piece_.name;
    local.doc = piece_.doc;
    local.opset_imports = piece_.opset_imports;
    local.functions = piece_.functions;
    local.ir_version = piece_.ir_version;
    local.producer_name = piece_.producer_name;
    local.producer_version = piece_.producer_version;
    local.metadata = piece_.metadata;
    local.directory = piece_.directory;
  }

  // A constant is cut for the use; anything else lies as it is kept.
  ValueId held(ValueId value, const ShardingSpec& spec) {
    if (kept_[value.index()].valid()) return kept_[value.index()];
    const Constant* constant = piece_.constant(value);
    PIPESHARD_CHECK(constant != nullptr,
                    "'{}' is read, but is no input, constant or output of an earlier node",
                    piece_.value(value).name);
    checkSpec(value, spec);
    ValueId& part = constants_[{value.index(), spec}];
    if (!part.valid()) part = partOf(*constant, piece_.value(value).name, spec);
    return part;
  }

  ValueId reshard(ValueId local, ValueId value, const ShardingSpec& from, const ShardingSpec& to) {
    if (from == to) return local;
    checkSpec(value, to);
    const Shape& shape = piece_.shape(value);
    const auto [plan, fresh] = plans_.try_emplace({shape, piece_.dataType(value), from, to});
    if (fresh)
      plan->second = planResharding(shape, piece_.dataType(value), from, to, sharding_.mesh, sharding_.model);
    markResharding(shape, from, plan->second, sharding_.mesh, result_.differs_along);
    const size_t before = graph().nodes.size();
    const ValueId placed = emitResharding(builder_, local, shape, from, plan->second, sharding_.mesh,
                                          context_.device, groups_, &emitted_.own);
    for (size_t n = before; n < graph().nodes.size(); ++n) markPlacing(graph().nodes[n]);
    return placed;
  }

  std::vector<ValueId> placeInputs(const Node& node, const Strategy& strategy) {
    std::map<std::pair<size_t, ShardingSpec>, ValueId> placed;  // positions that need the same share it
    std::vector<ValueId> inputs(node.inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      const ValueId value = node.inputs[i];
      if (!value.valid() || i == sizesInput(node)) continue;
      ValueId& local = placed[{value.index(), strategy.inputs[i]}];
      if (!local.valid()) {
        local = held(value, strategy.inputs[i]);
        if (kept_[value.index()].valid()) local = reshard(local, value, kept(value), strategy.inputs[i]);
      }
      inputs[i] = local;
    }
    return inputs;
  }

  void rewriteNode(const Node& node, const Strategy& strategy) {
    PIPESHARD_CHECK(
        strategy.inputs.size() == node.inputs.size() && strategy.outputs.size() == node.outputs.size(),
        "{}: its strategy is for {} inputs and {} outputs", describeNode(node), strategy.inputs.size(),
        strategy.outputs.size());
    const StrategyBuilder strategies(piece_, node, sharding_.mesh);
    markUses(strategies, node, strategy);
    std::vector<ValueId> inputs = placeInputs(node, strategy);
    const std::vector<ValueId> outputs =
        emitLocalNode(builder_, strategies, context_, node, strategy, std::move(inputs));
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const ValueId value = node.outputs[o];
      if (!value.valid()) continue;
      checkSpec(value, strategy.outputs[o]);
      const Shape natural = localShape(value, strategy.outputs[o]);
      PIPESHARD_CHECK(graph().shape(outputs[o]) == natural, "{} gives {} on device {}, {} of {} is {}",
                      describeNode(node), shapeToString(graph().shape(outputs[o])), context_.device,
                      printSpec(strategy.outputs[o]), shapeToString(piece_.shape(value)),
                      shapeToString(natural));
      kept_[value.index()] = reshard(outputs[o], value, strategy.outputs[o], kept(value));
    }
  }

  // Values that lie as they are kept have the piece's names; others may have taken them.
  void nameValues() {
    std::vector<bool> named(graph().values.size(), false);
    std::set<std::string> taken;
    for (size_t v = 0; v < kept_.size(); ++v) {
      if (!kept_[v].valid()) continue;
      PIPESHARD_CHECK(!named[kept_[v].index()], "one local value stands for '{}' and another",
                      piece_.values[v].name);
      named[kept_[v].index()] = true;
      Value& local = graph().value(kept_[v]);
      local.name = piece_.values[v].name;
      local.metadata = piece_.values[v].metadata;
      taken.insert(local.name);
    }
    for (size_t v = 0; v < named.size(); ++v) {
      if (named[v]) continue;
      const std::string wanted = graph().values[v].name;
      std::string& name = graph().values[v].name;
      for (int suffix = 1; !taken.insert(name).second; ++suffix) name = fmt::format("{}_{}", wanted, suffix);
    }
  }

  const Graph& piece_;
  const PieceSharding& sharding_;
  const MeshGroups& groups_;
  LocalPiece result_;
  EmittedValues emitted_;
  ExchangeContext context_;
  GraphBuilder builder_;
  std::vector<ValueId> kept_;  // by the piece's value: the local one in its kept spec
  std::map<std::pair<size_t, ShardingSpec>, ValueId> constants_;
  std::map<std::tuple<Shape, DataType, ShardingSpec, ShardingSpec>, Resharding> plans_;  // layers repeat
};

}  // namespace

LocalPiece rewriteForDevice(const Graph& piece, const PieceSharding& sharding, DeviceId device,
                            const MeshGroups& groups) {
  return Rewriter(piece, sharding, device, groups).run();
}

}  // namespace pipeshard
