#include "runtime/execute/block_placement.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <tuple>

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

// Of many blocks the earliest-first order is good enough where it needs so little more than the bound: the
// other takes seconds for a million.
constexpr size_t kManyBlocks = 1 << 14;
constexpr int64_t kLittleOfMany = 256;  // a 256th

bool takesMemory(const LiveBlock& block) { return block.bytes > 0 && block.begin < block.end; }

bool takesMemory(const RepeatedBlock& block) {
  return block.bytes > 0 && block.times.begin < block.times.end && !block.times.starts.empty();
}

template <class Block>
std::vector<size_t> takingMemory(std::span<const Block> blocks) {
  std::vector<size_t> result;
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (takesMemory(blocks[b])) result.push_back(b);
  }
  return result;
}

// When blocks come and go; ascending, without duplicates.
std::vector<int64_t> momentsOf(std::span<const RepeatedBlock> blocks) {
  std::vector<int64_t> moments;
  for (const auto& [bytes, times] : blocks) {
    for (const int64_t start : times.starts) {
      moments.push_back(start + times.begin);
      moments.push_back(start + times.end);
    }
  }
  std::sort(moments.begin(), moments.end());
  moments.erase(std::unique(moments.begin(), moments.end()), moments.end());
  return moments;
}

// Gives blocks addresses in the given order, as `place` finds them for so many bytes of a block.
template <class Block, class Place>
Placement placeInOrder(std::span<const Block> blocks, const std::vector<size_t>& order, int64_t alignment,
                       const Place& place) {
  Placement placement;
  placement.offsets.assign(blocks.size(), 0);
  for (const size_t b : order) {
    const int64_t need = alignedBytes(blocks[b].bytes, alignment);
    placement.offsets[b] = place(need, blocks[b]);
    placement.total_bytes = std::max(placement.total_bytes, placement.offsets[b] + need);
  }
  return placement;
}

// Again and again, each time with those blocks first that lay above the bound the last time.
Placement placeInRounds(std::span<const RepeatedBlock> blocks, std::vector<size_t> order, int64_t bound,
                        int rounds, int64_t alignment) {
  const std::vector<int64_t> moments = momentsOf(blocks);
  const auto place = [&]() {
    OccupiedMemory occupied(moments);
    return placeInOrder(blocks, order, alignment, [&](int64_t need, const RepeatedBlock& block) {
      const int64_t offset = occupied.firstFit(need, block.times);
      occupied.occupy({offset, offset + need}, block.times);
      return offset;
    });
  };
  Placement best = place();
  Placement last = best;
  for (int round = 0; round < rounds && best.total_bytes > bound; ++round) {
    std::stable_partition(order.begin(), order.end(),
                          [&](size_t b) { return last.offsets[b] + blocks[b].bytes > bound; });
    last = place();
    if (last.total_bytes < best.total_bytes) best = last;
  }
  return best;
}

}  // namespace

OccupiedMemory::OccupiedMemory(std::vector<int64_t> moments) : moments_(std::move(moments)) {
  nodes_.resize(2 * std::bit_ceil(std::max<size_t>(moments_.size(), 1)));
}

