#include "onnx_import/format/device_sharding.h"

#include <algorithm>
#include <limits>
#include <set>

#include <fmt/ranges.h>
#include <onnx/onnx_pb.h>

#include "ir/base/error.h"
#include "onnx_import/format/device_configuration.h"
#include "onnx_import/format/graph_to_proto.h"

namespace pipeshard {
namespace {

constexpr size_t kMostNotes = 8;

// Without the mesh axes that have one device.
ShardingSpec withoutTrivialAxes(ShardingSpec spec, const LogicalMesh& mesh) {
  for (std::vector<int>& axes : spec.axes)
    std::erase_if(axes, [&](int axis) { return mesh.axisSize(axis) == 1; });
  std::erase_if(spec.partial, [&](int axis) { return mesh.axisSize(axis) == 1; });
  return spec;
}

int shardsAlong(const std::vector<int>& mesh_axes, const LogicalMesh& mesh) {
  int shards = 1;
  for (int axis : mesh_axes) shards *= mesh.axisSize(axis);
  return shards;
}

// Which of the shards along a tensor axis that these mesh axes cut is the device's.
int shardOfAxis(const std::vector<int>& mesh_axes, const LogicalMesh& mesh, DeviceId device) {
  int shard = 0;
  for (int axis : mesh_axes) shard = shard * mesh.axisSize(axis) + mesh.coordinate(device, axis);
  return shard;
}

// `spec` has no trivial axes and no partial sums.
void writeSpec(const ShardingSpec& spec, const Value& value, const StageDevices& stage,
               onnx::ShardingSpecProto& proto) {
  proto.set_tensor_name(value.name);
  int shards = 1;
  for (size_t axis = 0; axis < spec.axes.size(); ++axis) {
    if (spec.axes[axis].empty()) continue;
    auto* dim = proto.add_sharded_dim();
    dim->set_axis(axis);
    auto* simple = dim->add_simple_sharding();
    simple->set_dim_value((*value.shape)[axis]);
    simple->set_num_shards(shardsAlong(spec.axes[axis], stage.mesh));
    shards *= shardsAlong(spec.axes[axis], stage.mesh);
  }
  std::vector<std::vector<int>> holders(shards);
  for (const DeviceId device : stage.mesh.devices()) {
    int shard = 0;
    for (const std::vector<int>& axes : spec.axes)
      shard = shard * shardsAlong(axes, stage.mesh) + shardOfAxis(axes, stage.mesh, device);
    holders[shard].push_back(stage.devices[device.index()]);
  }
  for (size_t shard = 0; shard < holders.size(); ++shard) {
    if (holders[shard].size() == 1) {
      proto.add_device(holders[shard][0]);
      continue;
    }
    const int64_t group = -1 - static_cast<int64_t>(shard);  // no device has a negative number
    proto.add_device(group);
    auto* entry = proto.add_index_to_device_group_map();
    entry->set_key(group);
    entry->mutable_value()->Add(holders[shard].begin(), holders[shard].end());
  }
}

// Adds the specs of one node's inputs or outputs to its annotation.
class NodeWriter {
 public:
  NodeWriter(const Graph& graph, const StageDevices& stage, onnx::NodeDeviceConfigurationProto& annotation,
             std::set<std::string>& unsaid)
      : graph_(graph), stage_(stage), annotation_(annotation), unsaid_(unsaid) {}

