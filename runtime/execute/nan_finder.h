// `run --on-nan find`: which value was the first that is not a number. Whoever runs nodes has each one's
// results looked at as soon as they are computed; tensors that come from outside (weights, data) are looked
// at before they are used. So what a node takes is known to be free of NaN, and the first NaN found is where
// it began; other ranks get only what their senders have looked at.
//
// Infinities are no fault by themselves (masks hold them), but they are where most NaN come from: the first
// result that is infinite though nothing it was made of is, is remembered. A parameter or state that an
// update makes infinite is a fault (Executor): it is kept.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "ir/base/sharding_spec.h"
#include "ir/graph/graph.h"
#include "runtime/device/device.h"

namespace pipeshard {

// The first element of a tensor that is NaN (or, with `also_infinite`, not finite): its place and its value.
// Nothing for types that hold integers.
std::optional<std::pair<size_t, double>> firstNotFinite(DataType type, std::span<const std::byte> bytes,
                                                        bool also_infinite);

// "nan" (whatever its sign), "inf" or "-inf".
std::string describeNotFinite(double value);

class NanFinder {
 public:
  void beginStep() { first_infinite_.clear(); }

  // A node that has computed; addresses on the device, in the order of its inputs and outputs, nullptr where
  // one is left out. Error(kNotANumber) naming the result, the element and what it was made of.
  void lookAtNode(const Graph& graph, const Node& node, std::span<const void* const> inputs,
                  std::span<void* const> outputs, DeviceQueue& queue);

  // A box of a tensor from outside. `what` begins the message: "the weight 'w'". Error(kNotANumber).
  void lookAtTensor(const std::string& what, DataType type, const Shard& box,
                    std::span<const std::byte> bytes, const std::string& advice) const;

  // "; the first infinite value was 'h' (Exp 'node_3'): inf at [0,2]", or "".
  const std::string& firstInfinite() const { return first_infinite_; }

 private:
  std::string first_infinite_;
};

}  // namespace pipeshard