template <class Visit>
void OccupiedMemory::walk(const Times& times, const Visit& visit) {
  const auto leafOf = [&](int64_t moment) {
    return static_cast<size_t>(std::lower_bound(moments_.begin(), moments_.end(), moment) - moments_.begin());
  };
  for (const int64_t start : times.starts) {
    const size_t from = leafOf(start + times.begin);
    const size_t to = leafOf(start + times.end);
    PIPESHARD_CHECK(from < to && to < moments_.size(), "no time from {} to {}", start + times.begin,
                    start + times.end);
    descend(0, {0, nodes_.size() / 2}, {from, to}, visit);
  }
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

int64_t OccupiedMemory::firstFit(int64_t bytes, const Times& times) {
  used_.clear();
  walk(times, [&](const Node& node, bool inside) {
    const std::vector<AddressRange>& set = inside ? node.sometime : node.throughout;
    if (!set.empty()) unite(used_, set, united_);
  });
  int64_t top = 0;
  for (const AddressRange& range : used_) {
    if (range.begin - top >= bytes) break;
    top = range.end;
  }
  return top;
}

void OccupiedMemory::occupy(AddressRange addresses, const Times& times) {
  walk(times, [&](Node& node, bool inside) {
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

Placement placeEarliestFirst(std::span<const LiveBlock> blocks, int64_t alignment) {
  std::vector<size_t> order = takingMemory(blocks);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto key = [&](size_t i) {
      return std::tuple(blocks[i].begin, -blocks[i].bytes, -blocks[i].end, i);
    };
    return key(a) < key(b);
  });
  MemoryInOrder memory;
  return placeInOrder(blocks, order, alignment, [&](int64_t need, const LiveBlock& block) {
    return memory.place(need, block.begin, block.end);
  });
}

Placement placeFirstFit(std::span<const RepeatedBlock> blocks, int64_t bound, int rounds, int64_t alignment) {
  const auto ordered = [&](const auto& key) {
    std::vector<size_t> order = takingMemory(blocks);
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
    return order;
  };
  const auto begin = [&](size_t i) { return blocks[i].times.starts.front() + blocks[i].times.begin; };
  const auto length = [&](size_t i) {
    const Times& times = blocks[i].times;
    return (times.end - times.begin) * std::ssize(times.starts);
  };
  const auto bySize = [&](size_t i) { return std::tuple(-blocks[i].bytes, -length(i), begin(i), i); };
  const auto byBegin = [&](size_t i) { return std::tuple(begin(i), bySize(i)); };
  const auto byLength = [&](size_t i) { return std::tuple(-length(i), bySize(i)); };
  Placement best = placeInRounds(blocks, ordered(bySize), bound, rounds, alignment);
  const auto improve = [&](const std::vector<size_t>& order) {
    if (rounds == 0 || best.total_bytes <= bound) return;
    Placement other = placeInRounds(blocks, order, bound, rounds, alignment);
    if (other.total_bytes < best.total_bytes) best = std::move(other);
  };
  improve(ordered(byBegin));
  improve(ordered(byLength));
  return best;
}

Placement placeBlocks(std::span<const LiveBlock> blocks, int64_t alignment) {
  Placement earliest_first = placeEarliestFirst(blocks, alignment);
  const int64_t bound = liveLowerBound(blocks, alignment);
  const int64_t more = blocks.size() < kManyBlocks ? 0 : bound / kLittleOfMany;
  if (earliest_first.total_bytes <= bound + more) return earliest_first;
  std::vector<RepeatedBlock> once;
  for (const LiveBlock& block : blocks) once.push_back({block.bytes, {block.begin, block.end}});
  Placement largest_first = placeFirstFit(once, bound, 0, alignment);
  return earliest_first.total_bytes < largest_first.total_bytes ? earliest_first : largest_first;
}

void verifyPlacement(std::span<const LiveBlock> blocks, const Placement& placement, int64_t alignment) {
  PIPESHARD_CHECK(placement.offsets.size() == blocks.size(), "{} offsets for {} blocks",
                  placement.offsets.size(), blocks.size());
  // Sweep over time with the live blocks kept by offset: a block overlaps a live one only if it overlaps a
  // neighbour.
  std::vector<size_t> begins;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const int64_t offset = placement.offsets[b];
    PIPESHARD_CHECK(offset >= 0 && offset % alignment == 0, "block {} is at offset {}", b, offset);
    PIPESHARD_CHECK(offset + blocks[b].bytes <= placement.total_bytes, "block {} ends beyond the total", b);
    if (takesMemory(blocks[b])) begins.push_back(b);
  }
  std::vector<size_t> ends = begins;
  std::stable_sort(begins.begin(), begins.end(),
                   [&](size_t a, size_t b) { return blocks[a].begin < blocks[b].begin; });
  std::stable_sort(ends.begin(), ends.end(),
                   [&](size_t a, size_t b) { return blocks[a].end < blocks[b].end; });
  std::map<int64_t, size_t> live;
  size_t next_end = 0;
  for (const size_t b : begins) {
    while (next_end < ends.size() && blocks[ends[next_end]].end <= blocks[b].begin)
      live.erase(placement.offsets[ends[next_end++]]);
    const int64_t offset = placement.offsets[b];
    const auto [entry, inserted] = live.emplace(offset, b);
    PIPESHARD_CHECK(inserted, "blocks {} and {} are live together at offset {}", b, entry->second, offset);
    const auto after = std::next(entry);
    PIPESHARD_CHECK(after == live.end() || offset + blocks[b].bytes <= after->first,
                    "blocks {} and {} overlap", b, after->second);
    if (entry == live.begin()) continue;
    const auto before = std::prev(entry);
    PIPESHARD_CHECK(before->first + blocks[before->second].bytes <= offset, "blocks {} and {} overlap",
                    before->second, b);
  }
}

// Only begins can be maxima.
int64_t liveLowerBound(std::span<const LiveBlock> blocks, int64_t alignment) {
  std::map<int64_t, int64_t> change;
  for (const LiveBlock& block : blocks) {
    if (!takesMemory(block)) continue;
    change[block.begin] += alignedBytes(block.bytes, alignment);
    change[block.end] -= alignedBytes(block.bytes, alignment);
  }
  int64_t live = 0;
  int64_t peak = 0;
  for (const auto& [time, delta] : change) {
    live += delta;
    peak = std::max(peak, live);
  }
  return peak;
}

}  // namespace pipeshard
