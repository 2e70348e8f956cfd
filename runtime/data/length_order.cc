#include "runtime/data/length_order.h"

#include <algorithm>
#include <utility>

#include "ir/base/error.h"
#include "runtime/data/length_groups.h"
#include "runtime/data/row_permutation.h"

namespace pipeshard {

LengthOrder::LengthOrder(std::vector<uint8_t> lengths, size_t count, int64_t batch, bool drop_last,
                         std::optional<uint64_t> seed)
    : lengths_(std::move(lengths)), count_(count), batch_(batch), drop_last_(drop_last), seed_(seed) {
  const int64_t rows = std::ssize(lengths_);
  PIPESHARD_CHECK(batch_ > 0 && rows > 0, "{} rows in batches of {}", rows, batch_);
  steps_ = rows / batch_ + (rows % batch_ > 0 && !drop_last_ ? 1 : 0);
  PIPESHARD_CHECK(steps_ > 0, "{} rows make no batch of {}", rows, batch_);
}

size_t LengthOrder::lengthOf(int64_t step) const { return epochOf(step)->lengths.at(placeInEpoch(step)); }

std::vector<int64_t> LengthOrder::rowsOf(int64_t step) const {
  const auto epoch = epochOf(step);
  const int64_t first = placeInEpoch(step) * batch_;
  const int64_t end = std::min<int64_t>(first + batch_, std::ssize(epoch->rows));
  return {epoch->rows.begin() + first, epoch->rows.begin() + end};
}

LengthOrder::Epoch LengthOrder::make(int64_t number) const {
  const int64_t count = std::ssize(lengths_);
  std::optional<RowPermutation> shuffled;
  if (seed_) shuffled.emplace(count, *seed_, number);
  Epoch epoch{number, {}, {}};
  epoch.rows.reserve(count);
  const auto makeBatch = [&](size_t length, const std::vector<int64_t>& rows) {
    epoch.rows.insert(epoch.rows.end(), rows.begin(), rows.end());
    epoch.lengths.push_back(static_cast<uint8_t>(length));
  };
  LengthGroups<int64_t> groups(count_, batch_, makeBatch);
  for (int64_t place = 0; place < count; ++place) {
    const int64_t row = shuffled ? (*shuffled)(place) : place;
    groups.put(row, lengths_[row]);
  }
  const std::vector<int64_t> rest = groups.finish();
  if (!rest.empty() && !drop_last_) makeBatch(0, rest);
  return epoch;
}

std::shared_ptr<const LengthOrder::Epoch> LengthOrder::epochOf(int64_t step) const {
  const int64_t number = (step - 1) / steps_;
  const std::lock_guard lock(mutex_);
  for (const auto& kept : kept_) {
    if (kept && kept->number == number) return kept;
  }
  kept_[1] = std::exchange(kept_[0], std::make_shared<const Epoch>(make(number)));
  return kept_[0];
}

}  // namespace pipeshard
