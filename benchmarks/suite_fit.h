// The efficiency of a device, fitted on measured steps of one GPU alone.
#pragma once

#include <functional>
#include <string>

#include "benchmarks/suite_models.h"

namespace pipeshard {

struct MeasuredStep {
  std::string name;
  double seconds = 0;
  std::function<double(const Efficiency&)> predicted;  // seconds
};

// That of contractions and of all that waits for memory from two steps, that of convolutions from a third:
// times add up by class of work, so they are linear in one over the efficiencies. What a missing step would
// tell stays 1. Prints what it reads.
Efficiency fitEfficiency(const MeasuredStep* gpt, const MeasuredStep* moe, const MeasuredStep* wrn);

}  // namespace pipeshard
