#include "tests/partition/search/random_stage_costs.h"

#include "partition/search/stage_assignment.h"

namespace pipeshard {
namespace {

int64_t drawn(std::mt19937& random, int64_t most) { return random() % static_cast<unsigned>(most + 1); }

}  // namespace

RandomStageCosts::RandomStageCosts(const Cluster& cluster, const RandomCostsShape& shape, unsigned seed)
    : cluster_(cluster), shape_(shape) {
  std::mt19937 random(seed);
  std::map<std::vector<int>, int> numbers;
  for (int device = 0; device < cluster.deviceCount(); ++device) {
    for (const Submesh& submesh : submeshesAt(cluster, device)) {
      const int kind = cluster.nodes[cluster.nodeOf(device)].kind;
      std::vector<int> key{submesh.nodes, submesh.devices_per_node, kind};
      for (int node = 0; node < submesh.nodes; ++node) {
        key.push_back(cluster.nodes[cluster.nodeOf(device) + node].kind);
      }
      if (shape.own_classes) key.push_back(device);
      classes_[submesh] = numbers.try_emplace(key, static_cast<int>(numbers.size())).first->second;
    }
  }
  std::map<int, int> devices_of;
  for (const auto& [submesh, number] : classes_) devices_of[number] = submesh.deviceCount();
  for (const auto& [number, devices] : devices_of) {
    for (int first = 0; first < shape.layers; ++first) {
      for (int last = first; last < shape.layers; ++last) {
        std::vector<StageOption>& options = options_[{first, last, number}];
        const int64_t count = random() % 6 == 0 ? 0 : 1 + drawn(random, shape.most_options - 1);
        for (int64_t i = 0; i < count; ++i) {
          options.push_back({.config = static_cast<int>(i),
                             .boundary = static_cast<int>(drawn(random, shape.boundaries - 1)),
                             .pass_ns = drawn(random, shape.most_ns * (last - first + 1) / devices),
                             .step_ns = drawn(random, shape.most_ns),
                             .fixed_bytes = drawn(random, 10),
                             .activation_bytes = drawn(random, 4),
                             .transient_bytes = drawn(random, 3)});
        }
      }
    }
  }
  for (const auto& [from, unused] : devices_of) {
    for (const auto& [to, also_unused] : devices_of) {
      for (int layer = 0; layer + 1 < shape.layers; ++layer) {
        for (int i = 0; i < shape.boundaries * shape.boundaries * 2; ++i) {
          transfers_[{layer, from, to, i / 2 / shape.boundaries, i / 2 % shape.boundaries, i % 2}] =
              drawn(random, shape.most_ns / 3);
        }
      }
    }
  }
}

const std::vector<StageOption>& RandomStageCosts::options(int first_layer, int last_layer,
                                                          const Submesh& submesh) const {
  return options_.at({first_layer, last_layer, classes_.at(submesh)});
}

int64_t RandomStageCosts::transfer(int layer, const Submesh& from, int from_boundary, const Submesh& to,
                                   int to_boundary) const {
  const bool same =
      cluster_.nodeOf(from.first_device + from.deviceCount() - 1) == cluster_.nodeOf(to.first_device);
  return transfers_.at({layer, classes_.at(from), classes_.at(to), from_boundary, to_boundary, same ? 1 : 0});
}

int64_t RandomStageCosts::memoryBytes(const Submesh& submesh) const {
  if (shape_.memory == 0) return INT64_MAX;
  // nodes may differ
  return shape_.memory + cluster_.nodes[cluster_.nodeOf(submesh.first_device)].kind;
}

}  // namespace pipeshard
