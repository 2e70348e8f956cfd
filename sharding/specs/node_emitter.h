// Emits the nodes that stand for one node of a device's graph: every value gets a type and a static shape, a
// name after the node's first output, and nodes carry the replaced node's name and metadata.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph/op_emitter.h"
#include "sharding/specs/device_differences.h"

namespace pipeshard {

// What was computed before in one graph, by operator, inputs and attributes: two nodes that need the moments
// of one tensor share them. Devices must agree on what is shared, so constants that differ between devices
// count as equal only under equal keys (NodeEmitter::ofDevice). One per graph; values must stay defined as
// long as it is used.
class EmittedValues {
 public:
  ValueId find(const std::string& key) const;
  void put(std::string key, ValueId value) { values_.emplace(std::move(key), value); }

  std::vector<DeviceConstant> own;  // constants of the graph that follow from the device's place

 private:
  std::map<std::string, ValueId> values_;
};

class NodeEmitter : public OpEmitter {
 public:
  // `targets`: values that the last nodes give, by output position; those that are missing or invalid are
  // made by `give`.
  NodeEmitter(GraphBuilder& builder, const Node& origin, std::string name, std::vector<ValueId> targets,
              EmittedValues* emitted)
      : OpEmitter(builder.graph()),
        builder_(builder),
        origin_(origin),
        name_(std::move(name)),
        outputs_(std::move(targets)),
        emitted_(emitted) {}

  const Shape& shape(ValueId value) const { return builder_.graph().shape(value); }
  DataType type(ValueId value) const { return builder_.graph().dataType(value); }

  // Operators whose names have the form "pipeshard::GatherGrad" are of that domain.
  ValueId unsqueeze(ValueId x, const std::vector<int64_t>& axes);  // axes of the result; x itself for none
  ValueId squeeze(ValueId x, int64_t axis);
  // pattern: Reshape's input, the same on all devices
  ValueId reshape(ValueId x, const std::vector<int64_t>& pattern, Shape shape);
  // pipeshard::AllReduce over each group in turn; x itself for none. reduction: "sum", "max", "min".
  ValueId allReduce(ValueId x, const std::vector<GroupId>& groups, std::string_view reduction = "sum");

  // Constants that all devices have alike.
  ValueId scalar(DataType type, double number) override;
  ValueId integers(const std::vector<int64_t>& numbers) override;
  // Constants that follow from the sizes of this device's parts; `key` says on all devices alike what it is
  // ("size of 50257 along 0").
  ValueId ofDevice(std::string_view key, DataType type, int64_t number);
  ValueId integersOfDevice(std::string_view key, const std::vector<int64_t>& numbers);
  // Constants that follow from a device's place (DeviceConstant): `device` is this one.
  ValueId ofPlace(const std::string& key, DataType type, DeviceId device,
                  const std::function<int64_t(DeviceId)>& number);
  ValueId constantOfPlace(const std::string& key, DeviceId device, std::function<Constant(DeviceId)> of,
                          std::string_view name = "constant");

  // The node's output at `position`: the last node. Type and shape are the target's where there is one.
  void give(size_t position, std::string_view op_type, std::vector<ValueId> inputs, DataType type,
            Shape shape, Attributes attributes = {});
  // The same with the type and (broadcast) shape of the first two inputs, or of the only one.
  void giveElementwise(size_t position, std::string_view op_type, std::vector<ValueId> inputs);
  void giveCast(size_t position, ValueId x, DataType type);
  void giveAllReduce(size_t position, ValueId x, const std::vector<GroupId>& groups,
                     std::string_view reduction);
  // The node again, with other inputs and attributes; outputs by position: target() or value(), invalid ones
  // are left out.
  void copy(std::vector<ValueId> inputs, Attributes attributes, std::vector<ValueId> outputs) {
    copyAs(origin_.op_type, std::move(inputs), std::move(attributes), std::move(outputs));
  }
  // The same as another operator, of inputs and attributes like it.
  void copyAs(std::string_view op_type, std::vector<ValueId> inputs, Attributes attributes,
              std::vector<ValueId> outputs);
  ValueId value(DataType type, Shape shape) { return builder_.addValue(name_, type, std::move(shape)); }
  // where an output goes; invalid if nobody wants it
  ValueId target(size_t position, DataType type, Shape shape);
  bool wants(size_t position) const {
    return position < origin_.outputs.size() && origin_.outputs[position].valid();
  }
  // By output position, invalid where the node has none.
  const std::vector<ValueId>& outputs() const { return outputs_; }

 private:
  ValueId emit(std::string_view op_type, std::vector<ValueId> inputs, DataType type, Shape shape,
               Attributes attributes) override;
  template <typename Key, typename Make>
  ValueId once(const Key& key, const Make& make);
  void append(std::string_view op_type, std::vector<ValueId> inputs, ValueId output, Attributes attributes);

  GraphBuilder& builder_;
  const Node& origin_;
  std::string name_;
  std::vector<ValueId> outputs_;
  EmittedValues* emitted_;
};

}  // namespace pipeshard
