#include "sharding/specs/cross_mesh.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "ir/base/error.h"
#include "sharding/specs/spec_space.h"

namespace pipeshard {
namespace {

void requireResolved(const ShardingSpec& spec) {
  PIPESHARD_CHECK(spec.partial.empty(),
                  "{} is a partial sum: it is resolved before it is sent, and made after it is received",
                  printSpec(spec));
}

int64_t transferTime(const LinkCost& link, int64_t bytes) {
  if (!link.measured.points.empty()) return linkTime(link, static_cast<double>(bytes));
  return link.latency_ns + static_cast<int64_t>(std::ceil(static_cast<double>(bytes) / link.bytes_per_ns));
}

using Shards = IdVector<DeviceId, Shard>;

Shards shardsOf(const ShardingSpec& spec, const Shape& shape, const LogicalMesh& mesh) {
  Shards shards;
  for (const DeviceId device : mesh.devices()) shards.push_back(shardOf(spec, shape, mesh, device));
  return shards;
}

// Along one axis: [start, start + size).
struct Interval {
  int64_t start = 0;
  int64_t size = 0;
};

// The senders' shards as cells of a grid over the tensor, each with the devices that hold it.
class SenderGrid {
 public:
  SenderGrid(const Shards& shards, size_t rank) : starts_(rank) {
    for (size_t axis = 0; axis < rank; ++axis) {
      std::vector<int64_t>& starts = starts_[axis];
      for (const Shard& shard : shards) starts.push_back(shard.start[axis]);
      std::sort(starts.begin(), starts.end());
      starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
      cells_ *= starts.size();
    }
    holders_.resize(cells_);
    for (const DeviceId device : shards.ids()) holders_[cellAt(shards[device].start)].push_back(device);
  }

  const std::vector<DeviceId>& holdersOf(const Shape& position) const { return holders_[cellAt(position)]; }

  // What the cells leave of a receiver's shard along an axis. An axis of size 0 is one empty interval.
  std::vector<Interval> cut(size_t axis, int64_t start, int64_t size) const {
    std::vector<Interval> parts;
    const std::vector<int64_t>& starts = starts_[axis];
    for (int64_t at = start; parts.empty() || at < start + size;) {
      const auto next = std::upper_bound(starts.begin(), starts.end(), at);
      const int64_t end = next == starts.end() ? start + size : std::min(*next, start + size);
      parts.push_back({at, end - at});
      at = end;
    }
    return parts;
  }

 private:
  size_t cellAt(const Shape& position) const {
    size_t cell = 0;
    for (size_t axis = 0; axis < starts_.size(); ++axis) {
      const std::vector<int64_t>& starts = starts_[axis];
      const auto next = std::upper_bound(starts.begin(), starts.end(), position[axis]);
      cell = cell * starts.size() + (next - starts.begin()) - 1;
    }
    return cell;
  }

  std::vector<std::vector<int64_t>> starts_;  // by axis
  size_t cells_ = 1;
  std::vector<std::vector<DeviceId>> holders_;
};

// Adds the pieces of one receiver, not yet given to senders.
void addPieces(CrossMeshTransfer& transfer, const SenderGrid& grid, const Shard& shard, DeviceId receiver) {
  const size_t rank = shard.start.size();
  CrossMeshAssembly assembly;
  std::vector<std::vector<Interval>> parts;
  size_t cells = 1;
  for (size_t axis = 0; axis < rank; ++axis) {
    parts.push_back(grid.cut(axis, shard.start[axis], shard.size[axis]));
    assembly.sizes.emplace_back();
    for (const Interval& part : parts.back()) assembly.sizes.back().push_back(part.size);
    cells *= parts.back().size();
  }
  for (size_t cell = 0; cell < cells; ++cell) {
    Shard box{Shape(rank), Shape(rank)};
    size_t rest = cell;
    for (size_t axis = rank; axis-- > 0;) {
      const Interval& part = parts[axis][rest % parts[axis].size()];
      rest /= parts[axis].size();
      box.start[axis] = part.start;
      box.size[axis] = part.size;
    }
    assembly.pieces.push_back(transfer.pieces.size());
    transfer.pieces.push_back({DeviceId(), receiver, std::move(box)});
  }
  transfer.assemblies.push_back(std::move(assembly));
}

// The longest pieces first, each to the device that has least to send: the receiver's counterpart, if it is
// one of them, else the first.
void chooseSenders(CrossMeshTransfer& transfer, const SenderGrid& grid, const std::vector<int64_t>& times,
                   IdVector<DeviceId, int64_t>& load) {
  std::vector<size_t> order(transfer.pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return times[a] > times[b]; });
  for (size_t p : order) {
    CrossMeshPiece& piece = transfer.pieces[p];
    const std::vector<DeviceId>& holders = grid.holdersOf(piece.box.start);
    piece.sender = *std::min_element(holders.begin(), holders.end(), [&](DeviceId a, DeviceId b) {
      return load[a] != load[b] ? load[a] < load[b] : a == piece.receiver && b != piece.receiver;
    });
    load[piece.sender] += times[p];
  }
}

// Into how many equal parts each axis is cut; empty: into unequal ones.
std::vector<int64_t> equalParts(const ShardingSpec& spec, const Shape& shape, const LogicalMesh& mesh) {
  std::vector<int64_t> parts(shape.size(), 1);
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    for (int mesh_axis : spec.axes[axis]) parts[axis] *= mesh.axisSize(mesh_axis);
    if (shape[axis] == 0 || shape[axis] / mesh.unit(shape[axis]) % parts[axis] != 0) return {};
  }
  return parts;
}

