// What stages of layers cost on submeshes of a cluster, in numbers alone, as a search of stages asks for it.
// A submesh is a part of one node (any number of its devices, next to each other), or whole nodes next to
// each other. Letters are those of the objective in partition/search/stage_assignment.h.
#pragma once

#include <cstdint>
#include <vector>

namespace pipeshard {

struct Submesh {
  int first_device = 0;
  int nodes = 1;
  int devices_per_node = 1;  // of each; nodes > 1: all that each has, and they have equally many
  int deviceCount() const { return nodes * devices_per_node; }
  friend auto operator<=>(const Submesh&, const Submesh&) = default;
};

struct StageOption {
  int config = 0;       // the caller's
  int boundary = 0;     // 0..kMostBoundaries-1: what transfer() depends on
  int64_t pass_ns = 0;  // t
  int64_t step_ns = 0;  // u
  int64_t fixed_bytes = 0;
  int64_t activation_bytes = 0;  // per microbatch in flight
  int64_t transient_bytes = 0;
};
inline constexpr int kMostBoundaries = 16;
inline constexpr int64_t kNever = INT64_MAX / 4;  // of a time: it cannot be; sums of two stay numbers

// What stages cost. Const members may be called by several threads.
class StageCosts {
 public:
  virtual ~StageCosts() = default;
  virtual int layers() const = 0;
  // Submeshes of equal class have equal options and memory; transfers depend on the two classes and on
  // whether the second submesh begins on the node on which the first ends.
  virtual int submeshClass(const Submesh& submesh) const = 0;
  // Of layers first..last, inclusive. Empty: it cannot be. The reference stays valid.
  virtual const std::vector<StageOption>& options(int first_layer, int last_layer,
                                                  const Submesh& submesh) const = 0;
  // Nanoseconds per microbatch, forward and backward together, that what crosses the cut behind `layer`
  // takes. kNever: a boundary cannot be there, so no stage that ends there has it.
  virtual int64_t transfer(int layer, const Submesh& from, int from_boundary, const Submesh& to,
                           int to_boundary) const = 0;
  // of its smallest device; INT64_MAX: no limit
  virtual int64_t memoryBytes(const Submesh& submesh) const = 0;
};

// Costs like others, which are kept by reference, but for what a class overrides.
class OtherStageCosts : public StageCosts {
 public:
  explicit OtherStageCosts(const StageCosts& costs) : costs_(costs) {}
  int layers() const override { return costs_.layers(); }
  int submeshClass(const Submesh& submesh) const override { return costs_.submeshClass(submesh); }
  const std::vector<StageOption>& options(int first_layer, int last_layer,
                                          const Submesh& submesh) const override {
    return costs_.options(first_layer, last_layer, submesh);
  }
  int64_t transfer(int layer, const Submesh& from, int from_boundary, const Submesh& to,
                   int to_boundary) const override {
    return costs_.transfer(layer, from, from_boundary, to, to_boundary);
  }
  int64_t memoryBytes(const Submesh& submesh) const override { return costs_.memoryBytes(submesh); }

 protected:
  const StageCosts& costs_;
};

}  // namespace pipeshard
