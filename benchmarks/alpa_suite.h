// Alpa's GPT, MoE and Wide-ResNet suites on p3.16xlarge (8 V100-16GB each): models, the plans that its
// authors stored (benchmark/alpa/suite_auto_{gpt,moe}.py, suite_wresnet.py of alpa-projects/alpa), and what
// they measured (osdi22_artifact/results_e2e.tsv), in TFLOP/s of each GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/plan/sharding_method.h"

namespace pipeshard {

struct SuiteStage {
  int first_layer = 0;
  int last_layer = 0;
  int devices = 1;        // of one node, the next ones
  std::vector<int> mesh;  // logical
  // Ours that its options in the stored plan leave open; Alpa moves updates to shards where that saves
  // memory. Nothing forced: auto, zero2, tensor-parallel. With force_batch_dim_to_mesh_dim 0 axis 0 cuts the
  // batch, the merged rows of all its sequences, and nothing else does: zero2 on n x 1; on 1 x n
  // tensor-parallel for convolutions, megatron for transformers; megatron-zero2 on both.
  std::vector<ShardingMethod> methods;
};

struct SuiteModel {
  std::string family;  // "gpt", "moe", "wrn"
  std::string size;    // "2.6B"
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t experts = 0;
  std::string options = {};  // of tools/export/export.py; empty: the size is one of its own
  std::string name() const { return family + "_" + size; }
  bool isHalf() const { return family != "wrn"; }  // float16 with float32 master weights
  // Adam for GPT, momentum for Wide-ResNet. MoE has Adafactor there, whose state is a row and a column of
  // each matrix: here none.
  std::string optimizer() const;
};

struct SuiteRow {
  SuiteModel model;
  int gpus = 1;
  int64_t batch = 1024;
  int64_t microbatches = 1;
  // blocks: what Alpa recomputes one at a time, and its coarser layers of the stored plans consist of
  int layers = 1;
  std::vector<SuiteStage> stages;
  double measured = 0;
};

const std::vector<SuiteRow>& alpaSuite();

// Bytes of a device that its programs could have: nvidia-smi's 16,160 MiB of a V100-16GB, of which XLA takes
// nine tenths.
inline constexpr int64_t kUsableMemory = int64_t{16160} * 1024 * 1024 / 10 * 9;

// Floating-point operations of a step as Alpa's own formulas count them, recomputation included; 0 for
// Wide-ResNet, where it counts those of the compiled program.
double formulaFlops(const SuiteRow& row);

}  // namespace pipeshard
