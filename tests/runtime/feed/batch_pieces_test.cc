#include "runtime/feed/batch_pieces.h"

#include <unistd.h>

#include <algorithm>
#include <deque>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/expect_error.h"

namespace pipeshard {
namespace {

// 400 KB of "x" in pieces, four bytes of "y", and a drawn input, which has no place.
std::vector<ProgramInput> inputs() {
  ProgramInput x, y, z;
  x.name = "x";
  x.data_type = DataType::kFloat32;
  x.shape = {100, 1000};
  y.name = "y";
  y.data_type = DataType::kFloat32;
  y.shape = {1};
  z = y;
  z.name = "z";
  z.drawn.emplace();
  return {x, y, z};
}

void fill(const BatchRing& ring, int64_t step) {
  for (size_t input = 0; input < 2; ++input) {
    std::span<std::byte> batch = ring.batch(step, input);
    for (size_t i = 0; i < batch.size(); ++i) batch[i] = static_cast<std::byte>(i * 7 + step + input);
  }
  ring.setLength(step, step % 3);
  ring.publish(step);
}

TEST(BatchPieces, ArriveWholeAndNoMoreAreUnderWayThanMayBe) {
  const BatchRing ring = BatchRing::create(inputs(), 4);
  const BatchReceiver receiver(inputs(), 4);
  const BatchRing there = BatchRing::inherit(::dup(receiver.descriptor()), inputs());
  BatchSender sender(ring, 3, 4);
  std::deque<std::pair<nlohmann::json, std::vector<std::byte>>> wire;
  const auto send = [&](nlohmann::json piece, std::span<const std::byte> bytes) {
    wire.emplace_back(std::move(piece), std::vector(bytes.begin(), bytes.end()));
  };
  sender.sendMore(send);
  EXPECT_TRUE(wire.empty());
  for (int64_t step = 5; step < 5 + ring.slots(); ++step) fill(ring, step);
  sender.sendMore(send);
  EXPECT_EQ(wire.size(), 16u);  // of 4 pieces a step
  EXPECT_EQ(there.published(), 4);
  while (!wire.empty()) {
    receiver.take(wire.front().first, wire.front().second);
    wire.pop_front();
    sender.acknowledge();
    sender.sendMore(send);
  }
  EXPECT_EQ(there.published(), 4 + ring.slots());
  for (int64_t step = 5; step < 5 + ring.slots(); ++step) {
    for (size_t input = 0; input < 3; ++input) {
      EXPECT_TRUE(std::ranges::equal(there.batch(step, input), ring.batch(step, input)))
          << step << " " << input;
    }
    EXPECT_EQ(there.length(step), static_cast<size_t>(step % 3));
  }
}

TEST(BatchPieces, ThatDoNotFitAreRefused) {
  const BatchReceiver receiver(inputs(), 0);
  nlohmann::json piece = {{"step", 1}, {"input", 3}, {"offset", 0}, {"length", 0}, {"last", false}};
  const std::vector<std::byte> bytes(1);
  EXPECT_ERROR(receiver.take(piece, bytes), ErrorCode::kInternal, "input 3 of 3");
  piece["input"] = 1;
  piece["offset"] = 4;
  EXPECT_ERROR(receiver.take(piece, bytes), ErrorCode::kInternal, "has 4 bytes; a piece of it is 1 behind 4");
  piece["offset"] = uint64_t{1} << 63;
  EXPECT_ERROR(receiver.take(piece, bytes), ErrorCode::kInternal, "has 4 bytes");
}

}  // namespace
}  // namespace pipeshard
