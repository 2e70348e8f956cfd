// What assignStagesToMeshes asks of StageCosts, asked once: submeshes that a plan can hold, with what may
// follow them, options and transfers in tables. Numbers only; private to stage assignment.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "partition/costs/stage_costs.h"
#include "partition/search/stage_assignment.h"

namespace pipeshard {

// A product or sum of times, kNever at most.
int64_t saturatedProduct(int64_t a, int64_t b);
int64_t saturatedSum(int64_t a, int64_t b);
// What the objective takes the maximum of.
int64_t slowestPart(const AssignmentRequest& request, const StageOption& option, int64_t transfer_ns);

// How many microbatches' activations fit beside the rest; -1: not even none.
int64_t mostInFlight(const StageOption& option, int64_t memory);
int64_t inFlight(const AssignmentRequest& request, int64_t stages_behind);

struct TableOption {
  StageOption option;
  int64_t most_in_flight = 0;
};

// Where the stage behind a submesh may begin.
struct Follow {
  int device = -1;  // -1: nowhere
  bool same_node = false;
};

struct AssignmentTables {
  int layers = 0;
  int most_stages = 0;
  int boundaries = 1;   // 1 + the largest
  int64_t classes = 0;  // of submeshes

  // By class, then first device, then size. Each can be part of a plan.
  std::vector<Submesh> meshes;
  std::vector<int> class_of;
  std::vector<int> class_begin;               // classes + 1
  std::vector<std::array<Follow, 2>> follow;  // by mesh
  std::vector<bool> may_end;                  // by mesh: a plan's last stage may be here
  std::vector<std::vector<int>> starting_at;  // by device: meshes, ascending size

  // [class][first layer][last layer]; in the caller's order, those that another one beats in everything left
  // out.
  std::vector<std::vector<TableOption>> options;
  std::vector<int64_t> in_flight;  // by stages behind

  const std::vector<TableOption>& optionsOf(int mesh_class, int first, int last) const {
    return options[(mesh_class * layers + first) * layers + last];
  }
  int64_t transfer(int layer, int from_class, int from_boundary, int to_class, int to_boundary,
                   bool same_node) const {
    const int64_t pair = pair_of[(from_class * classes + to_class) * 2 + (same_node ? 1 : 0)];
    return transfers[((pair * layers + layer) * boundaries + from_boundary) * boundaries + to_boundary];
  }

  // Of all transfers from there.
  int64_t leastTransfer(int layer, int from_class, int from_boundary, bool same_node) const {
    const int64_t from = from_class * 2 + (same_node ? 1 : 0);
    return least_transfers[(from * layers + layer) * boundaries + from_boundary];
  }

  std::vector<int64_t> pair_of;  // by class, class, same node: index into transfers, or -1
  std::vector<int64_t> transfers;
  std::vector<int64_t> least_transfers;
};

// nullopt: interrupted.
std::optional<AssignmentTables> makeAssignmentTables(const AssignmentRequest& request);

}  // namespace pipeshard