  void add(const std::vector<ValueId>& values, const std::vector<std::optional<ShardingSpec>>& specs) {
    PIPESHARD_CHECK(specs.size() <= values.size(), "{} specs for {} tensors", specs.size(), values.size());
    for (size_t i = 0; i < specs.size(); ++i) {
      if (!specs[i] || !values[i].valid()) continue;
      const Value& value = graph_.value(values[i]);
      PIPESHARD_CHECK(value.shape.has_value(), "'{}' has no shape", value.name);
      const std::string fault = specFault(*specs[i], *value.shape, stage_.mesh);
      PIPESHARD_CHECK(fault.empty(), "'{}' cannot be \"{}\" on mesh {}: {}", value.name, printSpec(*specs[i]),
                      printMesh(stage_.mesh), fault);
      const ShardingSpec spec = withoutTrivialAxes(*specs[i], stage_.mesh);
      const auto [said, is_new] = said_.try_emplace(value.name, spec);
      if (!spec.partial.empty() || said->second != spec) unsaid_.insert(value.name);
      if (is_new && spec.partial.empty()) writeSpec(spec, value, stage_, *annotation_.add_sharding_spec());
    }
  }

 private:
  const Graph& graph_;
  const StageDevices& stage_;
  onnx::NodeDeviceConfigurationProto& annotation_;
  std::set<std::string>& unsaid_;
  std::map<std::string, ShardingSpec> said_;
};

// A tensor's sharding as the format says it.
struct FlatSharding {
  std::vector<std::optional<int64_t>> shards;  // by tensor axis; nothing: not listed
  std::vector<size_t> order;                   // the axes that are listed
  std::vector<std::vector<int64_t>> holders;   // devices by shard
};

// Thrown for what is sound but cannot be used.
struct Unusable {
  std::string reason;
};

class SpecReader {
 public:
  SpecReader(const Node& node, const Value& value, const onnx::ShardingSpecProto& proto, int64_t device_count)
      : node_(node), value_(value), proto_(proto), device_count_(device_count) {}

  // Errors as nodeShardings; Unusable.
  ShardingSpec read(const StageDevices& stage) {
    readAxes();
    readHolders();
    if (!unusable_.empty()) throw Unusable{unusable_};
    return specOn(stage);
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::kBadModel, "{}, the sharding of '{}': {}", describeNode(node_), value_.name,
         fmt::format(format, std::forward<Args>(args)...));
  }

  void readAxes() {
    if (!value_.shape) throw Unusable{"its shape is not known"};
    const int64_t rank = value_.shape->size();
    flat_.shards.resize(value_.shape->size());
    int64_t all = 1;
    for (const auto& dim : proto_.sharded_dim()) {
      if (!dim.has_axis() || dim.axis() < -rank || dim.axis() >= rank)
        refuse("it cuts axis {}, but the tensor has {} axes",
               dim.has_axis() ? std::to_string(dim.axis()) : "(none)", rank);
      const size_t axis = dim.axis() < 0 ? dim.axis() + rank : dim.axis();
      if (flat_.shards[axis]) refuse("axis {} is listed twice", axis);
      int64_t shards = 1;
      for (const auto& simple : dim.simple_sharding()) {
        if (simple.num_shards() < 1 || simple.num_shards() > device_count_)
          refuse("axis {} has {} shards; 1 to {} (the devices of the configuration) can be", axis,
                 simple.num_shards(), device_count_);
        shards *= simple.num_shards();
        if (shards > device_count_) break;
        const int64_t size = (*value_.shape)[axis];
        if (simple.has_dim_value() && size != kUnknownSize && simple.dim_value() != size)
          unusable_ =
              fmt::format("axis {} is cut by blocks: {} of {} elements", axis, simple.dim_value(), size);
      }
      if (dim.simple_sharding_size() == 0) refuse("axis {} is listed without a number of shards", axis);
      if (dim.simple_sharding_size() > 1)
        unusable_ = fmt::format("axis {} is fused from {} axes", axis, dim.simple_sharding_size());
      all *= shards;
      if (all > device_count_)
        refuse("it has more shards than the {} devices of the configuration", device_count_);
      flat_.shards[axis] = shards;
      flat_.order.push_back(axis);
    }
    if (proto_.device_size() != all)
      refuse("it has {} shards, but lists {} devices", all, proto_.device_size());
  }

