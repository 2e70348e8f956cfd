#include "runtime/execute/dump.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <list>
#include <optional>
#include <span>
#include <utility>

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
    case Result::Kind::kMeasure: return true;
  }
  return false;
}

std::vector<std::byte> transposedBytes(std::span<const std::byte> matrix, const Shape& shape, DataType type) {
  std::vector<std::byte> bytes(matrix.size());
  transposeMatrix(matrix, shape.front(), elementCount(shape) / shape.front(), dataTypeSize(type), bytes);
  return bytes;
}

// Of a result's buffer in the model's orientation: the first of two axes that are one in the model.
size_t dividedAxisOf(const Result& result) { return result.divided_axis - (result.transposed ? 1 : 0); }

// A part has the model's axes where it has all of the two that are one there.
bool hasModelsAxes(const Result& result, const Buffer& buffer) {
  if (result.divided_axis < 0) return true;
  const Shape& whole = wholeShape(buffer);
  const auto hasAll = [&](int axis) { return buffer.shape[axis] == whole[axis]; };
  return hasAll(result.divided_axis) && hasAll(result.divided_axis + 1);
}

// In the model's orientation; `joins`: and with its axes.
Shape modelsShape(const Result& result, Shape shape, bool joins) {
  if (result.transposed) shape = firstAxisLast(std::move(shape));
  return joins && result.divided_axis >= 0 ? withAxesJoined(std::move(shape), dividedAxisOf(result)) : shape;
}

// A box with two axes that the dump has as one: entry by entry of the first of the two.
void readEntries(const JoinedTensors& dump, const std::string& name, const Shard& box, const Shape& whole,
                 size_t axis, DataType type, std::span<std::byte> out) {
  Shard entry = box;
  entry.size[axis] = 1;
  std::vector<std::byte> bytes(byteCount(type, entry.size));
  for (int64_t e = 0; e < box.size[axis]; ++e) {
    entry.start[axis] = box.start[axis] + e;
    dump.readBox(name, withAxesJoined(entry, whole, axis), bytes);
    Shard place{Shape(box.size.size(), 0), entry.size};
    place.start[axis] = e;
    copyIntoBox(type, bytes, box.size, place, out);
  }
}

}  // namespace

std::string dumpFileName(int64_t step, RankId rank) {
  return fmt::format("step-{:06}.rank-{:04}.safetensors", step, rank.index());
}

std::optional<int64_t> stepOfDump(std::string_view file_name) {
  const auto takeNumber = [&](std::string_view before) -> std::optional<int64_t> {
    if (!file_name.starts_with(before)) return std::nullopt;
    file_name.remove_prefix(before.size());
    int64_t number = 0;
    const auto [end, error] = std::from_chars(file_name.data(), file_name.data() + file_name.size(), number);
    if (error != std::errc() || number < 0) return std::nullopt;
    file_name.remove_prefix(end - file_name.data());
    return number;
  };
  const std::string whole(file_name);
  const std::optional<int64_t> step = takeNumber("step-");
  const std::optional<int64_t> rank = step ? takeNumber(".rank-") : std::nullopt;
  if (!rank || *rank > INT32_MAX || dumpFileName(*step, RankId(static_cast<int>(*rank))) != whole)
    return std::nullopt;
  return step;
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
    case Result::Kind::kMeasure: return "measure/" + result.name;
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
      const HostView content = executor_.view(result.buffer);
      kept_[i].assign(content.bytes().begin(), content.bytes().end());
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
  std::list<HostView> views;
  std::list<std::vector<std::byte>> transposed;
  std::map<std::string, std::string> metadata = {{"step", std::to_string(step)},
                                                 {"rank", std::to_string(program.rank.index())}};
  for (const Result& result : program.results) {
    if (!isSelected(selection, result.kind)) continue;
    const Buffer& buffer = program.buffer(result.buffer);
    const bool passes = result.kind == Result::Kind::kGradient && result.update >= 0;
    if (passes && gradients == nullptr) continue;
    const std::byte* content =
        passes ? gradients->find(result) : views.emplace_back(executor.view(result.buffer)).data();
    TensorView tensor = {dumpTensorName(result), buffer.data_type, buffer.shape, content};
    std::optional<BufferPart> part = buffer.part;
    if (result.transposed) {
      const size_t size = byteCount(buffer.data_type, buffer.shape);
      transposed.push_back(transposedBytes({content, size}, buffer.shape, buffer.data_type));
      tensor.data = transposed.back().data();
    }
    const bool joins = hasModelsAxes(result, buffer);
    tensor.shape = modelsShape(result, std::move(tensor.shape), joins);
    if (part) {
      const Shape start = result.transposed ? firstAxisLast(part->start) : part->start;
      const Shape whole = modelsShape(result, part->whole, false);
      const Shard box{start, modelsShape(result, buffer.shape, false)};
      *part = {modelsShape(result, part->whole, joins),
               joins && result.divided_axis >= 0 ? withAxesJoined(box, whole, dividedAxisOf(result)).start
                                                 : start};
    }
    tensors.push_back(std::move(tensor));
    if (part) metadata.insert(partEntry(tensors.back().name, *part));
  }
  std::string path = (std::filesystem::path(directory) / dumpFileName(step, program.rank)).string();
  writeTensorFile(path, tensors, metadata, /*durable=*/false, FileAccess::kOwner);
  return path;
}

