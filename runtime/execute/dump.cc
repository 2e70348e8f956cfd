#include "runtime/execute/dump.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
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

// Of the metadata keys that say where a part belongs.
const std::string kPartPrefix = "part/";

std::string printPart(const BufferPart& part) {
  return fmt::format("{} from {}", shapeToString(part.whole), shapeToString(part.start));
}

// "[8,6]": at most 64 non-negative sizes; nothing if `text` does not start so. Takes what it reads off
// `text`.
std::optional<Shape> takeShape(std::string_view& text) {
  Shape shape;
  if (!text.starts_with('[')) return std::nullopt;
  text.remove_prefix(1);
  while (!text.starts_with(']')) {
    if (!shape.empty() && !text.starts_with(',')) return std::nullopt;
    if (!shape.empty()) text.remove_prefix(1);
    int64_t size = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc{} || size < 0 || shape.size() == 64) return std::nullopt;
    text.remove_prefix(end - text.data());
    shape.push_back(size);
  }
  text.remove_prefix(1);
  return shape;
}

std::optional<BufferPart> parsePart(std::string_view text) {
  constexpr std::string_view kBetween = " from ";
  const std::optional<Shape> whole = takeShape(text);
  if (!whole || !text.starts_with(kBetween)) return std::nullopt;
  text.remove_prefix(kBetween.size());
  const std::optional<Shape> start = takeShape(text);
  if (!start || !text.empty()) return std::nullopt;
  return BufferPart{*whole, *start};
}

void copyIntoBox(DataType type, std::span<const std::byte> box_bytes, const Shape& whole, const Shard& box,
                 std::span<std::byte> bytes) {
  const std::byte* from = box_bytes.data();
  forEachRun(whole, box, [&](int64_t first, int64_t count) {
    const size_t run = count * dataTypeSize(type);
    std::memcpy(bytes.data() + first * dataTypeSize(type), from, run);
    from += run;
  });
}

void copyOutOfBox(DataType type, std::span<const std::byte> bytes, const Shape& whole, const Shard& box,
                  std::span<std::byte> box_bytes) {
  std::byte* to = box_bytes.data();
  forEachRun(whole, box, [&](int64_t first, int64_t count) {
    const size_t run = count * dataTypeSize(type);
    std::memcpy(to, bytes.data() + first * dataTypeSize(type), run);
    to += run;
  });
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
    if (buffer.part) metadata[kPartPrefix + tensors.back().name] = printPart(*buffer.part);
  }
  std::string path = (std::filesystem::path(directory) / dumpFileName(step, program.rank)).string();
  writeTensorFile(path, tensors, metadata);
  return path;
}

void adoptStepDump(Executor& executor, const StepDump& dump) {
  for (const Result& result : executor.program().results) {
    if (!isPersistent(executor.program().buffer(result.buffer).kind)) continue;
    const Buffer& buffer = executor.program().buffer(result.buffer);
    const StepDump::Tensor tensor = dump.read(dumpTensorName(result));
    PIPESHARD_CHECK(tensor.data_type == buffer.data_type && tensor.shape == wholeShape(buffer),
                    "'{}' is {}{} in the dump, {}{} in the program", tensor.name,
                    dataTypeName(tensor.data_type), shapeToString(tensor.shape),
                    dataTypeName(buffer.data_type), shapeToString(wholeShape(buffer)));
    copyOutOfBox(buffer.data_type, tensor.bytes, tensor.shape, boxOf(buffer),
                 executor.content(result.buffer));
  }
}

std::vector<double> StepDump::Tensor::elements() const {
  std::vector<double> numbers(elementCount(shape));
  convertElements(data_type, bytes.data(), DataType::kFloat64, numbers.data(), numbers.size());
  return numbers;
}

StepDump StepDump::open(const std::string& directory, int64_t step, int ranks) {
  StepDump dump;
  dump.description_ = fmt::format("step {} in {}", step, directory);
  for (RankId rank : idsBelow<RankId>(ranks)) {
    dump.files_.push_back(
        TensorFile::open((std::filesystem::path(directory) / dumpFileName(step, rank)).string()));
    for (const TensorEntry& entry : dump.files_.back().tensors()) dump.add(rank, entry);
  }
  for (const auto& [name, tensor] : dump.tensors_) {
    dump.checkPieces(name, tensor);
    dump.names_.push_back(name);
  }
  return dump;
}

void StepDump::add(RankId rank, const TensorEntry& entry) {
  const TensorFile& file = files_[rank];
  const auto text = file.metadata().find(kPartPrefix + entry.name);
  std::optional<BufferPart> part;
  if (text != file.metadata().end()) {
    part = parsePart(text->second);
    if (!part || !boxFault(part->whole, {part->start, entry.shape}).empty()) {
      fail(ErrorCode::kBadModel,
           "{}: the part '{}' of '{}' is \"{}\"; expected the whole shape and where {} starts in it: \"[8,6] "
           "from [0,3]\"",
           file.path(), entry.name, shapeToString(entry.shape), text->second, shapeToString(entry.shape));
    }
  }
  const auto [found, is_new] =
      tensors_.try_emplace(entry.name, Pieces{entry.data_type, part ? part->whole : entry.shape, {}});
  Pieces& tensor = found->second;
  if (!is_new && (!part || tensor.pieces[0].start.empty())) {
    fail(ErrorCode::kBadModel, "dump of {}: '{}' is in the files of ranks {} and {}", description_,
         entry.name, tensor.pieces[0].rank, rank);
  }
  if (tensor.data_type != entry.data_type || (part && tensor.whole != part->whole)) {
    fail(ErrorCode::kBadModel,
         "dump of {}: '{}' is a part of {}{} in the file of rank {}, but of {}{} in that of rank {}",
         description_, entry.name, dataTypeName(tensor.data_type), shapeToString(tensor.whole),
         tensor.pieces[0].rank, dataTypeName(entry.data_type), shapeToString(part->whole), rank);
  }
  tensor.pieces.push_back({rank, part ? part->start : Shape{}});
}

void StepDump::checkPieces(const std::string& name, const Pieces& tensor) const {
  if (tensor.pieces[0].start.empty()) return;
  std::vector<Shard> boxes;
  for (const Piece& piece : tensor.pieces)
    boxes.push_back({piece.start, files_[piece.rank].find(name)->shape});
  const std::string fault = tilingFault(tensor.whole, boxes);
  if (!fault.empty())
    fail(ErrorCode::kBadModel, "dump of {}: '{}' cannot be put together: {}", description_, name, fault);
}

bool StepDump::has(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }

StepDump::Tensor StepDump::read(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    fail(ErrorCode::kMissingInput, "the dump of {} holds no tensor '{}'", description_, name);
  const Pieces& tensor = found->second;
  Tensor joined{found->first, tensor.data_type, tensor.whole, {}};
  if (tensor.pieces[0].start.empty()) {
    const TensorFile& file = files_[tensor.pieces[0].rank];
    joined.bytes = file.read(*file.find(name));
    return joined;
  }
  joined.bytes.resize(byteCount(tensor.data_type, tensor.whole));
  for (const Piece& piece : tensor.pieces) {
    const TensorFile& file = files_[piece.rank];
    const TensorEntry& entry = *file.find(name);
    const std::vector<std::byte> bytes = file.read(entry);
    copyIntoBox(tensor.data_type, bytes, tensor.whole, {piece.start, entry.shape}, joined.bytes);
  }
  return joined;
}

}  // namespace pipeshard
