#include "runtime/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "runtime/checkpoint/rank_state.h"
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
  Shape start;      // in the whole tensor
  BufferId buffer;  // of which it is a part, from element `first` on
  size_t first = 0;
};

SavedPart writePart(const std::string& folder, const StateWatch& state, const std::vector<Content>& contents,
                    const std::map<std::string, std::string>& metadata, SavedPart part) {
  try {
    std::vector<TensorView> tensors;
    for (const Content& content : contents) {
      part.error = state.fault(content.buffer, content.tensor, content.start, content.first);
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
    content.buffer = saved.buffer;
    content.first = firstByteOf(buffer, saved) / static_cast<size_t>(byteCount(buffer.data_type, {}));
    at += copy.size();
  }
  step_ = step;
  is_writing_ = true;
  thread_ = std::thread(
      [this, folder, part = std::move(part), contents = std::move(contents), metadata = std::move(metadata)] {
        saved_(writePart(folder, state_, contents, metadata, part));
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
