// Distinct 32-bit ids: a ValueId cannot be passed where a NodeId is wanted, nor a stage where a rank is.
//
// An id is a position in the vector that owns the things (IdVector, or a plain vector through index()). Those
// of stages, layers and ranks lie in an order: ++ is the next one. Text: fmt prints the position, "-" where
// there is none (ir/base/ids_format.h).
//   IdVector<StageId, StagePlan> stages;
//   for (StageId stage : stages.ids()) use(stages[stage]);
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <vector>

namespace pipeshard {

template <typename Tag>
class Id {
 public:
  constexpr Id() = default;  // the invalid id: an absent optional input, "no such thing"
  constexpr explicit Id(size_t index) : value_(index) {}

  constexpr bool valid() const { return value_ != kInvalid; }
  // Position in the vector that owns the thing. Only for valid ids.
  constexpr size_t index() const { return value_; }

  // The neighbours, of valid ids in an order. Before the first one there is none: the invalid id.
  constexpr Id next() const { return Id(index() + 1); }
  constexpr Id previous() const { return value_ == 0 ? Id() : Id(index() - 1); }
  constexpr Id& operator++() { return *this = next(); }
  constexpr Id operator++(int) {
    const Id before = *this;
    ++*this;
    return before;
  }

  friend constexpr auto operator<=>(Id, Id) = default;

 private:
  static constexpr uint32_t kInvalid = 0xffffffffu;
  uint32_t value_ = kInvalid;
};

using ValueId = Id<struct ValueTag>;
using NodeId = Id<struct NodeTag>;
using BufferId = Id<struct BufferTag>;              // ir/program/program.h
using SubgraphId = Id<struct SubgraphTag>;          // ir/program/program.h
using LayerId = Id<struct LayerTag>;                // a run of forward nodes (ir/plan/plan.h)
using StageId = Id<struct StageTag>;                // of a Plan; where a rank runs several, each of them
using RankId = Id<struct RankTag>;                  // of a job: one worker process, one Program, one device
using PipelineRankId = Id<struct PipelineRankTag>;  // the devices that run the same stages
using GroupId = Id<struct GroupTag>;    // of ranks that meet in a collective (ir/program/program.h)
using DeviceId = Id<struct DeviceTag>;  // of a stage: its place in the logical mesh, row-major

// The ids first, ..., last - 1.
template <typename SomeId>
class IdRange {
 public:
  class Iterator {
   public:
    using value_type = SomeId;
    using difference_type = std::ptrdiff_t;
    constexpr Iterator() = default;
    constexpr explicit Iterator(SomeId id) : id_(id) {}
    constexpr SomeId operator*() const { return id_; }
    constexpr Iterator& operator++() {
      ++id_;
      return *this;
    }
    constexpr Iterator operator++(int) {
      const Iterator before = *this;
      ++*this;
      return before;
    }
    friend constexpr bool operator==(Iterator, Iterator) = default;

   private:
    SomeId id_;
  };

  constexpr IdRange(SomeId first, SomeId last) : first_(first), last_(last) {}
  constexpr Iterator begin() const { return Iterator(first_); }
  constexpr Iterator end() const { return Iterator(last_); }
  constexpr operator std::vector<SomeId>() const { return {begin(), end()}; }

 private:
  SomeId first_;
  SomeId last_;
};
// All of `count`.
template <typename SomeId>
constexpr IdRange<SomeId> idsBelow(size_t count) {
  return {SomeId(0), SomeId(count)};
}

// Those at the given positions, {0, 2} say, and the positions of given ones.
template <typename SomeId, typename Positions = std::initializer_list<int>>
constexpr std::vector<SomeId> idsAt(const Positions& positions) {
  std::vector<SomeId> ids;
  for (const auto position : positions) ids.push_back(SomeId(position));
  return ids;
}
template <typename Tag>
constexpr std::vector<size_t> positionsOf(const std::vector<Id<Tag>>& ids) {
  std::vector<size_t> positions;
  for (const Id<Tag> id : ids) positions.push_back(id.index());
  return positions;
}

// A vector whose elements have ids: found by them alone.
template <typename SomeId, typename T>
class IdVector : public std::vector<T> {
 public:
  using std::vector<T>::vector;
  typename std::vector<T>::reference operator[](SomeId id) { return std::vector<T>::operator[](id.index()); }
  typename std::vector<T>::const_reference operator[](SomeId id) const {
    return std::vector<T>::operator[](id.index());
  }
  typename std::vector<T>::reference at(SomeId id) { return std::vector<T>::at(id.index()); }
  typename std::vector<T>::const_reference at(SomeId id) const { return std::vector<T>::at(id.index()); }
  IdRange<SomeId> ids() const { return idsBelow<SomeId>(this->size()); }
  bool has(SomeId id) const { return id < nextId(); }  // not the invalid id
  // Of the element that push_back would add.
  SomeId nextId() const { return SomeId(this->size()); }
};

}  // namespace pipeshard

template <typename Tag>
struct std::hash<pipeshard::Id<Tag>> {
  size_t operator()(pipeshard::Id<Tag> id) const { return id.valid() ? id.index() : ~size_t{0}; }
};