// No transfer of so many bytes in all, in any number of pieces, takes less.
int64_t leastTime(const LinkCost& link, int64_t bytes) {
  const auto amount = static_cast<double>(bytes);
  if (link.measured.points.empty()) return link.latency_ns + static_cast<int64_t>(amount / link.bytes_per_ns);
  double least = std::numeric_limits<double>::max();  // ns of a byte
  const std::vector<CostPoint>& points = link.measured.points;
  for (size_t p = 0; p < points.size(); ++p) {
    if (points[p].amount > 0)
      least = std::min(least, static_cast<double>(points[p].ns) / static_cast<double>(points[p].amount));
    if (p > 0)
      least = std::min(least, static_cast<double>(points[p].ns - points[p - 1].ns) /
                                  static_cast<double>(points[p].amount - points[p - 1].amount));
  }
  return static_cast<int64_t>(amount * (points.size() == 1 && points[0].amount == 0 ? 0 : least) * 0.999);
}

int64_t partsOf(const ShardingSpec& spec, const LogicalMesh& mesh) {
  int64_t parts = 1;
  for (const std::vector<int>& axis : spec.axes) {
    for (int mesh_axis : axis) parts *= mesh.axisSize(mesh_axis);
  }
  return parts;
}

// No transfer to this spec takes less: somebody receives the largest shard, and somebody sends his share of
// all.
int64_t leastTransfer(const CrossMeshEnd& from, const CrossMeshEnd& to,
                      const CrossMeshEnd::Candidate& received, const LinkCost& between) {
  const int64_t largest = largestShard(received.spec, to.shape, to.mesh) * byteCount(to.type, {});
  const int64_t total =
      byteCount(to.type, to.shape) * (to.mesh.deviceCount() / partsOf(received.spec, to.mesh));
  return std::max(leastTime(between, total / from.mesh.deviceCount()),
                  leastTime(receivingSide(between), largest));
}

// One axis of a transfer: where receivers' parts lie in the senders' parts.
struct AxisCuts {
  struct Segment {
    int64_t sender = 0;  // which of the senders' parts
    int64_t size = 0;
  };
  int64_t senders = 1;  // parts
  std::vector<Segment> segments;
  std::vector<size_t> begin;  // by receivers' part, and the end
};

AxisCuts cutsAlong(size_t axis, const CrossMeshEnd& from, const ShardingSpec& sent, const CrossMeshEnd& to,
                   const ShardingSpec& received) {
  const int64_t size = to.shape[axis];
  const std::vector<int64_t> senders = partStarts(sent, axis, size, from.mesh);
  const std::vector<int64_t> receivers = partStarts(received, axis, size, to.mesh);
  AxisCuts cuts;
  cuts.senders = std::ssize(senders);
  int64_t sender = 0;
  for (size_t receiver = 0; receiver < receivers.size(); ++receiver) {
    cuts.begin.push_back(cuts.segments.size());
    const int64_t end = receiver + 1 < receivers.size() ? receivers[receiver + 1] : size;
    for (int64_t at = receivers[receiver]; at < end || cuts.segments.size() == cuts.begin.back();) {
      while (sender + 1 < cuts.senders && senders[sender + 1] <= at) ++sender;
      const int64_t next = sender + 1 < cuts.senders ? std::min(senders[sender + 1], end) : end;
      cuts.segments.push_back({sender, next - at});
      at = next;
    }
  }
  cuts.begin.push_back(cuts.segments.size());
  return cuts;
}

