// Distinct 32-bit ids: a ValueId cannot be passed where a NodeId is wanted.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace pipeshard {

template <typename Tag>
class Id {
 public:
  constexpr Id() = default;  // the invalid id: an absent optional input, "no such thing"
  constexpr explicit Id(size_t index) : value_(index) {}

  constexpr bool valid() const { return value_ != kInvalid; }
  // Position in the vector that owns the thing. Only for valid ids.
  constexpr size_t index() const { return value_; }

  friend constexpr auto operator<=>(Id, Id) = default;

 private:
  static constexpr uint32_t kInvalid = 0xffffffffu;
  uint32_t value_ = kInvalid;
};

using ValueId = Id<struct ValueTag>;
using NodeId = Id<struct NodeTag>;
using BufferId = Id<struct BufferTag>;      // ir/program/program.h
using SubgraphId = Id<struct SubgraphTag>;  // ir/program/program.h

}  // namespace pipeshard

template <typename Tag>
struct std::hash<pipeshard::Id<Tag>> {
  size_t operator()(pipeshard::Id<Tag> id) const { return id.valid() ? id.index() : ~size_t{0}; }
};
