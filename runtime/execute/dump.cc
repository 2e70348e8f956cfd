#include "runtime/execute/dump.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <span>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/tensor_box.h"

namespace pipeshard {
namespace {

bool isSelected(const DumpSelection& selection, Result::Kind kind) {
  switch (kind) {
    case Result::Kind::kLoss: return true;
    case Result::Kind::kGradient: return selection.gradients;
    case Result::Kind::kParameter: return selection.parameters;
    case Result::Kind::kOptimizerState:
    case Result::Kind::kForwardState: return selection.states;
    case Result::Kind::kOutput: return selection.outputs;
  }
  return false;
}

}  // namespace

std::string dumpFileName(int64_t step, RankId rank) {
  return fmt::format("step-{:06}.rank-{:04}.safetensors", step, rank.index());
}

std::string dumpTensorName(const Result& result) {
  const std::string window = result.update < 0 ? "" : fmt::format("update{}/", result.update);
  switch (result.kind) {
    case Result::Kind::kLoss: return window + "loss";
    case Result::Kind::kGradient: return window + "gradient/" + result.name;
    case Result::Kind::kParameter: return "parameter/" + result.name;
    case Result::Kind::kOptimizerState: return "state/" + result.name + "/" + result.state;
    case Result::Kind::kForwardState: return "forward_state/" + result.name;
    case Result::Kind::kOutput: return fmt::format("microbatch{}/output/{}", result.microbatch, result.name);
  }
  return {};
}

WindowGradients::WindowGradients(Executor& executor)
    : executor_(executor), kept_(executor.program().results.size()) {
  executor.setUpdateObserver([this](const Instruction& update) {
    const Program& program = executor_.program();
    for (size_t i = 0; i < program.results.size(); ++i) {
      const Result& result = program.results[i];
      if (result.kind != Result::Kind::kGradient || result.update != updateOf(program, update)) continue;
      if (std::find(update.inputs.begin(), update.inputs.end(), result.buffer) == update.inputs.end())
        continue;
      const std::span<std::byte> content = executor_.content(result.buffer);
      kept_[i].assign(content.begin(), content.end());
    }
  });
}

WindowGradients::~WindowGradients() { executor_.setUpdateObserver(nullptr); }

const std::byte* WindowGradients::find(const Result& result) const {
  const std::vector<Result>& results = executor_.program().results;
  PIPESHARD_CHECK(&result >= results.data() && &result < results.data() + results.size(),
                  "not a result of the executor's program");
  return kept_[&result - results.data()].data();
}

std::string writeStepDump(const Executor& executor, const std::string& directory, int64_t step,
                          const DumpSelection& selection, const WindowGradients* gradients) {
  const Program& program = executor.program();
  std::vector<TensorView> tensors;
  std::map<std::string, std::string> metadata = {{"step", std::to_string(step)},
                                                 {"rank", std::to_string(program.rank.index())}};
  for (const Result& result : program.results) {
    if (!isSelected(selection, result.kind)) continue;
    const Buffer& buffer = program.buffer(result.buffer);
    const bool passes = result.kind == Result::Kind::kGradient && result.update >= 0;
    if (passes && gradients == nullptr) continue;
    const std::byte* content = passes ? gradients->find(result) : executor.content(result.buffer).data();
    tensors.push_back({dumpTensorName(result), buffer.data_type, buffer.shape, content});
    if (buffer.part) metadata.insert(partEntry(tensors.back().name, *buffer.part));
  }
  std::string path = (std::filesystem::path(directory) / dumpFileName(step, program.rank)).string();
  writeTensorFile(path, tensors, metadata);
  return path;
}

void adoptStepDump(Executor& executor, const JoinedTensors& dump) {
  for (const Result& result : executor.program().results) {
    const Buffer& buffer = executor.program().buffer(result.buffer);
    if (!isPersistent(buffer.kind)) continue;
    const std::string name = dumpTensorName(result);
    const JoinedTensors::Pieces& found = dump.find(name);
    PIPESHARD_CHECK(found.data_type == buffer.data_type && found.whole == wholeShape(buffer),
                    "'{}' is {}{} in the dump, {}{} in the program", name, dataTypeName(found.data_type),
                    shapeToString(found.whole), dataTypeName(buffer.data_type),
                    shapeToString(wholeShape(buffer)));
    dump.readBox(name, boxOf(buffer), executor.content(result.buffer));
  }
}

StepDump StepDump::open(const std::string& directory, int64_t step, int ranks) {
  std::vector<std::string> paths;
  for (RankId rank : idsBelow<RankId>(ranks))
    paths.push_back((std::filesystem::path(directory) / dumpFileName(step, rank)).string());
  return StepDump(JoinedTensors::open(paths, fmt::format("dump of step {} in {}", step, directory)));
}

}  // namespace pipeshard