// The longest first, each to whom has least: how long the busiest of the holders sends, when each piece is
// wanted so many times.
int64_t longestSending(std::vector<int64_t>& times, int64_t holders, int64_t wanted) {
  std::sort(times.begin(), times.end(), std::greater<>());
  const int64_t pieces = std::ssize(times) * wanted;
  if (times.front() == times.back()) return (pieces + holders - 1) / holders * times.front();
  if (holders == 1) return wanted * std::accumulate(times.begin(), times.end(), int64_t{0});
  std::vector<int64_t> loads(holders);  // a heap, the least first
  for (int64_t time : times) {
    for (int64_t copy = 0; copy < wanted; ++copy) {
      std::pop_heap(loads.begin(), loads.end(), std::greater<>());
      loads.back() += time;
      std::push_heap(loads.begin(), loads.end(), std::greater<>());
    }
  }
  return *std::max_element(loads.begin(), loads.end());
}

// planTransfer's cost without its pieces: shards are products of parts along the axes, and devices with the
// same part are alike.
class TransferCount {
 public:
  TransferCount(const CrossMeshEnd& from, const ShardingSpec& sent, const CrossMeshEnd& to,
                const ShardingSpec& received, const LinkCost& between)
      : between_(between), receiving_link_(receivingSide(between)), element_(byteCount(to.type, {})) {
    int64_t cells = 1;
    for (size_t axis = 0; axis < to.shape.size(); ++axis) {
      axes_.push_back(cutsAlong(axis, from, sent, to, received));
      cells *= axes_.back().senders;
    }
    holders_ = from.mesh.deviceCount() / cells;
    wanted_ = to.mesh.deviceCount() / partsOf(received, to.mesh);
    sending_.resize(cells);
  }

  int64_t cost() {
    addReceivers(0, std::vector<size_t>(axes_.size()));
    int64_t longest = longest_receiving_;
    for (std::vector<int64_t>& times : sending_) {
      if (!times.empty()) longest = std::max(longest, longestSending(times, holders_, wanted_));
    }
    return longest;
  }

 private:
  void addReceivers(size_t axis, std::vector<size_t> part) {
    if (axis < axes_.size()) {
      for (part[axis] = 0; part[axis] + 1 < axes_[axis].begin.size(); ++part[axis])
        addReceivers(axis + 1, part);
      return;
    }
    receiving_ = 0;
    addPieces(0, part, 0, element_);
    longest_receiving_ = std::max(longest_receiving_, receiving_);
  }

  void addPieces(size_t axis, const std::vector<size_t>& part, int64_t cell, int64_t bytes) {
    if (axis < axes_.size()) {
      const AxisCuts& cuts = axes_[axis];
      for (size_t segment = cuts.begin[part[axis]]; segment < cuts.begin[part[axis] + 1]; ++segment) {
        const AxisCuts::Segment& of = cuts.segments[segment];
        addPieces(axis + 1, part, cell * cuts.senders + of.sender, bytes * of.size);
      }
      return;
    }
    if (bytes != known_bytes_) {
      known_bytes_ = bytes;
      known_sending_ = transferTime(between_, bytes);
      known_receiving_ = transferTime(receiving_link_, bytes);
    }
    receiving_ += known_receiving_;
    sending_[cell].push_back(known_sending_);
  }

  const LinkCost& between_;
  const LinkCost receiving_link_;
  // devices with a part of the senders; with a part of the receivers
  int64_t element_ = 0, holders_ = 1, wanted_ = 1;
  std::vector<AxisCuts> axes_;
  std::vector<std::vector<int64_t>> sending_;  // by part of the senders: the times of its pieces
  int64_t receiving_ = 0, longest_receiving_ = 0;
  int64_t known_bytes_ = -1, known_sending_ = 0, known_receiving_ = 0;
};

// planTransfer's cost.
int64_t transferCost(const CrossMeshEnd& from, const CrossMeshEnd::Candidate& sent, const CrossMeshEnd& to,
                     const CrossMeshEnd::Candidate& received, const LinkCost& between) {
  bool equal = sent.parts.size() == to.shape.size() && received.parts.size() == to.shape.size();
  int64_t pieces = 1;  // of a receiver
  int64_t parts = 1;   // of the sender
  Shape box = to.shape;
  for (size_t axis = 0; axis < box.size() && equal; ++axis) {
    const int64_t a = sent.parts[axis], b = received.parts[axis];
    equal = a % b == 0 || b % a == 0;
    pieces *= std::max<int64_t>(1, a / b);
    parts *= a;
    box[axis] /= std::max(a, b);
  }
  if (!equal) return TransferCount(from, sent.spec, to, received.spec, between).cost();
  const int64_t bytes = byteCount(to.type, box);
  const int64_t of_part = pieces * to.mesh.deviceCount() / parts, holders = from.mesh.deviceCount() / parts;
  return std::max((of_part + holders - 1) / holders * transferTime(between, bytes),
                  pieces * transferTime(receivingSide(between), bytes));
}

