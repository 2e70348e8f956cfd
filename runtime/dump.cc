#include "runtime/dump.h"

#include <cstring>
#include <filesystem>

#include "ir/error.h"
#include "runtime/convert.h"

namespace pipeshard {
namespace {

bool isSelected(const DumpSelection& selection, Result::Kind kind) {
  switch (kind) {
    case Result::Kind::kLoss: return true;
    case Result::Kind::kGradient: return selection.gradients;
    case Result::Kind::kParameter: return selection.parameters;
    case Result::Kind::kOptimizerState:
    case Result::Kind::kForwardState: return selection.states;
  }
  return false;
}

}  // namespace

std::string dumpFileName(int64_t step, int rank) { return fmt::format("step-{:06}.rank-{:04}.safetensors", step, rank); }

std::string dumpTensorName(const Result& result) {
  switch (result.kind) {
    case Result::Kind::kLoss: return "loss";
    case Result::Kind::kGradient: return "gradient/" + result.name;
    case Result::Kind::kParameter: return "parameter/" + result.name;
    case Result::Kind::kOptimizerState: return "state/" + result.name + "/" + result.state;
    case Result::Kind::kForwardState: return "forward_state/" + result.name;
  }
  return {};
}

std::string writeStepDump(const Executor& executor, const std::string& directory, int64_t step, const DumpSelection& selection) {
  const Program& program = executor.program();
  std::vector<TensorView> tensors;
  for (const Result& result : program.results) {
    if (!isSelected(selection, result.kind)) continue;
    const Buffer& buffer = program.buffer(result.buffer);
    tensors.push_back({dumpTensorName(result), buffer.data_type, buffer.shape, executor.content(result.buffer).data()});
  }
  std::string path = (std::filesystem::path(directory) / dumpFileName(step, program.rank)).string();
  writeTensorFile(path, tensors, {{"step", std::to_string(step)}, {"rank", std::to_string(program.rank)}});
  return path;
}

void adoptStepDump(Executor& executor, const StepDump& dump) {
  for (const Result& result : executor.program().results) {
    if (!isPersistent(executor.program().buffer(result.buffer).kind)) continue;
    const std::span<std::byte> content = executor.content(result.buffer);
    const StepDump::Tensor tensor = dump.read(dumpTensorName(result));
    PIPESHARD_CHECK(tensor.bytes.size() == content.size(), "'{}' has {} bytes in the dump, {} in the program", tensor.name,
                    tensor.bytes.size(), content.size());
    std::memcpy(content.data(), tensor.bytes.data(), content.size());
  }
}

std::vector<double> StepDump::Tensor::elements() const {
  std::vector<double> numbers(static_cast<size_t>(elementCount(shape)));
  convertElements(data_type, bytes.data(), DataType::kFloat64, numbers.data(), numbers.size());
  return numbers;
}

StepDump StepDump::open(const std::string& directory, int64_t step, int ranks) {
  StepDump dump;
  dump.description_ = fmt::format("step {} in {}", step, directory);
  for (int rank = 0; rank < ranks; ++rank) {
    dump.files_.push_back(TensorFile::open((std::filesystem::path(directory) / dumpFileName(step, rank)).string()));
    for (const TensorEntry& entry : dump.files_.back().tensors()) {
      const auto [other, is_new] = dump.file_of_.emplace(entry.name, static_cast<size_t>(rank));
      if (!is_new)
        fail(ErrorCode::kBadModel, "dump of {}: '{}' is in the files of ranks {} and {}", dump.description_, entry.name, other->second,
             rank);
    }
  }
  for (const auto& [name, file] : dump.file_of_) dump.names_.push_back(name);
  return dump;
}

bool StepDump::has(std::string_view name) const { return file_of_.find(name) != file_of_.end(); }

StepDump::Tensor StepDump::read(std::string_view name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) fail(ErrorCode::kMissingInput, "the dump of {} holds no tensor '{}'", description_, name);
  const TensorFile& file = files_[found->second];
  const TensorEntry& entry = *file.find(name);
  return {entry.name, entry.data_type, entry.shape, file.read(entry)};
}

}  // namespace pipeshard
