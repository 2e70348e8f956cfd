// What PipeDream's profiler writes (msr-fiddle/pipedream): a line per layer, then one per edge, after a tab:
//
//   node2 -- Conv2d(3, 64) -- forward_compute_time=22.307, backward_compute_time=24.613,
//       activation_size=1644167168.000, parameter_size=7168.000          (on the same line)
//   <tab>node2 -- node3
//
// Times are milliseconds of one minibatch, sizes bytes; a layer with several outputs has sizes [8.0; 16.0].
// Layers whose description begins with "Input" are left out: data comes from elsewhere. The others are taken
// in one topological order, smallest number first, so stages are runs of that order: exact for a chain, one
// choice among several where layers branch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pipeshard {

struct PipeDreamLayer {
  std::string name;         // "node2"
  std::string description;  // "Conv2d(3, 64)"
  int64_t compute_ns = 0;   // forward and backward
  int64_t activation_bytes = 0;
  int64_t parameter_bytes = 0;
  int64_t cut_bytes = 0;  // cross the cut behind it: of all layers up to here that later ones read
};

struct PipeDreamProfile {
  std::vector<PipeDreamLayer> layers;
  int64_t computeNs() const;
};

// Throws Error(kBadModel) that names `source` and the line.
PipeDreamProfile parsePipeDreamProfile(std::string_view text, const std::string& source);

}  // namespace pipeshard
