#include "runtime/data/prefetched_data.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/expect_error.h"

namespace pipeshard {
namespace {

using std::chrono::milliseconds;

// A number that says which step, input and row was asked for; takes its time.
class SlowRows : public DataSource {
 public:
  SlowRows(milliseconds each, int64_t epoch, std::atomic<int>& reads)
      : DataSource({{"x", DataType::kInt64, {4}, 0}, {"y", DataType::kInt64, {4}, 0}}),
        each_(each),
        epoch_(epoch),
        reads_(reads) {}
  bool isLastBatch(int64_t step) const override { return epoch_ > 0 && step % epoch_ == 0; }
  int64_t stepsPerEpoch() const override { return epoch_; }

  int64_t bad_step = -1;

 private:
  void write(size_t input, int64_t step, const Shard& box, std::span<std::byte> out) override {
    ++reads_;
    std::this_thread::sleep_for(each_);
    if (step == bad_step) fail(ErrorCode::kConfiguration, "step {} is bad", step);
    for (int64_t k = 0; k < box.size[0]; ++k) {
      const int64_t number = 1000 * step + 100 * static_cast<int64_t>(input) + box.start[0] + k;
      std::memcpy(out.data() + k * sizeof number, &number, sizeof number);
    }
  }

  milliseconds each_;
  int64_t epoch_;
  std::atomic<int>& reads_;
};

// What a rank does in a step: both inputs, in two halves; of a last batch the first half alone.
void expectStep(DataSource& data, int64_t step) {
  for (int64_t half = 0; half < (data.isLastBatch(step) ? 1 : 2); ++half) {
    for (size_t input = 0; input < 2; ++input) {
      int64_t got[2] = {};
      data.fill(input, step, 2 * half, std::as_writable_bytes(std::span(got)));
      EXPECT_EQ(got[0], 1000 * step + 100 * static_cast<int64_t>(input) + 2 * half);
      EXPECT_EQ(got[1], got[0] + 1);
    }
  }
}

TEST(PrefetchedData, GivesWhatTheSourceGives) {
  for (const auto& [epoch, each] : {std::pair(0, 0), {0, 1}, {1, 1}, {2, 1}, {5, 0}, {5, 1}}) {
    std::atomic<int> reads{0};
    const auto data = prefetch(std::make_unique<SlowRows>(milliseconds(each), epoch, reads));
    EXPECT_EQ(data->stepsPerEpoch(), epoch);
    for (int64_t step = 1; step <= 60; ++step) expectStep(*data, step);
    expectStep(*data, 500);  // elsewhere, and on from there
    expectStep(*data, 501);
    expectStep(*data, 502);
    expectStep(*data, 502);
    expectStep(*data, 3);
    expectStep(*data, 4);
  }
}

TEST(PrefetchedData, AStepAgainOrInPartOrInAnotherOrderIsRight) {
  std::atomic<int> reads{0};
  const auto data = prefetch(std::make_unique<SlowRows>(milliseconds(1), 0, reads));
  for (int64_t step = 1; step <= 3; ++step) expectStep(*data, step);
  int64_t whole[4] = {};
  data->fill(1, 3, 0, std::as_writable_bytes(std::span(whole)));  // as an explanation of a failure does
  EXPECT_EQ(whole[3], 3103);
  int64_t one[2] = {};
  data->fill(1, 4, 2, std::as_writable_bytes(std::span(one)));
  EXPECT_EQ(one[0], 4102);
  for (int64_t step = 5; step <= 9; ++step) expectStep(*data, step);
}

TEST(PrefetchedData, ReadsBesideTheStep) {
  std::atomic<int> reads{0};
  const auto data = prefetch(std::make_unique<SlowRows>(milliseconds(40), 0, reads));
  for (int64_t step = 1; step <= 2; ++step) expectStep(*data, step);
  std::chrono::steady_clock::duration waited{};
  for (int64_t step = 3; step <= 8; ++step) {
    std::this_thread::sleep_for(milliseconds(240));  // the step's work; four reads take 160
    const auto start = std::chrono::steady_clock::now();
    expectStep(*data, step);
    waited += std::chrono::steady_clock::now() - start;
  }
  EXPECT_LT(waited, milliseconds(6 * 80));  // of 6 * 160
  EXPECT_LE(reads.load(), 4 * 9);           // none twice; one step ahead
}

TEST(PrefetchedData, AnErrorComesInTheStepThatAsks) {
  std::atomic<int> reads{0};
  auto rows = std::make_unique<SlowRows>(milliseconds(1), 0, reads);
  rows->bad_step = 5;
  const auto data = prefetch(std::move(rows));
  for (int64_t step = 1; step <= 4; ++step) expectStep(*data, step);
  EXPECT_ERROR(expectStep(*data, 5), ErrorCode::kConfiguration, "step 5 is bad");
}

}  // namespace
}  // namespace pipeshard
