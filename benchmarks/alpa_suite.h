// Alpa's GPT, MoE and Wide-ResNet suites on p3.16xlarge (8 V100-16GB each): models, the plans that its authors stored
// (benchmark/alpa/suite_auto_{gpt,moe}.py, suite_wresnet.py of alpa-projects/alpa), and what they measured
// (results_e2e_ref.tsv of its osdi22_artifact branch), in TFLOP/s of each GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pipeshard {

struct SuiteStage {
  int first_layer = 0;
  int last_layer = 0;
  int devices = 1;        // of one node, the next ones
  std::vector<int> mesh;  // logical
};

struct SuiteModel {
  std::string family;  // "gpt", "moe", "wrn"
  std::string size;    // "2.6B"
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t experts = 0;
  bool half = true;  // float16 with float32 master weights and Adam; else float32 with momentum
  std::string name() const { return family + "_" + size; }
};

struct SuiteRow {
  SuiteModel model;
  int gpus = 1;
  int64_t batch = 1024;
  int64_t microbatches = 1;
  int layers = 1;
  std::vector<SuiteStage> stages;
  double measured = 0;  // 0: not published
};

const std::vector<SuiteRow>& alpaSuite();

// Floating-point operations of a step as Alpa's own formulas count them, recomputation included; 0 for Wide-ResNet, where it counts those
// of the compiled program.
double formulaFlops(const SuiteRow& row);

}  // namespace pipeshard
