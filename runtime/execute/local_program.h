// A program of one rank, in this process: reference runs and tests.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "runtime/data/data.h"
#include "runtime/device/device.h"
#include "runtime/execute/executor.h"
#include "runtime/execute/rank_image.h"

namespace pipeshard {

class LocalProgram {
 public:
  // world_size must be 1 (Error(kConfiguration)). Synthetic or file data as described.
  LocalProgram(RankImage image, const DataDescription& data, const ExecutorOptions& options = {});

  StepReport runStep(int64_t step) { return executor_.runStep(step); }
  const Executor& executor() const { return executor_; }
  Executor& executor() { return executor_; }
  // The result of this kind and name ("" for the loss); nullptr if the program has none.
  const Result* findResult(Result::Kind kind, std::string_view name, std::string_view state = "") const;
  // Elements of a result as double.
  std::vector<double> elements(const Result& result) const;

 private:
  MemoryBlock arena_;  // given back behind the executor
  Executor executor_;
  std::unique_ptr<DataSource> data_;
};

}  // namespace pipeshard
