#include "runtime/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "ir/plan/moving_average.h"
#include "runtime/checkpoint/rank_state.h"
#include "runtime/execute/nan_finder.h"
#include "runtime/files/durable_folder.h"

namespace pipeshard {
namespace {

size_t bytesOf(const Buffer& buffer, const SavedBuffer& saved) {
  return byteCount(buffer.data_type, boxOfRows(buffer.shape, saved.rows).size);
}

// Rows lie one behind the other.
size_t firstByteOf(const Buffer& buffer, const SavedBuffer& saved) {
  if (!saved.rows) return 0;
  return byteCount(buffer.data_type, boxOfRows(buffer.shape, RowRange{0, saved.rows->first}).size);
}

// Where the box of it that is saved belongs, unless that is the whole tensor.
std::optional<BufferPart> partOf(const Buffer& buffer, const SavedBuffer& saved) {
  if (!saved.rows) return buffer.part;
  BufferPart part{wholeShape(buffer), boxOf(buffer).start};
  const Shard box = boxOfRows(buffer.shape, saved.rows);
  for (size_t axis = 0; axis < part.start.size(); ++axis) part.start[axis] += box.start[axis];
  return part;
}

// A part of a tensor as it is saved.
struct Content {
  TensorView tensor;
  Shape start;  // in the whole tensor
  // Which elements of the buffer were infinite at the start, and which of them is the part's first; nullptr:
  // none were.
  const std::vector<bool>* was_infinite = nullptr;
  size_t first = 0;
};

// What values it has that are not finite, and have become so; "": none.
std::string faultOf(const Content& content) {
  constexpr size_t kAtOnce = size_t{1} << 16;
  const TensorView& tensor = content.tensor;
  const auto* const data = static_cast<const std::byte*>(tensor.data);
  const auto bytes = static_cast<size_t>(byteCount(tensor.data_type, tensor.shape));
  if (!firstNotFinite(tensor.data_type, {data, bytes}, true)) return "";
  const auto size = static_cast<size_t>(byteCount(tensor.data_type, {})), all = bytes / size;
  std::vector<double> values(std::min(all, kAtOnce));
  std::optional<std::pair<size_t, double>> first;
  size_t count = 0;
  for (size_t begin = 0; begin < all; begin += kAtOnce) {
    const size_t some = std::min(all - begin, kAtOnce);
    convertElements(tensor.data_type, data + begin * size, DataType::kFloat64, values.data(), some);
    for (size_t i = 0; i < some; ++i) {
      if (std::isfinite(values[i])) continue;
      const bool was_so =
          content.was_infinite != nullptr && (*content.was_infinite)[content.first + begin + i];
      if (was_so && std::isinf(values[i])) continue;
      if (!first) first = {begin + i, values[i]};
      ++count;
    }
  }
  if (!first) return "";
  const Shape place = placeInBox(Shard{content.start, tensor.shape}, static_cast<int64_t>(first->first));
  return fmt::format("'{}' has {} at {} ({} of the {} values that this rank saves of it {} not finite)",
                     tensor.name, describeNotFinite(first->second), shapeToString(place), count, all,
                     count == 1 ? "is" : "are");
}

SavedPart writePart(const std::string& folder, const std::vector<Content>& contents,
                    const std::map<std::string, std::string>& metadata, SavedPart part) {
  try {
    std::vector<TensorView> tensors;
    for (const Content& content : contents) {
      part.error = faultOf(content);
      part.not_finite = !part.error.empty();
      if (part.not_finite) return part;
      tensors.push_back(content.tensor);
    }
    makeFolder(folder, FileAccess::kOwner);
    const WrittenFile written = writeTensorFile((std::filesystem::path(folder) / part.file.name).string(),
                                                tensors, metadata, /*durable=*/true, FileAccess::kOwner);
    part.file.bytes = written.bytes;
    part.file.hash = written.hash;
  } catch (const std::exception& error) {
    part.error = error.what();
  }
  return part;
}

}  // namespace

void CheckpointWriter::watch(const Executor& executor) {
  constexpr size_t kAtOnce = size_t{1} << 23;  // bytes
  const Program& program = executor.program();
  std::vector<std::byte> copy(kAtOnce);
  for (const BufferId id : idsBelow<BufferId>(program.buffers.size())) {
    const Buffer& buffer = program.buffer(id);
    if (stateTensorName(buffer).empty() || !isFloatingPoint(buffer.data_type)) continue;
    // An optimizer's own states are finite as long as gradients are.
    if (buffer.kind == BufferKind::kOptimizerState && !buffer.value.ends_with(kMovingAverage)) continue;
    const auto size = static_cast<size_t>(byteCount(buffer.data_type, {}));
    const auto bytes = static_cast<size_t>(byteCount(buffer.data_type, buffer.shape));
    for (size_t begin = 0; begin < bytes; begin += kAtOnce) {
      const std::span<std::byte> some = std::span(copy).first(std::min(bytes - begin, kAtOnce));
      executor.read(id, some, begin);
      if (!firstNotFinite(buffer.data_type, some, true)) continue;
      std::vector<bool>& infinite = infinite_[id];
      infinite.resize(bytes / size);
      std::vector<double> values(some.size() / size);
      convertElements(buffer.data_type, some.data(), DataType::kFloat64, values.data(), values.size());
      for (size_t i = 0; i < values.size(); ++i) infinite[begin / size + i] = std::isinf(values[i]);
    }
  }
}

void CheckpointWriter::save(const Executor& executor, const std::vector<SavedBuffer>& buffers, int64_t step,
                            const std::string& folder, std::chrono::milliseconds patience) {
  const Program& program = executor.program();
  SavedPart part{step, {checkpointFileName(program.rank), 0, 0}, ""};
  if (!isFreeWithin(patience)) {
    part.error = fmt::format(
        "the one of step {} is still being written, {:.1f} s after this one was due: the disk is slower than "
        "--every asks for",
        step_, std::chrono::duration<double>(patience).count());
    saved_(part);
    return;
  }
  finish();
  std::vector<Content> contents;
  std::map<std::string, std::string> metadata = {{"step", std::to_string(step)}};
  size_t bytes = 0;
  for (const SavedBuffer& saved : buffers) bytes += bytesOf(program.buffer(saved.buffer), saved);
  if (copy_.size() != bytes) copy_ = AlignedMemory(bytes);
  size_t at = 0;
  for (const SavedBuffer& saved : buffers) {
    const Buffer& buffer = program.buffer(saved.buffer);
    const Shard box = boxOfRows(buffer.shape, saved.rows);
    const std::span<std::byte> copy = copy_.bytes().subspan(at, bytesOf(buffer, saved));
    executor.read(saved.buffer, copy, firstByteOf(buffer, saved));
    Content& content = contents.emplace_back();
    content.tensor = {stateTensorName(buffer), buffer.data_type, box.size, copy.data()};
    const std::optional<BufferPart> part = partOf(buffer, saved);
    content.start = part ? part->start : Shape(box.size.size(), 0);
    if (part) metadata.insert(partEntry(content.tensor.name, *part));
    if (const auto found = infinite_.find(saved.buffer); found != infinite_.end()) {
      content.was_infinite = &found->second;
      content.first = firstByteOf(buffer, saved) / static_cast<size_t>(byteCount(buffer.data_type, {}));
    }
    at += copy.size();
  }
  step_ = step;
  is_writing_ = true;
  thread_ = std::thread(
      [this, folder, part = std::move(part), contents = std::move(contents), metadata = std::move(metadata)] {
        saved_(writePart(folder, contents, metadata, part));
        const std::lock_guard lock(mutex_);
        is_writing_ = false;
        changed_.notify_all();
      });
}

bool CheckpointWriter::isFreeWithin(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, [&] { return !is_writing_; });
}

void CheckpointWriter::finish() {
  if (thread_.joinable()) thread_.join();
}

}  // namespace pipeshard
