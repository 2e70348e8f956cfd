// How a tensor lies on the devices of a stage.
//
// The devices form a logical mesh of any rank, row-major: device 5 of mesh [2,4] has the coordinates (1,1).
// Which device of the cluster that is, the stage's list of devices says (ir/plan/plan.h). A sharding spec
// says for each axis of a tensor which mesh axes cut it, major to minor, and over which mesh axes the tensor
// is a *partial sum*: every device holds a summand of its shard. A mesh axis stands at most once in a spec;
// devices along a mesh axis that does not stand in it hold the same.
//
//   x[8,6] on mesh [2,2]:
//     "S0,R"     devices 0 and 1 hold rows 0..3, devices 2 and 3 hold rows 4..7
//     "R,S01"    devices 0 to 3 hold columns [0,1) [1,3) [3,4) [4,6)   (shares of shares, see shardOf)
//     "R,S1;P0"  devices 0 and 2 hold summands of columns [0,3), devices 1 and 3 of columns [3,6)
//   a scalar: "-" or "-;P0"
//
// Uneven sizes are allowed, and nothing is padded: every device has programs of its own, with its own shapes.
// An axis has at least one element on every device.
//
// Where devices share the rows of a microbatch, the mesh says how many there are. An axis that holds a
// multiple of them (rows x tokens, merged by a Reshape) is then cut between rows, so that a Reshape keeps the
// cut:
//   "S0" on mesh [3] of 4 rows: an axis of 4 is cut at 0, 1, 2, and one of 4x16 at 0, 16, 32, not 0, 21, 42
// What lies otherwise too (weights, heads) may have an axis that is a multiple of the rows by chance: the
// mesh lists the sizes of such axes, which are cut anywhere, whatever the rows.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/base/ids.h"
#include "ir/base/shape.h"

namespace pipeshard {

struct LogicalMesh {
  std::vector<int> shape;  // devices along each mesh axis
  int64_t rows = 0;        // of the microbatch, between which axes are cut; 0: axes are cut anywhere
  std::vector<int64_t> rowless = {};  // sizes of axes that are cut anywhere all the same

  int rank() const { return shape.size(); }
  int axisSize(int mesh_axis) const { return shape[mesh_axis]; }
  int deviceCount() const;
  // The smallest piece that an axis of this size is cut into: one entry, or the entries of one row.
  int64_t unit(int64_t axis_size) const;
  IdRange<DeviceId> devices() const { return idsBelow<DeviceId>(deviceCount()); }
  int coordinate(DeviceId device, int mesh_axis) const;
  // The devices that differ from this one along `mesh_axis` only, itself included, by coordinate.
  std::vector<DeviceId> lineOf(DeviceId device, int mesh_axis) const;
  friend bool operator==(const LogicalMesh&, const LogicalMesh&) = default;
};
// "2x4". parse throws Error(kUsage) that shows the accepted forms.
std::string printMesh(const LogicalMesh& mesh);
LogicalMesh parseMesh(std::string_view text);

struct ShardingSpec {
  std::vector<std::vector<int>> axes;  // by tensor axis: mesh axes, major to minor; empty: whole
  std::vector<int> partial;            // mesh axes, ascending

  bool isReplicated() const;  // neither cut nor partial
  bool uses(int mesh_axis) const;
  friend auto operator<=>(const ShardingSpec&, const ShardingSpec&) = default;
};
ShardingSpec replicated(size_t rank);

// "S0,R;P1". parse throws Error(kConfiguration) that says what was found and what is allowed.
std::string printSpec(const ShardingSpec& spec);
ShardingSpec parseSpec(std::string_view text);

// Why a tensor of this shape cannot lie so on this mesh ("axis 1 has 3 elements for 4 devices", "mesh axis 2
// of a mesh of 2 axes", "mesh axis 0 is used twice"); "" if it can.
std::string specFault(const ShardingSpec& spec, const Shape& shape, const LogicalMesh& mesh);

// The part of a tensor that one device holds: by tensor axis [start, start + size).
struct Shard {
  Shape start;
  Shape size;
  friend bool operator==(const Shard&, const Shard&) = default;
};
// Along an axis cut by mesh axes a (major) and b: share of a share; share i of n units in k is [i n / k,
// (i+1) n / k). A unit is one element, or the elements of a row.
Shard shardOf(const ShardingSpec& spec, const Shape& shape, const LogicalMesh& mesh, DeviceId device);
// Where the parts of an axis of so many entries begin, ascending, as shardOf cuts it.
//   6 entries over mesh axes 0 and 1 of 2x2: 0, 1, 3, 4
std::vector<int64_t> partStarts(const ShardingSpec& spec, size_t axis, int64_t size, const LogicalMesh& mesh);
// Elements of the largest shard.
int64_t largestShard(const ShardingSpec& spec, const Shape& shape, const LogicalMesh& mesh);

}  // namespace pipeshard
