#include "tests/partition/search/stage_cost_tables.h"

#include <random>

namespace pipeshard {
namespace {

constexpr int kRecomputes = 100;  // config: devices, boundary * 1000, and this

}  // namespace

CostTable::CostTable(uint64_t seed, const Size& size) : size_(size) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (int layer = 0; layer < size.layers; ++layer) {
    time_.push_back(draw(50, 500) * 3600 / size.microbatches);
    weight_.push_back(draw(10, 100));
    activation_.push_back(draw(100, 1000) / size.microbatches + 1);
    cut_.push_back(draw(1, 40) * 1000 / size.microbatches);
  }
  for (int first = 0; first < size.layers; ++first) {
    for (int last = first; last < size.layers; ++last) {
      for (int devices = 1; devices <= 16; ++devices) {
        std::vector<StageOption>& options = options_[{first, last, devices}];
        StageOption whole;
        for (int layer = first; layer <= last; ++layer) {
          whole.pass_ns += time_[layer] / devices;
          whole.fixed_bytes += weight_[layer];
          whole.activation_bytes += activation_[layer] / devices;
        }
        for (int boundary = 0; boundary < (devices > 1 ? 2 : 1); ++boundary) {
          StageOption option = whole;
          option.boundary = boundary;
          option.pass_ns += (devices - 1) * draw(100, 4000) / size.microbatches;
          option.step_ns = devices == 1 ? 100 : draw(100, 3000);
          option.config = devices + 1000 * boundary;
          options.push_back(option);
          option.pass_ns += option.pass_ns / 3;
          option.transient_bytes = option.activation_bytes;
          option.activation_bytes = option.activation_bytes / 4 + 1;
          option.config += kRecomputes;
          options.push_back(option);
        }
      }
    }
  }
}

const std::vector<StageOption>& CostTable::options(int first_layer, int last_layer,
                                                   const Submesh& submesh) const {
  return options_.at({first_layer, last_layer, submesh.deviceCount()});
}

int64_t CostTable::transfer(int layer, const Submesh&, int from_boundary, const Submesh&,
                            int to_boundary) const {
  return cut_[layer] * (from_boundary == to_boundary ? 1 : 2);
}

StageConfig CostTable::config(int config) const {
  StageConfig result;
  result.mesh = {config % kRecomputes};
  result.boundary = config / 1000;
  if (config % 1000 >= kRecomputes) result.recomputation = Recomputation::kAlways;
  return result;
}

StageCostParts CostTable::parts(const StageOption& option) const {
  StageCostParts parts;
  const bool recomputes = option.config % 1000 >= kRecomputes;
  const int64_t passes = recomputes ? option.pass_ns * 3 / 4 : option.pass_ns;
  parts.forward_ns = passes / 3;
  parts.backward_input_ns = passes / 3;
  parts.backward_weight_ns = passes - 2 * (passes / 3);
  parts.recomputation_ns = option.pass_ns - passes;
  parts.update_ns = option.step_ns;
  parts.weight_bytes = option.fixed_bytes;
  parts.activation_bytes = option.activation_bytes;
  parts.transient_bytes = parts.halved_transient_bytes = option.transient_bytes;
  return parts;
}

CountedCosts countedCosts(std::shared_ptr<const CostTable> table) {
  CountedCosts costs;
  costs.costs = table;
  costs.config = [table](int config) { return table->config(config); };
  costs.parts = [table](int, int, const Submesh&, const StageOption& option) { return table->parts(option); };
  return costs;
}

}  // namespace pipeshard
