#include "runtime/checkpoint/rank_state.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>

#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "ir/graph/weight_role.h"

namespace pipeshard {
namespace {

bool haveCommonElement(const Shard& box, const Shard& other) {
  for (size_t axis = 0; axis < box.start.size(); ++axis) {
    if (box.start[axis] >= other.start[axis] + other.size[axis] ||
        other.start[axis] >= box.start[axis] + box.size[axis])
      return false;
  }
  return true;
}

}  // namespace

std::string stateTensorName(const Buffer& buffer) {
  switch (buffer.kind) {
    case BufferKind::kParameter: return std::string(kParameterPrefix) + buffer.value;
    case BufferKind::kOptimizerState: return std::string(kStatePrefix) + buffer.value;
    case BufferKind::kForwardState: return std::string(kForwardStatePrefix) + buffer.value;
    default: return "";
  }
}

bool haveOneShape(const Shape& shape, const Shape& other) {
  return isStoredAs(shape, other) || isStoredAs(other, shape);
}

std::vector<BufferId> resultBuffers(const Program& program) {
  std::vector<BufferId> saved;
  for (const Result& result : program.results) {
    const bool is_state = result.kind == Result::Kind::kParameter ||
                          result.kind == Result::Kind::kOptimizerState ||
                          result.kind == Result::Kind::kForwardState;
    if (is_state && !stateTensorName(program.buffer(result.buffer)).empty()) saved.push_back(result.buffer);
  }
  return saved;
}

std::vector<int> filesFor(const Program& program, const Checkpoint& checkpoint) {
  std::multimap<std::string, Shard> boxes;
  for (const Buffer& buffer : program.buffers) {
    if (const std::string name = stateTensorName(buffer); !name.empty()) boxes.emplace(name, boxOf(buffer));
  }
  std::set<int> files;
  for (const CheckpointTensor& tensor : checkpoint.tensors) {
    const auto [begin, end] = boxes.equal_range(tensor.name);
    for (const CheckpointSlice& slice : tensor.slices) {
      // Where the program has other axes all of the tensor is read.
      const bool is_held = std::any_of(begin, end, [&](const auto& held) {
        return slice.start.size() != held.second.start.size() ||
               haveCommonElement(held.second, {slice.start, slice.shape});
      });
      if (is_held) files.insert(slice.file);
    }
  }
  return {files.begin(), files.end()};
}

JoinedTensors openStateOf(const Program& program, const Checkpoint& checkpoint) {
  const std::vector<int> files = filesFor(program, checkpoint);
  std::vector<int> missing;
  std::ranges::set_intersection(files, checkpoint.elsewhere, std::back_inserter(missing));
  if (!missing.empty()) {
    fail(ErrorCode::kMissingInput,
         "checkpoint {}: what this rank needs of it is not on this host's disk; copy it: {}",
         checkpoint.directory, describeElsewhere(checkpoint, missing));
  }
  std::vector<std::string> paths;
  for (const int file : files) {
    paths.push_back((std::filesystem::path(checkpoint.directory) / checkpoint.files[file].name).string());
  }
  return JoinedTensors::openSome(paths, fmt::format("checkpoint {}", checkpoint.directory));
}

namespace {

// A part of a tensor that the checkpoint may have with other axes: it was made with other --patterns.
void readPart(const JoinedTensors& tensors, const std::string& name, const Buffer& buffer,
              std::span<std::byte> out) {
  const Shape& whole = wholeShape(buffer);
  if (tensors.find(name).whole == whole) return tensors.readBox(name, boxOf(buffer), out);
  const JoinedTensors::Tensor all = tensors.read(name);
  copyOutOfBox(buffer.data_type, all.bytes, whole, boxOf(buffer), out);
}

}  // namespace

void adoptState(Executor& executor, const JoinedTensors& tensors) {
  for (size_t b = 0; b < executor.program().buffers.size(); ++b) {
    const Buffer& buffer = executor.program().buffer(BufferId(b));
    const std::string name = stateTensorName(buffer);
    if (name.empty()) continue;
    const auto fits = [&] {
      if (!tensors.has(name)) return false;
      const JoinedTensors::Pieces& found = tensors.find(name);
      return found.data_type == buffer.data_type && haveOneShape(wholeShape(buffer), found.whole);
    };
    if (!fits()) {
      fail(ErrorCode::kConfiguration, "the {} has no '{}' of {}{}, which this rank keeps",
           tensors.description(), name, dataTypeName(buffer.data_type), shapeToString(wholeShape(buffer)));
    }
    executor.write(BufferId(b), [&](std::span<std::byte> out) { readPart(tensors, name, buffer, out); });
  }
}

}  // namespace pipeshard
