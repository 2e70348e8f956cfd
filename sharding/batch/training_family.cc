#include "sharding/batch/training_family.h"

#include <utility>

#include "ir/base/error.h"
#include "sharding/batch/training_rows.h"

namespace pipeshard {
Rows shareOf(Rows rows, int64_t index, int64_t parts) {
  const int64_t begin = index * rows.count / parts;
  const int64_t end = (index + 1) * rows.count / parts;
  return {rows.first + begin, end - begin};
}

TrainingFamily::TrainingFamily(int64_t batch, int64_t microbatches, Maker maker)
    : batch_(batch), microbatches_(microbatches), maker_(std::move(maker)) {
  PIPESHARD_CHECK(microbatches >= 1 && batch >= microbatches, "{} microbatches of a batch of {}",
                  microbatches, batch);
}

TrainingFamily::TrainingFamily(TrainingGraph only)
    : batch_(only.microbatches), microbatches_(only.microbatches) {
  members_.emplace(1, std::make_unique<const Member>(Member{std::move(only), {}}));
}

const TrainingFamily::Member& TrainingFamily::member(int64_t rows) const {
  const auto found = members_.find(rows);
  if (found != members_.end()) return *found->second;
  PIPESHARD_CHECK(maker_ != nullptr && rows >= 1, "no training graph of {} rows", rows);
  const int64_t base_rows = largestMicrobatch();
  Member made;
  if (rows == 1 && base_rows > 1) {
    // Not the whole batch: its share is 1, by which gradients are not multiplied, and that is another form.
    const int64_t longer_rows = base_rows + (base_rows + 1 == batch_ ? 2 : 1);
    const SizedTraining longer{at(longer_rows), longer_rows};
    made.training = trainingOfRows({base(), base_rows}, longer, rows);
  } else {
    made.training = maker_(rows);
  }
  if (rows != base_rows) made.value_of = matchValues({base(), base_rows}, {made.training, rows});
  return *members_.emplace(rows, std::make_unique<const Member>(std::move(made))).first->second;
}

ValueId TrainingFamily::valueAt(int64_t rows, ValueId base_value) const {
  const Member& found = member(rows);
  if (found.value_of.empty() || !base_value.valid()) return base_value;
  const ValueId value = found.value_of[base_value.index()];
  PIPESHARD_CHECK(value.valid(), "'{}' has no counterpart for {} rows", base().graph.value(base_value).name,
                  rows);
  return value;
}

}  // namespace pipeshard
