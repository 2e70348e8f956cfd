#include "runtime/checkpoint/state_watch.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/plan/moving_average.h"
#include "runtime/execute/nan_finder.h"

namespace pipeshard {
namespace {

constexpr size_t kBytesLookedAt = size_t{1} << 23;  // at once

// Values that are not finite.
struct NotFinite {
  std::optional<std::pair<size_t, double>> first;  // element, value
  size_t count = 0;

  // More elements, of which the first has the number `begin`. `was_so`: whether an element was infinite, or
  // NaN, as the value is, from the start.
  template <typename WasSo>
  void add(DataType type, std::span<const std::byte> bytes, size_t begin, const WasSo& was_so) {
    if (!firstNotFinite(type, bytes, true)) return;
    constexpr size_t kAtOnce = size_t{1} << 16;
    const auto size = static_cast<size_t>(byteCount(type, {})), all = bytes.size() / size;
    std::vector<double> values(std::min(all, kAtOnce));
    for (size_t done = 0; done < all; done += kAtOnce) {
      const size_t some = std::min(all - done, kAtOnce);
      convertElements(type, bytes.data() + done * size, DataType::kFloat64, values.data(), some);
      for (size_t i = 0; i < some; ++i) {
        if (std::isfinite(values[i])) continue;
        if (was_so(begin + done + i, values[i])) continue;
        if (!first) first = {begin + done + i, values[i]};
        ++count;
      }
    }
  }

  // Of the part `box` of a tensor; "": there are none. `verb`: what the rank does with it.
  std::string describe(const std::string& name, const Shard& box, std::string_view verb) const {
    if (!first) return "";
    const auto all = static_cast<size_t>(elementCount(box.size));
    return fmt::format("'{}' has {} at {} ({} of the {} values that this rank {} of it {} not finite)", name,
                       describeNotFinite(first->second),
                       shapeToString(placeInBox(box, static_cast<int64_t>(first->first))), count, all, verb,
                       count == 1 ? "is" : "are");
  }
};

// Calls look(bytes, number of the first element) for all of a buffer.
template <typename Look>
void lookAtBuffer(const Executor& executor, BufferId id, std::vector<std::byte>& copy, const Look& look) {
  const Buffer& buffer = executor.program().buffer(id);
  const auto size = static_cast<size_t>(byteCount(buffer.data_type, {}));
  const auto bytes = static_cast<size_t>(byteCount(buffer.data_type, buffer.shape));
  copy.resize(kBytesLookedAt);
  for (size_t begin = 0; begin < bytes; begin += copy.size()) {
    const std::span<std::byte> some = std::span(copy).first(std::min(bytes - begin, copy.size()));
    executor.read(id, some, begin);
    look(some, begin / size);
  }
}

bool isLookedAt(const Buffer& buffer) {
  return !stateTensorName(buffer).empty() && isFloatingPoint(buffer.data_type);
}

}  // namespace

void StateWatch::look(const Executor& executor) {
  const Program& program = executor.program();
  std::vector<std::byte> copy;
  for (const BufferId id : idsBelow<BufferId>(program.buffers.size())) {
    const Buffer& buffer = program.buffer(id);
    // An optimizer's own states are finite as long as gradients are.
    const bool is_own = buffer.kind == BufferKind::kOptimizerState && !buffer.value.ends_with(kMovingAverage);
    if (!isLookedAt(buffer) || is_own) continue;
    lookAtBuffer(executor, id, copy, [&](std::span<const std::byte> bytes, size_t begin) {
      if (!firstNotFinite(buffer.data_type, bytes, true)) return;
      AtStart& start = at_start_[id];
      for (std::vector<bool>* kind : {&start.infinite, &start.nan})
        kind->resize(static_cast<size_t>(elementCount(buffer.shape)));
      std::vector<double> values(bytes.size() / static_cast<size_t>(byteCount(buffer.data_type, {})));
      convertElements(buffer.data_type, bytes.data(), DataType::kFloat64, values.data(), values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        start.infinite[begin + i] = std::isinf(values[i]);
        start.nan[begin + i] = std::isnan(values[i]);
      }
    });
  }
}

bool StateWatch::wasSo(BufferId buffer, size_t element, double value) const {
  const auto found = at_start_.find(buffer);
  if (found == at_start_.end()) return false;
  return std::isnan(value) ? found->second.nan[element] : found->second.infinite[element];
}

std::string StateWatch::fault(BufferId buffer, const TensorView& tensor, const Shape& start,
                              size_t first) const {
  const auto bytes = static_cast<size_t>(byteCount(tensor.data_type, tensor.shape));
  NotFinite values;
  if (!isFloatingPoint(tensor.data_type)) return "";
  values.add(tensor.data_type, {static_cast<const std::byte*>(tensor.data), bytes}, 0,
             [&](size_t i, double value) { return wasSo(buffer, first + i, value); });
  return values.describe(tensor.name, Shard{start, tensor.shape}, "saves");
}

void StateWatch::requireFinite(const Executor& executor) const {
  const Program& program = executor.program();
  std::vector<std::byte> copy;
  for (const BufferId id : idsBelow<BufferId>(program.buffers.size())) {
    const Buffer& buffer = program.buffer(id);
    if (!isLookedAt(buffer)) continue;
    NotFinite values;
    lookAtBuffer(executor, id, copy, [&](std::span<const std::byte> bytes, size_t begin) {
      values.add(buffer.data_type, bytes, begin, [&](size_t i, double value) { return wasSo(id, i, value); });
    });
    const std::string fault = values.describe(stateTensorName(buffer), boxOf(buffer), "keeps");
    if (fault.empty()) continue;
    fail(ErrorCode::kNotANumber,
         "rank {}: after the last step {}; the updates have been applied, and nothing can be trained from "
         "what they have left. Lower the learning rate, or look at the data; `pipeshard run --on-nan find` "
         "names the first value that is no number, or infinite",
         program.rank, fault);
  }
}

}  // namespace pipeshard
