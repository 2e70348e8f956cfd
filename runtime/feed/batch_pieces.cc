#include "runtime/feed/batch_pieces.h"

#include <algorithm>
#include <cstring>

#include <nlohmann/json.hpp>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr size_t kPieceBytes = size_t{256} << 10;
constexpr int kUnderWay = 16;

}  // namespace

void BatchSender::sendMore(const Send& send) {
  while (under_way_ < kUnderWay && step_ <= ring_.published()) {
    const std::span<const std::byte> batch = ring_.batch(step_, input_);
    const std::span<const std::byte> piece =
        batch.subspan(offset_, std::min(kPieceBytes, batch.size() - offset_));
    const size_t offset = offset_;
    const int64_t step = step_;
    const size_t input = input_;
    offset_ += piece.size();
    if (offset_ == batch.size()) {
      offset_ = 0;
      if (++input_ == inputs_) {
        input_ = 0;
        ++step_;
      }
    }
    send({{"step", step},
          {"input", input},
          {"offset", offset},
          {"length", ring_.length(step)},
          {"last", step_ > step}},
         piece);
    ++under_way_;
  }
}

void BatchReceiver::take(const nlohmann::json& batch, std::span<const std::byte> bytes) const {
  const auto step = batch.at("step").get<int64_t>();
  const auto input = batch.at("input").get<size_t>();
  const auto offset = batch.at("offset").get<size_t>();
  if (input >= inputs_) fail(ErrorCode::kInternal, "a batch has input {} of {}", input, inputs_);
  const std::span<std::byte> place = ring_.batch(step, input);
  if (offset > place.size() || bytes.size() > place.size() - offset) {
    fail(ErrorCode::kInternal, "input {} of step {} has {} bytes; a piece of it is {} behind {}", input, step,
         place.size(), bytes.size(), offset);
  }
  if (!bytes.empty()) std::memcpy(place.data() + offset, bytes.data(), bytes.size());
  if (!batch.at("last").get<bool>()) return;
  ring_.setLength(step, batch.at("length").get<size_t>());
  ring_.publish(step);
}

}  // namespace pipeshard
