#include "benchmarks/alpa_ablation.h"

#include <array>

#include <fmt/format.h>

namespace pipeshard {
namespace {

struct Measured {
  double tflops, seconds, memory_gib;
};
constexpr Measured kOutOfMemory{0, 0, 0};

struct Way {
  const char* name;
  ShardingMethod method;
  std::array<Measured, 4> measured;  // on 1, 2, 4, 8 GPUs
};

SuiteModel gpt(int64_t hidden, int heads) {
  SuiteModel model{"gpt", fmt::format("8x{}", hidden), hidden, 8, 0};
  model.options =
      fmt::format("--size 350M --tied --vocab 25600 --layers 8 --embd {} --heads {}", hidden, heads);
  return model;
}

SuiteModel moe(int64_t hidden, int heads, int64_t experts) {
  SuiteModel model{"moe", fmt::format("8x{}x{}", hidden, experts), hidden, 8, experts};
  model.options = fmt::format("--size 380M --tied --group 1 --vocab 51200 --embd {} --heads {} --experts {}",
                              hidden, heads, experts);
  return model;
}

SuiteModel wrn(const std::string& size) { return {"wrn", size, 0, 0, 0}; }

void add(std::vector<AblationRow>& rows, const std::array<SuiteModel, 4>& models, int64_t batch,
         const std::vector<Way>& ways) {
  for (const Way& way : ways) {
    for (size_t i = 0; i < models.size(); ++i) {
      const Measured& measured = way.measured[i];
      rows.push_back({models[i], 1 << i, batch, way.name, way.method, measured.tflops, measured.seconds,
                      measured.memory_gib});
    }
  }
}

// Of Alpa's own choice the fastest mesh that it measured.
std::vector<AblationRow> makeAblation() {
  constexpr Measured kOom = kOutOfMemory;
  std::vector<AblationRow> rows;
  add(rows, {gpt(2048, 16), gpt(3072, 24), gpt(4096, 32), gpt(5760, 40)}, 8,
      {{"ILP",
        {ShardingKind::kAuto},
        {{{68.68, 0.4538, 9.54}, {61.99, 0.5367, 10.34}, {66.44, 0.4331, 12.42}, {61.19, 0.4539, 7.75}}}},
       {"data", {ShardingKind::kDataParallel}, {{{68.44, 0.4554, 9.54}, kOom, kOom, kOom}}},
       {"ZeRO-2",
        {ShardingKind::kZero2},
        {{{68.65, 0.4540, 9.54}, {61.95, 0.5370, 10.34}, {66.41, 0.4333, 12.42}, kOom}}},
       {"ZeRO-3",
        {ShardingKind::kZero3},
        {{{68.61, 0.4542, 9.54}, {52.35, 0.6356, 9.59}, {57.83, 0.4976, 10.02}, {53.21, 0.5219, 13.00}}}}});
  add(rows, {moe(1024, 32, 8), moe(1280, 40, 16), moe(1536, 24, 16), moe(1536, 24, 32)}, 8,
      {{"ILP",
        {ShardingKind::kAuto},
        {{{45.49, 0.4982, 8.33}, {38.89, 0.4261, 9.72}, {42.61, 0.2672, 6.59}, {35.10, 0.1622, 5.63}}}},
       {"data", {ShardingKind::kDataParallel}, {{{45.53, 0.4978, 8.33}, kOom, kOom, kOom}}},
       {"ZeRO-2",
        {ShardingKind::kZero2},
        {{{45.45, 0.4987, 8.33}, {24.90, 0.6656, 12.70}, {26.49, 0.4299, 13.62}, kOom}}},
       {"ZeRO-3",
        {ShardingKind::kZero3},
        {{{45.45, 0.4987, 8.33}, {20.85, 0.7949, 10.84}, {22.19, 0.5132, 9.55}, {10.36, 0.5495, 13.93}}}}});
  add(rows, {wrn("250M"), wrn("500M"), wrn("1B"), wrn("2B")}, 32,
      {{"ILP",
        {ShardingKind::kAuto},
        {{{8.27, 0.9282, 10.25}, {7.90, 0.9510, 8.34}, {7.87, 0.9725, 8.19}, {8.00, 0.9370, 7.95}}}},
       {"data", {ShardingKind::kDataParallel}, {{{8.28, 0.9269, 10.25}, {6.50, 1.1560, 10.22}, kOom, kOom}}},
       {"ZeRO-2",
        {ShardingKind::kZero2},
        {{{8.26, 0.9289, 10.25}, {7.58, 0.9911, 9.25}, {6.95, 1.1014, 10.78}, kOom}}},
       {"ZeRO-3",
        {ShardingKind::kZero3},
        {{{8.26, 0.9290, 10.25}, {7.36, 1.0202, 7.76}, {7.06, 1.0836, 7.19}, {5.97, 1.2554, 10.17}}}}});
  return rows;
}

}  // namespace

const std::vector<AblationRow>& alpaAblation() {
  static const std::vector<AblationRow> kRows = makeAblation();
  return kRows;
}

const std::vector<ShortageRow>& alpaShortages() {
  static const std::vector<ShortageRow> kRows = {
      {"moe_27B", "pipeline alone", {ShardingMethod{}}, 1, {512, 1024}},
      {"moe_70B", "pipeline alone", {ShardingMethod{}}, 1, {512, 1024}},
      {"wrn_6.8B", "pipeline alone", {ShardingMethod{}}, 1, {}},
      {"wrn_13B", "pipeline alone", {ShardingMethod{}}, 1, {}},
      {"wrn_6.8B",
       "pipeline and data parallelism",
       {{ShardingKind::kDataParallel}, {ShardingKind::kZero2}},
       0,
       {}},
      {"wrn_13B",
       "pipeline and data parallelism",
       {{ShardingKind::kDataParallel}, {ShardingKind::kZero2}},
       0,
       {}},
  };
  return kRows;
}

}  // namespace pipeshard