  void readHolders() {
    std::map<int64_t, std::vector<int64_t>> groups;
    for (const auto& entry : proto_.index_to_device_group_map())
      groups[entry.key()].assign(entry.value().begin(), entry.value().end());
    for (const int64_t number : proto_.device()) {
      const auto group = groups.find(number);
      flat_.holders.push_back(group == groups.end() ? std::vector<int64_t>{number} : group->second);
      for (const int64_t device : flat_.holders.back()) {
        if (device < 0 || device >= device_count_)
          refuse("there is no device {}; the configuration has {}, from 0 on", device, device_count_);
      }
    }
  }

  ShardingSpec specOn(const StageDevices& stage) const {
    // By device of the mesh: its shard, as a number for each axis.
    IdVector<DeviceId, std::vector<int64_t>> shard_of(stage.devices.size());
    for (size_t shard = 0; shard < flat_.holders.size(); ++shard) {
      for (const int64_t device : flat_.holders[shard]) {
        const auto found = std::find(stage.devices.begin(), stage.devices.end(), device);
        if (found == stage.devices.end())
          throw Unusable{fmt::format("device {} is not of its stage", device)};
        std::vector<int64_t>& parts = shard_of[DeviceId(found - stage.devices.begin())];
        if (!parts.empty()) throw Unusable{fmt::format("device {} holds several shards", device)};
        parts.resize(flat_.shards.size() + 1);  // never empty, for scalars
        int64_t left = shard;
        for (auto axis = flat_.order.rbegin(); axis != flat_.order.rend(); ++axis) {
          parts[*axis] = left % *flat_.shards[*axis];
          left /= *flat_.shards[*axis];
        }
      }
    }
    for (const DeviceId device : shard_of.ids()) {
      if (shard_of[device].empty())
        throw Unusable{fmt::format("device {} of its stage holds nothing", stage.devices[device.index()])};
    }
    ShardingSpec spec = replicated(flat_.shards.size());
    for (const size_t axis : flat_.order) {
      const std::optional<std::vector<int>> cut = meshAxesOf(axis, shard_of, stage.mesh);
      if (!cut)
        throw Unusable{fmt::format("no axes of the mesh {} give the shards of axis {} these devices",
                                   printMesh(stage.mesh), axis)};
      spec.axes[axis] = *cut;
    }
    Shape shape = *value_.shape;
    std::replace(shape.begin(), shape.end(), kUnknownSize, std::numeric_limits<int64_t>::max());
    const std::string fault = specFault(spec, shape, stage.mesh);
    if (!fault.empty()) throw Unusable{fault};
    return spec;
  }

  // Which mesh axes, major to minor, give every device its shard along the tensor axis. There is at most one
  // such list without trivial mesh axes.
  std::optional<std::vector<int>> meshAxesOf(size_t axis,
                                             const IdVector<DeviceId, std::vector<int64_t>>& shard_of,
                                             const LogicalMesh& mesh) const {
    std::vector<std::vector<int>> open = {{}};
    while (!open.empty()) {
      const std::vector<int> axes = std::move(open.back());
      open.pop_back();
      const int shards = shardsAlong(axes, mesh);
      if (shards == *flat_.shards[axis]) {
        bool fits = true;
        for (const DeviceId device : shard_of.ids())
          fits = fits && shardOfAxis(axes, mesh, device) == shard_of[device][axis];
        if (fits) return axes;
        continue;
      }
      for (int next = 0; next < mesh.rank(); ++next) {
        const bool used = std::find(axes.begin(), axes.end(), next) != axes.end();
        if (used || mesh.axisSize(next) == 1 || shards * mesh.axisSize(next) > *flat_.shards[axis]) continue;
        open.push_back(axes);
        open.back().push_back(next);
      }
    }
    return std::nullopt;
  }

  const Node& node_;
  const Value& value_;
  const onnx::ShardingSpecProto& proto_;
  int64_t device_count_;
  FlatSharding flat_;
  std::string unusable_;
};

void setSpec(const Graph& graph, const std::vector<ValueId>& values, const std::string& name,
             const ShardingSpec& spec, std::vector<std::optional<ShardingSpec>>& specs) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].valid() && graph.value(values[i]).name == name) specs[i] = spec;
  }
}

