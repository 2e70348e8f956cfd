// Which rows make a batch, where they are of several lengths: each waits with those of its length; as soon as
// they are a batch they are the next one. What waits at the end joins the next longer ones, which may fill a
// batch then; so all batches are whole but what is left over at last, which is of the longest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace pipeshard {

template <typename Row>
class LengthGroups {
 public:
  // `count` lengths, 0 the longest (StepSize::length). `take` gets every batch that is whole.
  using Take = std::function<void(size_t length, std::vector<Row> rows)>;
  LengthGroups(size_t count, int64_t batch, Take take)
      : batch_(batch), take_(std::move(take)), waiting_(count) {}

  // A row whose shortest length is this.
  void put(Row row, size_t length) {
    std::vector<Row>& waiting = waiting_[length];
    waiting.push_back(std::move(row));
    if (std::ssize(waiting) == batch_) take_(length, std::exchange(waiting, {}));
  }

  // No more come. Those that fill no batch.
  std::vector<Row> finish() {
    for (size_t length = waiting_.size() - 1; length > 0; --length) {
      for (Row& row : std::exchange(waiting_[length], {})) put(std::move(row), length - 1);
    }
    return std::exchange(waiting_[0], {});
  }

 private:
  int64_t batch_;
  Take take_;
  std::vector<std::vector<Row>> waiting_;  // by length
};

}  // namespace pipeshard
