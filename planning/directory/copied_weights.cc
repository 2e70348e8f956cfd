// A kind's program names one place of each weight for all its ranks. That holds since what decides about a
// file's layout (names, types and shapes, in the program's order) is the same on all ranks of a kind.
#include "planning/directory/copied_weights.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "ir/base/amounts.h"
#include "ir/base/error.h"
#include "runtime/files/durable_folder.h"
#include "runtime/files/tensor_file.h"
#include "runtime/files/weights.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

const WeightReference* fileSource(const Buffer& buffer) {
  const auto* weight = buffer.source ? std::get_if<WeightReference>(&*buffer.source) : nullptr;
  return weight != nullptr && !weight->drawn ? weight : nullptr;
}

// As the file has it: not converted, but as the buffer has its axes.
Buffer asStored(const Buffer& buffer) {
  Buffer stored = buffer;
  if (stored.source_type == DataType::kUndefined) stored.source_type = stored.data_type;
  stored.data_type = stored.source_type;
  return stored;
}

uint64_t storedBytes(const Buffer& buffer) { return byteCount(asStored(buffer).data_type, buffer.shape); }

// By buffer: the name of its tensor in the copies; "" for one that is not copied. Two buffers of one box of
// one weight (a parameter and its moving average) share a tensor.
std::vector<std::string> tensorNames(const Program& program) {
  using Box = std::tuple<std::string, uint64_t, Shape, Shape, DataType>;  // of a file
  std::map<Box, std::string> of_boxes;
  std::map<std::string, int> uses;
  std::vector<std::string> names;
  for (const Buffer& buffer : program.buffers) {
    names.emplace_back();
    const WeightReference* weight = fileSource(buffer);
    if (weight == nullptr) continue;
    const Shard box = boxOf(buffer);
    const auto [found, is_new] = of_boxes.try_emplace(
        Box{weight->location, weight->offset, box.start, box.size, asStored(buffer).data_type});
    if (is_new) {
      const std::string name = sourceName(buffer);
      const int use = uses[name]++;
      found->second = use == 0 ? name : fmt::format("{}#{}", name, use);
    }
    names.back() = found->second;
  }
  return names;
}

void requireSpace(const ProgramSet& set, const std::string& folder) {
  uint64_t needed = 0;
  for (const RankBinding& binding : set.ranks) {
    for (const Buffer& buffer : set.kinds[binding.kind].program.buffers) {
      if (fileSource(buffer) != nullptr) needed += storedBytes(buffer);
    }
  }
  std::error_code unknown;
  const fs::space_info space = fs::space(folder, unknown);
  if (unknown || space.available >= needed) return;
  fail(ErrorCode::kDiskFull,
       "--copy-weights needs up to {} for the parts of {} ranks, but {} has {}; plan without it, or to "
       "another "
       "disk (-o)",
       formatBytes(needed), set.ranks.size(), folder, formatBytes(space.available));
}

// Of the rank's program, which is still that of the model's files.
void writeCopies(const Program& program, const std::vector<std::string>& names, const std::string& path) {
  std::map<std::string, std::vector<std::byte>> contents;
  std::vector<TensorView> tensors;
  for (size_t b = 0; b < names.size(); ++b) {
    if (names[b].empty() || contents.contains(names[b])) continue;
    const Buffer stored = asStored(program.buffers.copyAt(b));
    std::vector<std::byte>& content = contents[names[b]];
    content.resize(storedBytes(stored));
    loadInitialContent(stored, "", 0, content);
    tensors.push_back({names[b], stored.data_type, stored.shape, content.data()});
  }
  writeTensorFile(path, tensors);
}

void takeCopies(const TensorFile& file, RankId first, const std::vector<std::string>& names,
                Program& program) {
  for (size_t b = 0; b < names.size(); ++b) {
    if (names[b].empty()) continue;
    Buffer& buffer = program.buffers[b];
    const TensorEntry& entry = *file.find(names[b]);
    if (buffer.source_type == DataType::kUndefined) buffer.source_type = buffer.data_type;
    buffer.source = WeightReference{copiedWeightsFile(first), entry.offset, entry.length};
    buffer.own_copy = true;
  }
}

bool isLaidOutAlike(const TensorFile& a, const TensorFile& b) {
  const auto same = [](const TensorEntry& x, const TensorEntry& y) {
    return x.name == y.name && x.offset == y.offset && x.length == y.length;
  };
  return std::equal(a.tensors().begin(), a.tensors().end(), b.tensors().begin(), b.tensors().end(), same);
}

}  // namespace

void copyWeights(ProgramSet& set, const std::string& folder, const ProgressCallback& progress) {
  requireSpace(set, folder);
  makeFolder(fs::path(folder) / "weights");
  for (const RankId rank : set.ranks.ids()) {
    if (progress) progress(fmt::format("the weights of rank {} of {}", rank.index(), set.ranks.size()));
    const KindId kind = set.ranks[rank].kind;
    const Program program = instantiate(set, rank);
    const std::string path = (fs::path(folder) / copiedWeightsFile(rank)).string();
    writeCopies(program, tensorNames(program), path);
    const RankId alike = set.kinds[kind].program.rank;  // the first of its kind, which has been written
    if (alike < rank &&
        !isLaidOutAlike(TensorFile::open((fs::path(folder) / copiedWeightsFile(alike)).string()),
                        TensorFile::open(path))) {
      fail(ErrorCode::kInternal,
           "the copied weights of ranks {} and {}, of one kind, are laid out in two ways", alike.index(),
           rank.index());
    }
  }
  for (const KindId id : set.kinds.ids()) {
    Program& program = set.kinds[id].program;
    takeCopies(TensorFile::open((fs::path(folder) / copiedWeightsFile(program.rank)).string()), program.rank,
               tensorNames(program), program);
  }
}

uint64_t copiedWeightBytes(const std::string& plan_directory) {
  uint64_t bytes = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(fs::path(plan_directory) / "weights", ignored))
    bytes += entry.file_size(ignored);
  return bytes;
}

}  // namespace pipeshard
