#include "runtime/execute/occupied_memory.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

// Adds to a set of ranges that are ascending and do not touch.
void addRange(std::vector<AddressRange>& set, AddressRange added) {
  const auto first = std::lower_bound(set.begin(), set.end(), added.begin,
                                      [](const AddressRange& r, int64_t begin) { return r.end < begin; });
  auto last = first;
  for (; last != set.end() && last->begin <= added.end; ++last) {
    added.begin = std::min(added.begin, last->begin);
    added.end = std::max(added.end, last->end);
  }
  if (first == last) {
    set.insert(first, added);
    return;
  }
  *first = added;
  set.erase(first + 1, last);
}

// Adds a set to another; `united` is memory for that.
void unite(std::vector<AddressRange>& set, const std::vector<AddressRange>& added,
           std::vector<AddressRange>& united) {
  united.clear();
  auto one = set.begin();
  auto other = added.begin();
  while (one != set.end() || other != added.end()) {
    const bool takes_one = other == added.end() || (one != set.end() && one->begin <= other->begin);
    const AddressRange next = takes_one ? *one++ : *other++;
    if (united.empty() || united.back().end < next.begin) {
      united.push_back(next);
    } else {
      united.back().end = std::max(united.back().end, next.end);
    }
  }
  std::swap(set, united);
}

}  // namespace

OccupiedMemory::OccupiedMemory(std::vector<int64_t> moments) : moments_(std::move(moments)) {
  nodes_.resize(2 * std::bit_ceil(std::max<size_t>(moments_.size(), 1)));
}

template <class Visit>
void OccupiedMemory::walk(int64_t begin, int64_t end, const Visit& visit) {
  const auto leafOf = [&](int64_t moment) {
    return static_cast<size_t>(std::lower_bound(moments_.begin(), moments_.end(), moment) - moments_.begin());
  };
  const size_t from = leafOf(begin);
  const size_t to = leafOf(end);
  PIPESHARD_CHECK(from < to && to < moments_.size(), "no time from {} to {}", begin, end);
  descend(0, {0, nodes_.size() / 2}, {from, to}, visit);
}

template <class Visit>
void OccupiedMemory::descend(size_t node, Leaves under, Leaves asked, const Visit& visit) {
  const bool inside = asked.first <= under.first && under.last <= asked.last;
  visit(nodes_[node], inside);
  if (inside) return;
  const size_t middle = (under.first + under.last) / 2;
  if (asked.first < middle) descend(2 * node + 1, {under.first, middle}, asked, visit);
  if (asked.last > middle) descend(2 * node + 2, {middle, under.last}, asked, visit);
}

int64_t OccupiedMemory::bestFit(int64_t bytes, int64_t begin, int64_t end) {
  used_.clear();
  walk(begin, end, [&](const Node& node, bool inside) {
    const std::vector<AddressRange>& set = inside ? node.sometime : node.throughout;
    if (!set.empty()) unite(used_, set, united_);
  });
  int64_t top = 0;
  int64_t best = -1;
  int64_t best_gap = std::numeric_limits<int64_t>::max();
  for (const AddressRange& range : used_) {
    const int64_t gap = range.begin - top;
    if (gap >= bytes && gap < best_gap) {
      best_gap = gap;
      best = top;
    }
    top = range.end;
  }
  return best >= 0 ? best : top;
}

void OccupiedMemory::occupy(AddressRange addresses, int64_t begin, int64_t end) {
  walk(begin, end, [&](Node& node, bool inside) {
    addRange(node.sometime, addresses);
    if (inside) addRange(node.throughout, addresses);
  });
}

int64_t MemoryInOrder::place(int64_t bytes, int64_t begin, int64_t end) {
  for (; !ends_.empty() && ends_.top().first <= begin; ends_.pop()) release(ends_.top().second);
  int64_t address = used_.empty() ? 0 : used_.rbegin()->second;
  if (const auto gap = gaps_.lower_bound({bytes, 0}); gap != gaps_.end()) {
    const int64_t left = gap->first - bytes;
    address = gap->second;
    gaps_.erase(gap);
    if (left > 0) gaps_.emplace(left, address + bytes);
  }
  used_.emplace(address, address + bytes);
  ends_.emplace(end, address);
  return address;
}

// The gaps on both sides become one; none above what is in use.
void MemoryInOrder::release(int64_t address) {
  const auto range = used_.find(address);
  const int64_t below = range == used_.begin() ? 0 : std::prev(range)->second;
  const auto next = std::next(range);
  if (address > below) gaps_.erase({address - below, below});
  if (next != used_.end()) {
    if (next->first > range->second) gaps_.erase({next->first - range->second, range->second});
    gaps_.emplace(next->first - below, below);
  }
  used_.erase(range);
}

}  // namespace pipeshard
