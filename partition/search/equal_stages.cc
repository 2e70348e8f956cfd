#include "partition/search/equal_stages.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "partition/costs/stage_costs.h"

namespace pipeshard {
namespace {

// Of these stages alone.
class EqualCosts : public OtherStageCosts {
 public:
  EqualCosts(const StageCosts& costs, const std::vector<Submesh>& submeshes)
      : OtherStageCosts(costs), submeshes_(submeshes) {}

  // What may be on a submesh depends on its place.
  int submeshClass(const Submesh& submesh) const override {
    return costs_.submeshClass(submesh) + (1 << 16) * submesh.first_device;
  }
  const std::vector<StageOption>& options(int first_layer, int last_layer,
                                          const Submesh& submesh) const override {
    static const std::vector<StageOption> kNone;
    const auto place = std::find(submeshes_.begin(), submeshes_.end(), submesh) - submeshes_.begin();
    return place < std::ssize(submeshes_) && first_layer == firstOf(place) &&
                   last_layer == firstOf(place + 1) - 1
               ? costs_.options(first_layer, last_layer, submesh)
               : kNone;
  }

 private:
  int firstOf(int64_t stage) const { return stage * costs_.layers() / std::ssize(submeshes_); }

  const std::vector<Submesh>& submeshes_;
};

std::optional<std::vector<Submesh>> equalSubmeshes(const AssignmentRequest& request, int stages) {
  const int devices = request.cluster.deviceCount() / stages;
  std::vector<Submesh> submeshes;
  for (int stage = 0; stage < stages; ++stage) {
    const std::vector<Submesh> here = submeshesAt(request.cluster, stage * devices);
    const auto found = std::find_if(here.begin(), here.end(), [&](const Submesh& submesh) {
      return submesh.deviceCount() == devices && (!request.allowed || request.allowed(submesh));
    });
    if (found == here.end()) return std::nullopt;
    submeshes.push_back(*found);
  }
  return submeshes;
}

}  // namespace

std::vector<Assignment> equalStages(const AssignmentRequest& request) {
  std::vector<Assignment> found;
  const int most = std::min(request.most_stages > 0 ? request.most_stages : request.cluster.deviceCount(),
                            request.costs.layers());
  for (int stages = std::max(1, request.least_stages); stages <= most; ++stages) {
    if (request.cluster.deviceCount() % stages != 0) continue;
    const std::optional<std::vector<Submesh>> submeshes = equalSubmeshes(request, stages);
    if (!submeshes) continue;
    const EqualCosts costs(request.costs, *submeshes);
    AssignmentRequest one{.costs = costs, .cluster = request.cluster};
    one.objective = request.objective;
    one.microbatches = request.microbatches;
    one.exposed_transfers = request.exposed_transfers;
    one.in_flight = request.in_flight;
    one.allowed = [&](const Submesh& submesh) {
      return std::find(submeshes->begin(), submeshes->end(), submesh) != submeshes->end();
    };
    one.least_stages = one.most_stages = stages;
    one.bound_ns = request.bound_ns;
    one.interrupted = request.interrupted;
    AssignmentResult result = assignStagesToMeshes(one);
    std::move(result.assignments.begin(), result.assignments.end(), std::back_inserter(found));
  }
  return found;
}

}  // namespace pipeshard