struct Between {
  size_t sent = 0;
  size_t received = 0;
  int64_t cost_ns = std::numeric_limits<int64_t>::max();
};

// Every device of equal meshes has what its counterpart needs: it is cut as that, or less.
bool hasWhatIsNeeded(const ShardingSpec& sent, const ShardingSpec& received) {
  for (size_t axis = 0; axis < sent.axes.size(); ++axis) {
    const std::vector<int>&had = sent.axes[axis], &needed = received.axes[axis];
    if (had.size() > needed.size() || !std::equal(had.begin(), had.end(), needed.begin())) return false;
  }
  return true;
}

// The cheapest way in which every device sends to its counterpart, and to nobody else.
Between alignedBetween(const CrossMeshEnd& from, const CrossMeshEnd& to, const LinkCost& between) {
  Between best;
  if (from.mesh != to.mesh) return best;
  for (size_t r = 0; r < to.candidates.size(); ++r) {
    const CrossMeshEnd::Candidate& received = to.candidates[r];
    if (received.cost_ns >= best.cost_ns) break;
    const auto sent =
        std::find_if(from.candidates.begin(), from.candidates.end(),
                     [&](const auto& candidate) { return hasWhatIsNeeded(candidate.spec, received.spec); });
    if (sent == from.candidates.end() || sent->cost_ns + received.cost_ns >= best.cost_ns) continue;
    const int64_t cost_ns =
        sent->cost_ns + transferCost(from, *sent, to, received, between) + received.cost_ns;
    if (cost_ns < best.cost_ns) best = {static_cast<size_t>(sent - from.candidates.begin()), r, cost_ns};
  }
  return best;
}

Between cheapestBetween(const CrossMeshEnd& from, const CrossMeshEnd& to, const LinkCost& between) {
  Between best;
  for (size_t r = 0; r < to.candidates.size(); ++r) {
    const CrossMeshEnd::Candidate& received = to.candidates[r];
    if (received.cost_ns >= best.cost_ns) break;
    const int64_t least = received.cost_ns + leastTransfer(from, to, received, between);
    for (size_t s = 0; s < from.candidates.size(); ++s) {
      const CrossMeshEnd::Candidate& sent = from.candidates[s];
      if (sent.cost_ns + least >= best.cost_ns) break;
      const int64_t cost_ns =
          sent.cost_ns + transferCost(from, sent, to, received, between) + received.cost_ns;
      if (cost_ns < best.cost_ns) best = {s, r, cost_ns};
    }
  }
  const Between aligned = alignedBetween(from, to, between);
  return aligned.cost_ns <= best.cost_ns + best.cost_ns / kAlignedIsWorth ? aligned : best;
}

}  // namespace

CrossMeshTransfer planTransfer(const Shape& shape, DataType type, const LogicalMesh& from_mesh,
                               const ShardingSpec& from, const LogicalMesh& to_mesh, const ShardingSpec& to,
                               const LinkCost& between) {
  requireResolved(from);
  requireResolved(to);
  const SenderGrid grid(shardsOf(from, shape, from_mesh), shape.size());
  CrossMeshTransfer transfer;
  for (const DeviceId receiver : to_mesh.devices()) {
    addPieces(transfer, grid, shardOf(to, shape, to_mesh, receiver), receiver);
  }
  const LinkCost receiving_link = receivingSide(between);
  std::vector<int64_t> times;
  IdVector<DeviceId, int64_t> sending(from_mesh.deviceCount());
  IdVector<DeviceId, int64_t> receiving(to_mesh.deviceCount());
  for (const CrossMeshPiece& piece : transfer.pieces) {
    const int64_t bytes = byteCount(type, piece.box.size);
    transfer.bytes += bytes;
    times.push_back(transferTime(between, bytes));
    receiving[piece.receiver] += transferTime(receiving_link, bytes);
  }
  chooseSenders(transfer, grid, times, sending);
  transfer.cost_ns = std::max(*std::max_element(sending.begin(), sending.end()),
                              *std::max_element(receiving.begin(), receiving.end()));
  return transfer;
}