// The value of this name among a node's inputs and outputs.
const Value* findValue(const Graph& graph, const Node& node, const std::string& name) {
  for (const std::vector<ValueId>* values : {&node.inputs, &node.outputs}) {
    for (ValueId id : *values) {
      if (id.valid() && graph.value(id).name == name) return &graph.value(id);
    }
  }
  return nullptr;
}

class Notes {
 public:
  void add(const std::string& note) {
    if (!seen_.insert(note).second) return;
    if (notes_.size() < kMostNotes) notes_.push_back(note);
  }
  size_t count() const { return seen_.size(); }
  std::vector<std::string> take() {
    if (seen_.size() > kMostNotes)
      notes_.push_back(fmt::format("{} more sharding annotations were skipped", seen_.size() - kMostNotes));
    return std::move(notes_);
  }

 private:
  std::set<std::string> seen_;
  std::vector<std::string> notes_;
};

int64_t deviceCount(const Graph& graph, const std::string& configuration) {
  for (const DeviceConfiguration& each : deviceConfigurations(graph)) {
    if (each.name == configuration) return std::ssize(each.devices);
  }
  return 0;
}

void checkStages(const std::vector<StageDevices>& stages) {
  for (const StageDevices& stage : stages) {
    if (stage.devices.empty()) continue;
    PIPESHARD_CHECK(stage.mesh.deviceCount() == std::ssize(stage.devices), "{} devices for a mesh {}",
                    stage.devices.size(), printMesh(stage.mesh));
  }
}

}  // namespace

std::vector<std::string> annotateShardings(Graph& graph, const std::string& configuration,
                                           const std::vector<StageDevices>& stages,
                                           const std::vector<NodeSharding>& nodes) {
  PIPESHARD_CHECK(nodes.size() == graph.nodes.size(), "shardings of {} nodes for the {} of graph '{}'",
                  nodes.size(), graph.nodes.size(), graph.name);
  checkStages(stages);
  const std::vector<int> stage_of = pipelineStages(graph, configuration);
  std::set<std::string> unsaid;
  for (size_t n = 0; n < nodes.size(); ++n) {
    Node& node = graph.nodes[n];
    if (stage_of[n] < 0 || (nodes[n].inputs.empty() && nodes[n].outputs.empty())) continue;
    onnx::NodeProto residue = residueOf(node);
    for (auto& annotation : *residue.mutable_device_configurations()) {
      if (annotation.configuration_id() != configuration) continue;
      annotation.clear_sharding_spec();
      NodeWriter writer(graph, stages.at(stage_of[n]), annotation, unsaid);
      writer.add(node.inputs, nodes[n].inputs);
      writer.add(node.outputs, nodes[n].outputs);
    }
    node.opaque = residue.SerializeAsString();
  }
  return {unsaid.begin(), unsaid.end()};
}

