#include "partition/search/assignment_tables.h"

#include <algorithm>
#include <map>

#include "ir/base/error.h"
#include "ir/base/parallel.h"

namespace pipeshard {
namespace {

bool interrupted(const AssignmentRequest& request) { return request.interrupted && request.interrupted(); }

std::array<Follow, 2> followOf(const AssignmentRequest& request, const Submesh& submesh) {
  std::array<Follow, 2> follow;
  const int end = submesh.first_device + submesh.deviceCount();
  const int node = request.cluster.nodeOf(end - 1);
  const int next_node = request.cluster.firstDeviceOf(node + 1);
  if (end < request.cluster.deviceCount()) follow[0] = {end, end < next_node};
  if (end < next_node && next_node < request.cluster.deviceCount() && !request.all_devices)
    follow[1] = {next_node, false};
  return follow;
}

// Those that begin where a plan can come to and, if all devices are to be used, from where it can go on to
// the end.
std::vector<Submesh> usefulMeshes(const AssignmentRequest& request) {
  const int devices = request.cluster.deviceCount();
  std::vector<char> reached(devices, 0);
  reached[0] = 1;
  std::vector<Submesh> all;
  for (int device = 0; device < devices; ++device) {
    if (!reached[device]) continue;
    for (const Submesh& submesh : submeshesAt(request.cluster, device)) {
      if (request.allowed && !request.allowed(submesh)) continue;
      all.push_back(submesh);
      for (const Follow& follow : followOf(request, submesh)) {
        if (follow.device >= 0) reached[follow.device] = 1;
      }
    }
  }
  if (!request.all_devices) return all;
  std::vector<char> finishes(static_cast<size_t>(devices) + 1, 0);
  finishes.back() = 1;
  for (auto submesh = all.rbegin(); submesh != all.rend(); ++submesh) {
    if (finishes[submesh->first_device + submesh->deviceCount()]) {
      finishes[submesh->first_device] = 1;
    }
  }
  std::erase_if(
      all, [&](const Submesh& submesh) { return !finishes[submesh.first_device + submesh.deviceCount()]; });
  return all;
}

// Meshes of one class stand next to each other (class_begin), the first of them asks for all of them: equal
// class means equal options, and transfers that depend on the two classes and on `same_node` alone.
void addMeshes(const AssignmentRequest& request, AssignmentTables& tables) {
  std::map<int, std::vector<Submesh>> by_class;
  for (const Submesh& submesh : usefulMeshes(request))
    by_class[request.costs.submeshClass(submesh)].push_back(submesh);
  tables.starting_at.resize(request.cluster.deviceCount());
  for (auto& [number, submeshes] : by_class) {
    tables.class_begin.push_back(tables.meshes.size());
    std::sort(submeshes.begin(), submeshes.end());
    for (const Submesh& submesh : submeshes) {
      tables.starting_at[submesh.first_device].push_back(tables.meshes.size());
      tables.meshes.push_back(submesh);
      tables.class_of.push_back(tables.classes);
      tables.follow.push_back(followOf(request, submesh));
      tables.may_end.push_back(!request.all_devices ||
                               submesh.first_device + submesh.deviceCount() == request.cluster.deviceCount());
    }
    ++tables.classes;
  }
  tables.class_begin.push_back(tables.meshes.size());
  const auto size = [&](int mesh) { return tables.meshes[mesh].deviceCount(); };
  for (std::vector<int>& starting : tables.starting_at) {
    std::sort(starting.begin(), starting.end(), [&](int a, int b) { return size(a) < size(b); });
  }
}

bool isBeaten(const StageOption& option, const StageOption& by) {
  return option.boundary == by.boundary && option.pass_ns >= by.pass_ns && option.step_ns >= by.step_ns &&
         option.fixed_bytes >= by.fixed_bytes && option.activation_bytes >= by.activation_bytes &&
         option.transient_bytes >= by.transient_bytes;
}

std::vector<TableOption> usefulOptions(const std::vector<StageOption>& options, int64_t memory,
                                       int64_t least_in_flight) {
  std::vector<TableOption> useful;
  for (const StageOption& option : options) {
    PIPESHARD_CHECK(option.boundary >= 0 && option.boundary < kMostBoundaries,
                    "boundary {} of a stage option", option.boundary);
    const int64_t most = mostInFlight(option, memory);
    if (most < least_in_flight || option.pass_ns >= kNever) continue;
    if (std::any_of(useful.begin(), useful.end(),
                    [&](const TableOption& other) { return isBeaten(option, other.option); }))
      continue;
    std::erase_if(useful, [&](const TableOption& other) { return isBeaten(other.option, option); });
    useful.push_back({option, most});
  }
  return useful;
}

void addOptions(const AssignmentRequest& request, AssignmentTables& tables) {
  const int layers = tables.layers;
  tables.options.resize(tables.classes * layers * layers);
  const int64_t least_in_flight = *std::min_element(tables.in_flight.begin(), tables.in_flight.end());
  parallelFor(request.threads, tables.classes * layers, [&](int32_t index) {
    const int mesh_class = index / layers;
    const int first = index % layers;
    const Submesh& submesh = tables.meshes[tables.class_begin[mesh_class]];
    for (int last = first; last < layers && !interrupted(request); ++last) {
      tables.options[index * layers + last] = usefulOptions(
          request.costs.options(first, last, submesh), request.costs.memoryBytes(submesh), least_in_flight);
    }
  });
  for (const std::vector<TableOption>& options : tables.options) {
    for (const TableOption& option : options)
      tables.boundaries = std::max(tables.boundaries, option.option.boundary + 1);
  }
}

// By class: which boundaries its options have. Transfers of others are not asked for.
std::vector<std::vector<bool>> boundariesOf(const AssignmentTables& tables) {
  std::vector<std::vector<bool>> found(tables.classes, std::vector<bool>(tables.boundaries));
  const size_t ranges = static_cast<size_t>(tables.layers) * static_cast<size_t>(tables.layers);
  for (size_t i = 0; i < tables.options.size(); ++i) {
    for (const TableOption& option : tables.options[i]) found[i / ranges][option.option.boundary] = true;
  }
  return found;
}

struct TransferPair {
  int from = 0;  // meshes that stand for their classes
  int to = 0;
};

// The pairs of classes that can follow each other.
std::vector<TransferPair> findPairs(AssignmentTables& tables) {
  std::vector<TransferPair> pairs;
  tables.pair_of.assign(tables.classes * tables.classes * 2, -1);
  for (size_t from = 0; from < tables.meshes.size(); ++from) {
    for (const Follow& follow : tables.follow[from]) {
      if (follow.device < 0) continue;
      for (const int to : tables.starting_at[follow.device]) {
        const int64_t key =
            (tables.class_of[from] * tables.classes + tables.class_of[to]) * 2 + follow.same_node;
        if (tables.pair_of[key] >= 0) continue;
        tables.pair_of[key] = std::ssize(pairs);
        pairs.push_back({static_cast<int>(from), to});
      }
    }
  }
  return pairs;
}

void addLeastTransfers(AssignmentTables& tables) {
  tables.least_transfers.assign(tables.classes * 2 * tables.layers * tables.boundaries, kNever);
  for (size_t key = 0; key < tables.pair_of.size(); ++key) {
    const int64_t pair = tables.pair_of[key];
    if (pair < 0) continue;
    const auto from = static_cast<int64_t>(key) / 2 / tables.classes * 2 + static_cast<int64_t>(key) % 2;
    const int64_t count = static_cast<int64_t>(tables.layers) * tables.boundaries;
    for (int64_t i = 0; i < count * tables.boundaries; ++i) {
      int64_t& least = tables.least_transfers[from * count + i / tables.boundaries];
      least = std::min(least, tables.transfers[pair * count * tables.boundaries + i]);
    }
  }
}

void addTransfers(const AssignmentRequest& request, AssignmentTables& tables) {
  const std::vector<TransferPair> pairs = findPairs(tables);
  const std::vector<std::vector<bool>> boundaries = boundariesOf(tables);
  const int count = tables.boundaries;
  tables.transfers.assign(pairs.size() * static_cast<size_t>(tables.layers * count * count), kNever);
  parallelFor(request.threads, pairs.size(), [&](int32_t pair) {
    const auto [from, to] = pairs[pair];
    const std::vector<bool>& from_has = boundaries[tables.class_of[from]];
    const std::vector<bool>& to_has = boundaries[tables.class_of[to]];
    for (int layer = 0; layer + 1 < tables.layers && !interrupted(request); ++layer) {
      for (int a = 0; a < count; ++a) {
        for (int b = 0; b < count; ++b) {
          if (!from_has[a] || !to_has[b]) continue;
          const int64_t index =
              ((static_cast<int64_t>(pair) * tables.layers + layer) * count + a) * count + b;
          tables.transfers[index] =
              std::min(kNever, request.costs.transfer(layer, tables.meshes[from], a, tables.meshes[to], b));
        }
      }
    }
  });
}

}  // namespace

int64_t saturatedProduct(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kNever : std::min(product, kNever);
}

int64_t mostInFlight(const StageOption& option, int64_t memory) {
  if (memory == INT64_MAX) return INT64_MAX;
  const int64_t left = memory - option.fixed_bytes - option.transient_bytes;
  if (left < 0) return -1;
  return option.activation_bytes == 0 ? INT64_MAX : left / option.activation_bytes;
}

int64_t inFlight(const AssignmentRequest& request, int64_t stages_behind) {
  return request.in_flight ? request.in_flight(stages_behind)
                           : std::min(request.microbatches, stages_behind + 1);
}

int64_t saturatedSum(int64_t a, int64_t b) {
  return std::min(kNever, std::min(a, kNever) + std::min(b, kNever));
}

int64_t slowestPart(const AssignmentRequest& request, const StageOption& option, int64_t transfer_ns) {
  if (request.objective == AssignmentObjective::kThroughput)
    return std::max(saturatedSum(option.pass_ns, option.step_ns), transfer_ns);
  const int64_t pass = saturatedSum(option.pass_ns, request.exposed_transfers ? transfer_ns : 0);
  return saturatedSum(saturatedProduct(request.microbatches - 1, pass), option.step_ns);
}

std::optional<AssignmentTables> makeAssignmentTables(const AssignmentRequest& request) {
  AssignmentTables tables;
  tables.layers = request.costs.layers();
  PIPESHARD_CHECK(tables.layers > 0 && request.microbatches > 0, "{} layers, {} microbatches", tables.layers,
                  request.microbatches);
  tables.most_stages = std::min(tables.layers, request.cluster.deviceCount());
  if (request.most_stages > 0) tables.most_stages = std::min(tables.most_stages, request.most_stages);
  for (int64_t behind = 0; behind < tables.most_stages; ++behind) {
    tables.in_flight.push_back(inFlight(request, behind));
  }
  addMeshes(request, tables);
  addOptions(request, tables);
  if (interrupted(request)) return std::nullopt;
  addTransfers(request, tables);
  addLeastTransfers(tables);
  if (interrupted(request)) return std::nullopt;
  return tables;
}

}  // namespace pipeshard
