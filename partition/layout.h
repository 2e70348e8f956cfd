// Who computes what: the stage of every rank, its place in the stage's logical mesh, and its rows of every microbatch.
//
// A stage's devices form a logical mesh [data, model], row-major. The rows of a microbatch are cut over the data axis (data
// parallelism); along the model axis every device has the same rows. A rank's rows of one microbatch are a *cell*.
//   stage on devices [1,2,3] with mesh [3,1], microbatch {4, 3}:  rank 1 has row 4, rank 2 row 5, rank 3 row 6
// Internal to partition/.
#pragma once

#include <vector>

#include "ir/plan.h"
#include "sharding/training_family.h"

namespace pipeshard {

struct Place {
  int stage = 0;
  int position = 0;  // in the stage's list of devices: data * (model devices) + model
  int data = 0;
  int model = 0;
};

class Layout {
 public:
  // Errors: kConfiguration when the plan's devices are not 0..n-1, each in one stage; when a mesh does not have as many places as
  // the stage has devices; when a microbatch has fewer rows than data-parallel devices; when the plan was made for other
  // microbatches.
  Layout(const Plan& plan, const TrainingFamily& family);

  int ranks() const { return static_cast<int>(places_.size()); }
  int stages() const { return static_cast<int>(stages_.size()); }
  const Place& place(int rank) const { return places_[static_cast<size_t>(rank)]; }
  const std::vector<int>& devices(int stage) const { return stages_[static_cast<size_t>(stage)].devices; }
  int width(int stage) const { return static_cast<int>(devices(stage).size()); }
  int dataWidth(int stage) const { return stages_[static_cast<size_t>(stage)].mesh_shape[0]; }
  int modelWidth(int stage) const { return stages_[static_cast<size_t>(stage)].mesh_shape[1]; }
  bool hasDataParallelism() const;
  int rankAt(int stage, int data, int model) const {
    const int index = data * modelWidth(stage) + model;
    return devices(stage)[static_cast<size_t>(index)];
  }

  // Ranks that compute the other rows of this rank's microbatches, itself included; ascending.
  std::vector<int> dataGroup(int rank) const;

  // Rows of the whole batch.
  Rows microbatch(int64_t k) const { return family_->microbatch(k); }
  Rows cell(int stage, int data, int64_t k) const { return shareOf(microbatch(k), data, dataWidth(stage)); }
  Rows cell(int rank, int64_t k) const { return cell(place(rank).stage, place(rank).data, k); }

 private:
  const TrainingFamily* family_;
  std::vector<StagePlan> stages_;
  std::vector<Place> places_;
};

}  // namespace pipeshard