ReadShardings nodeShardings(const Graph& graph, const std::string& configuration,
                            const std::vector<StageDevices>& stages) {
  checkStages(stages);
  const std::vector<int> stage_of = pipelineStages(graph, configuration);
  const int64_t device_count = deviceCount(graph, configuration);
  ReadShardings result;
  Notes notes;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    NodeSharding& sharding = result.nodes.emplace_back();
    sharding.inputs.resize(node.inputs.size());
    sharding.outputs.resize(node.outputs.size());
    const onnx::NodeProto residue = residueOf(node);
    for (const auto& annotation : residue.device_configurations()) {
      if (annotation.configuration_id() != configuration) continue;
      std::set<std::string> seen;
      for (const auto& proto : annotation.sharding_spec()) {
        const std::string& name = proto.tensor_name();
        const Value* value = findValue(graph, node, name);
        if (value == nullptr)
          fail(ErrorCode::kBadModel, "{} has a sharding of '{}', which it neither reads nor makes",
               describeNode(node), name);
        if (!seen.insert(name).second)
          fail(ErrorCode::kBadModel, "{} has two shardings of '{}'", describeNode(node), name);
        try {
          const size_t stage = stage_of[n] < 0 && stages.size() == 1 ? 0 : static_cast<size_t>(stage_of[n]);
          SpecReader reader(node, *value, proto, device_count);
          if (stage >= stages.size() || stages[stage].devices.empty())
            throw Unusable{"the node is in no stage that is known here"};
          const ShardingSpec spec = reader.read(stages[stage]);
          setSpec(graph, node.inputs, name, spec, sharding.inputs);
          setSpec(graph, node.outputs, name, spec, sharding.outputs);
        } catch (const Unusable& unusable) {
          notes.add(fmt::format("the sharding of '{}' at {} is skipped: {}", name, describeNode(node),
                                unusable.reason));
        }
      }
    }
  }
  result.skipped = notes.count();
  result.notes = notes.take();
  return result;
}

std::vector<std::vector<int>> shardedDevices(const Graph& graph, const std::string& configuration) {
  const std::vector<int> stage_of = pipelineStages(graph, configuration);
  const int64_t device_count = deviceCount(graph, configuration);
  std::vector<std::set<int>> devices;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const onnx::NodeProto residue = residueOf(graph.nodes[n]);
    const size_t stage = std::max(0, stage_of[n]);
    const auto list = [&](int64_t device) {
      if (device >= 0 && device < device_count) devices[stage].insert(static_cast<int>(device));
    };
    for (const auto& annotation : residue.device_configurations()) {
      if (annotation.configuration_id() != configuration || annotation.sharding_spec_size() == 0) continue;
      if (stage > static_cast<size_t>(device_count)) {
        fail(ErrorCode::kBadModel,
             "{} has the pipeline stage {}, but the device configuration '{}' has {} devices",
             describeNode(graph.nodes[n]), stage, configuration, device_count);
      }
      devices.resize(std::max(devices.size(), stage + 1));
      for (const auto& spec : annotation.sharding_spec()) {
        std::set<int64_t> groups;
        for (const auto& entry : spec.index_to_device_group_map()) {
          groups.insert(entry.key());
          std::for_each(entry.value().begin(), entry.value().end(), list);
        }
        for (const int64_t device : spec.device()) {
          if (!groups.contains(device)) list(device);
        }
      }
    }
  }
  std::vector<std::vector<int>> result;
  for (const std::set<int>& of_stage : devices) result.emplace_back(of_stage.begin(), of_stage.end());
  return result;
}

std::map<std::string, ShardingSpec> valueShardings(const Graph& graph,
                                                   const std::vector<NodeSharding>& nodes) {
  PIPESHARD_CHECK(nodes.size() == graph.nodes.size(), "shardings of {} nodes for {}", nodes.size(),
                  graph.nodes.size());
  std::map<std::string, ShardingSpec> made, read;
  std::set<std::string> contradicted;
  for (size_t n = 0; n < nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    for (size_t i = 0; i < nodes[n].outputs.size(); ++i) {
      if (nodes[n].outputs[i] && node.outputs[i].valid())
        made[graph.value(node.outputs[i]).name] = *nodes[n].outputs[i];
    }
    for (size_t i = 0; i < nodes[n].inputs.size(); ++i) {
      if (!nodes[n].inputs[i] || !node.inputs[i].valid()) continue;
      const std::string& name = graph.value(node.inputs[i]).name;
      const auto [spec, is_new] = read.try_emplace(name, *nodes[n].inputs[i]);
      if (spec->second != *nodes[n].inputs[i]) contradicted.insert(name);
    }
  }
  for (const std::string& name : contradicted) read.erase(name);
  made.merge(read);
  return made;
}

}  // namespace pipeshard
