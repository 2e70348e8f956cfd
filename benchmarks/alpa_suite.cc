#include "benchmarks/alpa_suite.h"

namespace pipeshard {
namespace {

constexpr int64_t kSequence = 1024;
constexpr int64_t kGroup = 2048;  // tokens that Alpa's experts deal out together

// SuiteStage::methods.
const std::vector<ShardingMethod> kFree = {
    {ShardingKind::kAuto}, {ShardingKind::kZero2}, {ShardingKind::kTensorParallel}};
const std::vector<ShardingMethod> kBatch = {ShardingMethod{ShardingKind::kZero2}};
const std::vector<ShardingMethod> kNoBatch = {ShardingMethod{ShardingKind::kTensorParallel}};
const std::vector<ShardingMethod> kGrid = {ShardingMethod{ShardingKind::kMegatronZero2}};

// Stages of equally many layers and devices.
std::vector<SuiteStage> equalStages(int count, int layers, std::vector<int> mesh,
                                    const std::vector<ShardingMethod>& methods = kFree) {
  int devices = 1;
  for (const int axis : mesh) devices *= axis;
  std::vector<SuiteStage> stages;
  for (int s = 0; s < count; ++s)
    stages.push_back({s * layers / count, (s + 1) * layers / count - 1, devices, mesh, methods});
  return stages;
}

SuiteModel gpt(const std::string& size, int64_t hidden, int64_t layers) {
  return {"gpt", size, hidden, layers, 0};
}
SuiteModel moe(const std::string& size, int64_t hidden, int64_t layers, int64_t experts) {
  return {"moe", size, hidden, layers, experts};
}
SuiteModel wrn(const std::string& size) { return {"wrn", size, 0, 0, 0}; }

std::vector<SuiteRow> gptRows() {
  const std::vector<SuiteStage> three = {
      {0, 7, 2, {2}, kBatch}, {8, 15, 2, {2}, kFree}, {16, 31, 4, {4}, kFree}};
  return {
      {gpt("350M", 1024, 24), 1, 1024, 512, 24, equalStages(1, 24, {1}), 45.07},
      {gpt("760M", 1536, 24), 2, 1024, 128, 24, equalStages(2, 24, {1}), 57.92},
      {gpt("1.3B", 2048, 24), 4, 1024, 128, 24, equalStages(2, 24, {2}, kBatch), 58.21},
      {gpt("2.6B", 2560, 32), 8, 1024, 128, 32, three, 61.61},
      {gpt("6.7B", 4096, 32), 16, 1024, 64, 32, equalStages(2, 32, {2, 4}, kGrid), 60.0},
      {gpt("15B", 5120, 48), 32, 1024, 128, 48, equalStages(4, 48, {2, 4}, kGrid), 59.9},
      {gpt("39B", 8192, 48), 64, 1024, 1024, 48, equalStages(16, 48, {4}, kGrid), 57},
  };
}

// The first row was published as 45.46, which counts XLA's 1,660 TFLOP, not the formula's 1,579: its
// latencies were 36.41 and 36.62 s.
std::vector<SuiteRow> moeRows() {
  return {
      {moe("380M", 768, 8, 8), 1, 1024, 512, 8, equalStages(1, 8, {1}), 43.25},
      {moe("690M", 768, 8, 16), 2, 1024, 32, 8, equalStages(1, 8, {2}, kBatch), 43.03},
      {moe("1.3B", 768, 16, 16), 4, 1024, 32, 16, equalStages(2, 16, {2}, kBatch), 39.92},
      {moe("2.4B", 1024, 16, 16), 8, 1024, 32, 16, equalStages(2, 16, {4}, kBatch), 45.76},
      {moe("10B", 1536, 16, 32), 16, 1024, 16, 16, equalStages(2, 16, {8}), 45.36},
      {moe("27B", 2048, 16, 48), 32, 1024, 128, 16, equalStages(8, 16, {4}), 38.84},
      {moe("70B", 2048, 32, 64), 64, 1024, 64, 32, equalStages(8, 32, {8}), 36.55},
  };
}

std::vector<SuiteRow> wrnRows() {
  const std::vector<SuiteStage> four = {
      {0, 4, 4, {4}, kBatch}, {5, 8, 4, {4}, kBatch}, {9, 15, 8, {8}, kFree}};
  const std::vector<SuiteStage> seven = {
      {0, 4, 8, {8}, kBatch}, {5, 8, 8, {8}, kFree}, {9, 12, 8, {8}, kFree}, {13, 15, 8, {8}, kFree}};
  const std::vector<SuiteStage> thirteen = {{0, 3, 8, {8}, kFree},      {4, 7, 8, {8}, kNoBatch},
                                            {8, 11, 8, {8}, kFree},     {12, 15, 8, {8}, kNoBatch},
                                            {16, 19, 8, {8}, kFree},    {20, 23, 8, {8}, kFree},
                                            {24, 28, 8, {8}, kNoBatch}, {29, 32, 8, {8}, kFree}};
  return {
      {wrn("250M"), 1, 1536, 24, 16, equalStages(1, 16, {1}), 8.30},
      {wrn("500M"), 2, 1536, 24, 16, equalStages(1, 16, {2}), 8.46},
      {wrn("1B"), 4, 1536, 24, 16, equalStages(1, 16, {4}), 8.16},
      {wrn("2B"), 8, 1536, 24, 16, {{0, 7, 4, {4}, kFree}, {8, 15, 4, {4}, kNoBatch}}, 8.04},
      {wrn("4B"), 16, 1536, 32, 16, four, 6.76},
      {wrn("6.8B"), 32, 1536, 32, 16, seven, 6.60},
      {wrn("13B"), 64, 1520, 38, 33, thirteen, 5.3},
  };
}

std::vector<SuiteRow> makeSuite() {
  std::vector<SuiteRow> all;
  for (const std::vector<SuiteRow>& rows : {gptRows(), moeRows(), wrnRows()})
    all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

}  // namespace

std::string SuiteModel::optimizer() const {
  return family == "gpt"   ? "adam:lr=1e-4"
         : family == "moe" ? "sgd:lr=1e-2"
                           : "sgd:lr=0.1,momentum=0.9,nesterov=1";
}

const std::vector<SuiteRow>& alpaSuite() {
  static const std::vector<SuiteRow> kSuite = makeSuite();
  return kSuite;
}

double formulaFlops(const SuiteRow& row) {
  const auto tokens = static_cast<double>(row.batch * kSequence);
  const auto hidden = static_cast<double>(row.model.hidden);
  const auto layers = static_cast<double>(row.model.layers);
  const auto sequence = static_cast<double>(kSequence);
  if (row.model.family == "gpt")
    return 96 * tokens * hidden * hidden * layers * (1 + sequence / (6 * hidden)) +
           6 * tokens * hidden * 51200;
  if (row.model.family != "moe") return 0;
  // Forward, two passes backward, recomputation. Of an attention, of a dense layer behind it, of experts with
  // their gate.
  const double attention = tokens * (8 * hidden * hidden + 4 * sequence * hidden);
  const double dense = tokens * hidden * hidden * 32;
  const double experts =
      tokens * (64 * hidden * hidden + 2 * hidden * static_cast<double>(row.model.experts) + 4 * kGroup +
                8 * kGroup * hidden);
  return 4 * layers / 2 * (2 * attention + dense + experts) + 6 * tokens * hidden * 32000;
}

}  // namespace pipeshard
