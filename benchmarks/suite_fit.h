// What the efficiency of a device should be, by measured steps of one GPU alone. The presets
// (ir/cluster/cluster_presets.cc) have what this says; nothing is predicted with it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ir/cluster/cluster.h"

namespace pipeshard {

// Of a device, of its data sheet.
struct Efficiency {
  double contraction = 1;
  double convolution = 1;
  double memory = 1;  // of all other classes
};
Cluster withEfficiency(Cluster cluster, const Efficiency& efficiency);

struct MeasuredStep {
  std::string name;
  double seconds = 0;
  std::function<double(const Efficiency&)> predicted;  // seconds
};

// Times add up by class of work, so they are linear in one over the efficiencies. Prints, for each efficiency
// of memory from 0.4 to 1, that of contractions and that of convolutions with the least sum of squared
// relative errors, and the root of their mean.
void printFit(const std::vector<MeasuredStep>& contractions, const std::vector<MeasuredStep>& convolutions);

}  // namespace pipeshard