void readResult(const JoinedTensors& dump, const Result& result, const Buffer& buffer,
                std::span<std::byte> out) {
  const std::string name = dumpTensorName(result);
  const Shard box = result.transposed ? firstAxisLast(boxOf(buffer)) : boxOf(buffer);
  std::vector<std::byte> matrix(result.transposed ? out.size() : 0);
  const std::span<std::byte> oriented = result.transposed ? std::span<std::byte>(matrix) : out;
  if (dump.find(name).whole.size() == box.size.size()) {
    dump.readBox(name, box, oriented);
  } else {
    readEntries(dump, name, box, modelsShape(result, wholeShape(buffer), false), dividedAxisOf(result),
                buffer.data_type, oriented);
  }
  if (!result.transposed) return;
  const int64_t rows = buffer.shape.front();
  transposeMatrix(matrix, elementCount(box.size) / rows, rows, dataTypeSize(buffer.data_type), out);
}

std::vector<std::byte> dumpedContent(const Result& result, const Buffer& buffer,
                                     std::span<const std::byte> content) {
  if (!result.transposed) return {content.begin(), content.end()};
  return transposedBytes(content, buffer.shape, buffer.data_type);
}

void adoptStepDump(Executor& executor, const JoinedTensors& dump) {
  for (const Result& result : executor.program().results) {
    const Buffer& buffer = executor.program().buffer(result.buffer);
    if (!isPersistent(buffer.kind)) continue;
    const std::string name = dumpTensorName(result);
    const JoinedTensors::Pieces& found = dump.find(name);
    const Shape whole = modelsShape(result, wholeShape(buffer), true);
    const bool fits = found.whole == whole || found.whole == modelsShape(result, wholeShape(buffer), false);
    PIPESHARD_CHECK(found.data_type == buffer.data_type && fits,
                    "'{}' is {}{} in the dump, {}{} in the program", name, dataTypeName(found.data_type),
                    shapeToString(found.whole), dataTypeName(buffer.data_type), shapeToString(whole));
    executor.write(result.buffer, [&](std::span<std::byte> out) { readResult(dump, result, buffer, out); });
  }
}

StepDump StepDump::open(const std::string& directory, int64_t step, int ranks) {
  std::vector<std::string> paths;
  for (RankId rank : idsBelow<RankId>(ranks))
    paths.push_back((std::filesystem::path(directory) / dumpFileName(step, rank)).string());
  return StepDump(JoinedTensors::open(paths, fmt::format("dump of step {} in {}", step, directory)));
}

}  // namespace pipeshard
