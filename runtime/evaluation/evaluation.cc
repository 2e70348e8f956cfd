#include "runtime/evaluation/evaluation.h"

#include <limits>

namespace pipeshard {

int64_t EvaluationSpec::nextDue(int64_t step) const {
  if (!asked() || every_steps <= 0) return std::numeric_limits<int64_t>::max();
  return (step / every_steps + 1) * every_steps;
}

bool EvaluationSpec::isFirst(int64_t step) const {
  if (!asked()) return false;
  return step == 0 ? at_start : isDue(step) && step != known_step;
}

}  // namespace pipeshard
