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
  pending_.assign(1, {0, 0, std::bit_ceil(moments_.size())});
  while (!pending_.empty()) {
    const Span span = pending_.back();
    pending_.pop_back();
    if (span.last <= from || to <= span.first) continue;
    const bool inside = from <= span.first && span.last <= to;
    visit(nodes_[span.node], inside);
    if (inside) continue;
    const size_t middle = (span.first + span.last) / 2;
    pending_.push_back({2 * span.node + 1, span.first, middle});
    pending_.push_back({2 * span.node + 2, middle, span.last});
  }
}

int64_t OccupiedMemory::bestFit(int64_t bytes, int64_t begin, int64_t end) {
  scratch_.clear();
  walk(begin, end, [&](const Node& node, bool inside) {
    const std::vector<AddressRange>& set = inside ? node.sometime : node.throughout;
    scratch_.insert(scratch_.end(), set.begin(), set.end());
  });
  std::sort(scratch_.begin(), scratch_.end(),
            [](const AddressRange& a, const AddressRange& b) { return a.begin < b.begin; });
  int64_t top = 0;
  int64_t best = -1;
  int64_t best_gap = std::numeric_limits<int64_t>::max();
  for (const AddressRange& range : scratch_) {
    const int64_t gap = range.begin - top;
    if (gap >= bytes && gap < best_gap) {
      best_gap = gap;
      best = top;
    }
    top = std::max(top, range.end);
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
