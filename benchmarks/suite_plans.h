// Ways to plan a row of the suites, all predicted by the same cost model and simulator.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/alpa_ablation.h"
#include "benchmarks/alpa_suite.h"
#include "benchmarks/suite_models.h"
#include "ir/cluster/cluster.h"
#include "partition/costs/sharded_stage_costs.h"
#include "partition/costs/stage_costs.h"
#include "partition/search/plan_search_request.h"

namespace pipeshard {

struct Prediction {
  bool fits = false;
  int64_t step_ns = 0;     // 0: there is no such plan
  int64_t memory = 0;      // of the device that needs most
  std::string parts = {};  // of that memory, for people
};

// Alpa's plan with the boundaries that suit it best, under 1F1B; where it does not fit, as if it did.
Prediction predictStored(const SuiteRow& row, const Step& step, const Cluster& cluster);

// All layers in one stage on the whole cluster: the fastest of the options that fit; where none does, the one
// that needs least memory.
Prediction predictOneStage(const Step& step, const Cluster& cluster, const ShardingMethod& method,
                           Recomputation recomputation);

// One way to plan a row.
struct Planned {
  int64_t step_ns = 0;  // 0: none fits
  std::string plan = {};
  std::string text(int64_t beside) const;  // how many times slower
};

// The best plan that the search finds among those allowed, on one row's model and cluster, which are kept by
// reference.
class RowSearch {
 public:
  RowSearch(const SuiteRow& row, Models& models, int threads);

  Planned best();
  // Stages of equally many layers and devices: of all their numbers the best.
  Planned uniform(const ShardingMethod& method);
  Planned only(const ShardingMethod& method, int stages);
  // Under 1F1B; where nothing fits, the least memory that would do.
  std::pair<Planned, int64_t> within(const ShortageRow& way);

 private:
  PlanSearchRequest requestFor(const std::vector<ShardingMethod>& methods);
  CountedCosts costsOf(const std::vector<ShardingMethod>& methods, int64_t count);

  const SuiteRow& row_;
  Models& models_;
  Cluster cluster_;
  int threads_;
  std::map<std::pair<std::vector<ShardingMethod>, int64_t>, std::shared_ptr<ShardedStageCosts>> costs_;
  std::vector<std::shared_ptr<StageCosts>> filtered_;
};

}  // namespace pipeshard
