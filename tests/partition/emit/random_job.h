// Random training steps at any batch size, cut at random places and put on random meshes.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "ir/plan/plan.h"
#include "sharding/batch/training_family.h"

namespace pipeshard {

// A batch, microbatches, stages and meshes that fit a random step.
struct Job {
  TrainingFamily::Maker maker;
  int64_t batch = 1;
  int64_t microbatches = 1;
  Plan plan;

  TrainingFamily family() const { return TrainingFamily(batch, microbatches, maker); }
  std::vector<Rows> parts() const;  // the rows of each microbatch
};

// Of at most four stages on meshes of random devices. `rows_differ`: without repetitions, so that every
// mistake shows. `microbatches`: so many, of equal rows; 0: a few.
Job randomJob(unsigned seed, bool rows_differ = false, int64_t microbatches = 0);

// Of at most three stages on equal meshes, and as many rows for every device: most ranks do what others do.
Job replicatedJob(unsigned seed, bool rows_differ = false, int64_t microbatches = 0);

// The parts of it.
// Cut nowhere yet.
Job wholeJob(unsigned seed, bool rows_differ, int64_t microbatches, std::mt19937& random);
// At most so many stages at random cuts. `rows_differ`: never before a sum over rows, to which it does not
// matter which device has which of them.
void cutAtRandom(Job& job, size_t most_stages, bool rows_differ, std::mt19937& random);
// Gives each group of stages a random mesh of random devices; `along_data`: so that nobody does the same as
// another.
void placeAtRandom(Job& job, const std::vector<int>& groups, bool along_data, std::mt19937& random);

}  // namespace pipeshard