// Of equal cost, the side's own spec is first. Cuts along axes of one device say nothing new.
CrossMeshEnd crossMeshEnd(const Shape& shape, DataType type, const CrossMeshSide& side, bool is_sender) {
  std::vector<ShardingSpec> specs;
  if (side.spec.partial.empty()) specs.push_back(side.spec);
  const auto usesLoneDevice = [&](const ShardingSpec& spec) {
    for (int axis = 0; axis < side.mesh.rank(); ++axis) {
      if (side.mesh.axisSize(axis) == 1 && spec.uses(axis)) return true;
    }
    return false;
  };
  const auto space = SpecSpace::of(shape.size(), side.mesh.rank());
  for (const ShardingSpec& spec : space->specs()) {
    if (!spec.partial.empty() || spec == side.spec || usesLoneDevice(spec) ||
        !specFault(spec, shape, side.mesh).empty())
      continue;
    specs.push_back(spec);
  }
  const std::vector<ShardingSpec> own{side.spec};
  const std::vector<int64_t> costs =
      reshardingCosts(shape, type, is_sender ? own : specs, is_sender ? specs : own, side.mesh, side.model);
  CrossMeshEnd end{shape, type, side.mesh, {}};
  for (size_t i = 0; i < specs.size(); ++i)
    end.candidates.push_back({specs[i], costs[i], equalParts(specs[i], shape, side.mesh)});
  std::stable_sort(end.candidates.begin(), end.candidates.end(),
                   [](const CrossMeshEnd::Candidate& a, const CrossMeshEnd::Candidate& b) {
                     return a.cost_ns < b.cost_ns;
                   });
  return end;
}

int64_t crossMeshCost(const CrossMeshEnd& from, const CrossMeshEnd& to, const LinkCost& between) {
  return cheapestBetween(from, to, between).cost_ns;
}

CrossMeshPlan planCrossMesh(const Shape& shape, DataType type, const CrossMeshSide& from,
                            const CrossMeshSide& to, const LinkCost& between) {
  const CrossMeshEnd senders = crossMeshEnd(shape, type, from, true),
                     receivers = crossMeshEnd(shape, type, to, false);
  const Between best = cheapestBetween(senders, receivers, between);
  CrossMeshPlan plan;
  plan.sent = senders.candidates[best.sent].spec;
  plan.received = receivers.candidates[best.received].spec;
  plan.before = planResharding(shape, type, from.spec, plan.sent, from.mesh, from.model);
  plan.transfer = planTransfer(shape, type, from.mesh, plan.sent, to.mesh, plan.received, between);
  plan.after = planResharding(shape, type, plan.received, to.spec, to.mesh, to.model);
  plan.cost_ns = best.cost_ns;
  PIPESHARD_CHECK(plan.before.cost_ns + plan.transfer.cost_ns + plan.after.cost_ns == plan.cost_ns,
                  "the plan costs {} + {} + {}, not {}", plan.before.cost_ns, plan.transfer.cost_ns,
                  plan.after.cost_ns, plan.cost_ns);
  return plan;
}

std::vector<AxisRange> cutOut(const Shard& held, const Shard& box) {
  std::vector<AxisRange> ranges;
  for (int axis = 0; axis < std::ssize(box.start); ++axis) {
    const int64_t offset = box.start[axis] - held.start[axis];
    PIPESHARD_CHECK(offset >= 0 && offset + box.size[axis] <= held.size[axis],
                    "{} entries of axis {} from {} on are not within {} from {} on", box.size[axis], axis,
                    box.start[axis], held.size[axis], held.start[axis]);
    if (box.size[axis] != held.size[axis]) ranges.push_back({axis, offset, box.size[axis]});
  }
  return ranges;
}

std::vector<Concatenation> putTogether(const CrossMeshAssembly& assembly) {
  std::vector<Concatenation> steps;
  std::vector<int> operands(assembly.pieces.size());
  std::iota(operands.begin(), operands.end(), 0);
  // Axis by axis from the last: what is left is a grid over the axes before, each entry whole along the axes
  // behind.
  for (size_t axis = assembly.sizes.size(); axis-- > 0;) {
    const size_t along = assembly.sizes[axis].size();
    if (along == 1) continue;
    std::vector<int> results;
    for (size_t first = 0; first < operands.size(); first += along) {
      Concatenation step;
      step.axis = axis;
      step.operands.assign(operands.begin() + first, operands.begin() + first + along);
      size_t rest = first / along;
      step.shape.resize(assembly.sizes.size());
      for (size_t a = assembly.sizes.size(); a-- > 0;) {
        const std::vector<int64_t>& sizes = assembly.sizes[a];
        if (a >= axis) {
          step.shape[a] = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
        } else {
          step.shape[a] = sizes[rest % sizes.size()];
          rest /= sizes.size();
        }
      }
      results.push_back(assembly.pieces.size() + steps.size());
      steps.push_back(std::move(step));
    }
    operands = std::move(results);
  }
  return steps;
}

}  // namespace pipeshard
