#include "runtime/checkpoint/checkpoint_writer.h"

#include <filesystem>
#include <map>

#include "ir/base/error.h"
#include "runtime/checkpoint/rank_state.h"
#include "runtime/files/durable_folder.h"

namespace pipeshard {
namespace {

size_t bytesOf(const Buffer& buffer) { return byteCount(buffer.data_type, buffer.shape); }

SavedPart writePart(const std::string& folder, const std::vector<TensorView>& tensors,
                    const std::map<std::string, std::string>& metadata, SavedPart part) {
  try {
    makeFolder(folder);
    const WrittenFile written =
        writeTensorFile((std::filesystem::path(folder) / part.file.name).string(), tensors, metadata, true);
    part.file.bytes = written.bytes;
    part.file.hash = written.hash;
  } catch (const std::exception& error) {
    part.error = error.what();
  }
  return part;
}

}  // namespace

void CheckpointWriter::save(const Executor& executor, const std::vector<BufferId>& buffers, int64_t step,
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
  std::vector<TensorView> tensors;
  std::map<std::string, std::string> metadata = {{"step", std::to_string(step)}};
  size_t bytes = 0;
  for (const BufferId id : buffers) bytes += bytesOf(program.buffer(id));
  if (copy_.size() != bytes) copy_ = AlignedMemory(bytes);
  size_t at = 0;
  for (const BufferId id : buffers) {
    const Buffer& buffer = program.buffer(id);
    const std::span<std::byte> copy = copy_.bytes().subspan(at, bytesOf(buffer));
    executor.read(id, copy);
    tensors.push_back({stateTensorName(buffer), buffer.data_type, buffer.shape, copy.data()});
    if (buffer.part) metadata.insert(partEntry(tensors.back().name, *buffer.part));
    at += copy.size();
  }
  step_ = step;
  is_writing_ = true;
  thread_ = std::thread(
      [this, folder, part = std::move(part), tensors = std::move(tensors), metadata = std::move(metadata)] {
        saved_(writePart(folder, tensors, metadata, part));
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
