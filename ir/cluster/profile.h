// Profile: what one device was measured to take: `pipeshard profile` writes it, planning and simulation read
// it. A readable, versioned JSON file, keyed by the device that was measured. docs/profile.md is for its
// users.
//
// Rates of classes (ir/cluster/cluster.h) are coarse: a matrix product of few rows, a softmax and a copy of
// the same size differ by more than a plan's alternatives do. So a profile also has *points*: an operator at
// one size took so long. Operators and attributes are opaque text here and in the planner; sizes are what the
// factor rule gives (sharding/spmd/operator_work.h).
//
// Between points, time is interpolated (operatorTime):
//   * a point with the same operator, attributes, sizes, FLOPs and bytes: its time;
//   * else, from the operator's four nearest points: exp2 of the weighted mean of
//     log2(time of the point * amount / amount of the point), weights 1/d^2.
// d^2 is the sum of squared differences of log2 of the sizes, FLOPs and bytes (those of 0 count as 1), plus 4
// when the attributes differ. The amount is FLOPs when the point does more than four per byte, else bytes.
// An operator (in this type) without points has no time: the caller takes the class's rate. (Inverse distance
// weighting: Shepard 1968.)
//
//   Gelu, points of 1000 bytes -> 100 ns and 4000 bytes -> 1600 ns, else equal. 2000 bytes are as far from
//   the one as from the other; the first says 200 ns, the second 800 ns; the answer is 400 ns.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/base/data_type.h"
#include "ir/cluster/cluster.h"

namespace pipeshard {

inline constexpr int kProfileVersion = 1;

// How large a node is: products of the sizes of its factors, each counted once.
enum class SizeOf : uint8_t {
  kShared,   // parallel, in every input that is no scalar, and in an output: batches, elements
  kRows,     // parallel, not in the second input: i of a product
  kColumns,  // parallel, not in the first input: j
  kSummed,   // summed, averaged, or reduced over: k
  kWhole,    // must be whole: the axis of a softmax
};
inline constexpr size_t kSizeCount = 5;

struct OperatorWork {
  std::string op = {};                 // "MatMul", "pipeshard::SoftmaxGrad"
  std::string attributes = {};         // "perm=[0,2,1]"
  DataType type = DataType::kFloat32;  // of the first output
  std::array<int64_t, kSizeCount> sizes = {1, 1, 1, 1, 1};
  int64_t flops = 0;
  int64_t bytes = 0;  // read and written
  friend auto operator<=>(const OperatorWork&, const OperatorWork&) = default;
};

struct ProfilePoint {
  OperatorWork work;
  int64_t ns = 0;       // with the other devices of the node idle
  int64_t busy_ns = 0;  // with all of them at the same work: they share caches and memory. 0: not measured
  friend bool operator==(const ProfilePoint&, const ProfilePoint&) = default;
};

// What was measured, and is looked for when a profile is used.
struct ProfiledDevice {
  std::string processor;     // "AMD EPYC, family 26 model 2"
  std::string instructions;  // the widest set that kernels use: "avx512"
  int processors = 1;        // of the machine
  int threads = 1;           // of one worker
  friend bool operator==(const ProfiledDevice&, const ProfiledDevice&) = default;
};

struct CollectiveCurve {
  std::string kind;  // "AllReduce"
  int devices = 2;
  CostCurve ns;  // by bytes: B of sharding/specs/cost_model.h
  friend bool operator==(const CollectiveCurve&, const CollectiveCurve&) = default;
};

struct Profile {
  ProfiledDevice device;
  CostCurve memory;                          // ns by bytes read and written, as DeviceKind::memory
  std::vector<WorkRate> rates;               // fallback for operators without points
  CostCurve inside;                          // of one message between two workers of a node: ns by bytes
  CostCurve between;                         // between nodes; empty: not measured
  std::vector<CollectiveCurve> collectives;  // inside a node
  std::vector<ProfilePoint> points;          // sorted by work
};

// Deterministic: the same profile gives the same bytes. Points are sorted.
std::string profileToJson(const Profile& profile);
// `what` (the file's name) starts every message. Error(kConfiguration) naming the field, what was found and
// what is allowed; Error(kVersionMismatch).
Profile profileFromJson(std::string_view text, std::string_view what);
// 16 hex digits of what profileToJson gives: what a plan says about the profile that it was made with.
std::string profileDigest(const Profile& profile);
// "AMD EPYC, family 26 model 2, avx512, 2 processors, 1 thread per worker"
std::string printDevice(const ProfiledDevice& device);

// Adds points; one of equal work takes the place of the old one.
void mergePoints(Profile& profile, std::vector<ProfilePoint> points);

// Points made ready to be looked up. Immutable, any thread.
class OperatorTimes {
 public:
  explicit OperatorTimes(const Profile& profile);
  // Nanoseconds; nullopt when the operator has no points in this type. `busy`: with all devices of the node
  // at work, where that was measured.
  std::optional<int64_t> operatorTime(const OperatorWork& work, bool busy) const;
  // Of B bytes over so many devices of one node; nullopt where the kind was not measured. Measured for some
  // devices, scaled by what travels: (n-1)/n of B.
  std::optional<int64_t> collectiveTime(std::string_view kind, int64_t devices, int64_t bytes) const;
  // Of a copy that reads and writes so many bytes together.
  std::optional<int64_t> copyTime(int64_t bytes) const;
  bool empty() const { return groups_.empty(); }

 private:
  static constexpr size_t kFeatures = kSizeCount + 2;
  using Features = std::array<double, kFeatures>;
  struct Entry {
    ProfilePoint point;
    Features features;
  };
  struct Group {
    std::string op;
    DataType type;
    std::vector<Entry> entries;
  };
  static Features featuresOf(const OperatorWork& work);
  const Group* find(const OperatorWork& work) const;

  std::vector<Group> groups_;  // sorted
  std::vector<CollectiveCurve> collectives_;
  CostCurve memory_;
};

}  // namespace pipeshard
