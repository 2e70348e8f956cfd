// What Alpa's authors published of ways to plan other than their search's stored plans: the ablation inside
// one node (benchmark/alpa/exp_intra_ablation.py, osdi22_artifact/results_intra_ablation.tsv of
// alpa-projects/alpa), and the end-to-end runs that were out of memory (exp_inter_only.py,
// suite_artifact_e2e_wresnet.py, results_e2e.tsv).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/alpa_suite.h"
#include "ir/plan/recomputation.h"

namespace pipeshard {

// One node, no pipeline, one microbatch. GPT and MoE of 8 blocks, which are made again one at a time; their
// output projection is the token embedding; Wide-ResNet-50 of 16 blocks, all of which are kept.
struct AblationRow {
  SuiteModel model;
  int gpus = 1;
  int64_t batch = 8;
  std::string way;        // as published
  ShardingMethod method;  // ours
  double tflops = 0;      // of each GPU, by the authors' own count of operations; 0: out of memory
  double seconds = 0;     // of a step
  double memory_gib = 0;  // at the most
  int layers() const { return model.isHalf() ? 8 : 16; }
  Recomputation recomputation() const {
    return model.isHalf() ? Recomputation::kLayers : Recomputation::kNever;
  }
};
const std::vector<AblationRow>& alpaAblation();

// A way to plan a row of the suite that was out of memory.
struct ShortageRow {
  std::string model;  // of the suite
  std::string way;
  std::vector<ShardingMethod> methods;  // ours
  int devices = 0;                      // of a stage; 0: any
  std::vector<int64_t> microbatches;    // tried; empty: those of the stored plan
};
const std::vector<ShortageRow>& alpaShortages();

}  // namespace pipeshard
