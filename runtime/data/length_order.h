// Which rows make a batch, and in which order batches come, where rows are of several lengths: every batch is
// of rows of one length, but for those that are left over.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace pipeshard {

// An epoch takes the rows in their order, or in that of RowPermutation, and groups them as LengthGroups does:
// all batches are whole but the epoch's last, which is of the longest. All this is a function of the rows'
// lengths, the batch, the seed and the epoch alone.
//
//   lengths 1 1 0 1, batches of 2:  rows {0, 1} of length 1; rows {2, 3} of length 0, the longest
//
// Takes 16 bytes a row, and 1. Several threads may ask.
class LengthOrder {
 public:
  // `lengths`: of every row, the StepSize::length of the shortest sequences that hold it; all below `count`.
  // `drop_last`: rows that do not fill a batch are left out. `seed`: of shuffled rows.
  LengthOrder(std::vector<uint8_t> lengths, size_t count, int64_t batch, bool drop_last,
              std::optional<uint64_t> seed);

  // Of a step, from 1 on.
  size_t lengthOf(int64_t step) const;
  // The batch's; fewer of an epoch's last one.
  std::vector<int64_t> rowsOf(int64_t step) const;

 private:
  struct Epoch {
    int64_t number = -1;
    std::vector<int64_t> rows;     // batch after batch
    std::vector<uint8_t> lengths;  // of the steps
  };

  Epoch make(int64_t number) const;
  std::shared_ptr<const Epoch> epochOf(int64_t step) const;
  int64_t placeInEpoch(int64_t step) const { return (step - 1) % steps_; }

  std::vector<uint8_t> lengths_;
  size_t count_;
  int64_t batch_;
  int64_t steps_;  // of an epoch
  bool drop_last_;
  std::optional<uint64_t> seed_;
  mutable std::mutex mutex_;                      // of what follows
  mutable std::shared_ptr<const Epoch> kept_[2];  // the newest first
};

}  // namespace pipeshard
