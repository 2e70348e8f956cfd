#include "runtime/files/joined_tensors.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "ir/base/tensor_box.h"

namespace pipeshard {
namespace {

// A run of a box in a file that is shorter is not worth a read of its own.
constexpr int64_t kShortRun = 4096;

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

// The part of `box` that lies in `other`; nothing if they have no element in common.
std::optional<Shard> commonBox(const Shard& box, const Shard& other) {
  Shard common = box;
  for (size_t axis = 0; axis < box.start.size(); ++axis) {
    const int64_t end = std::min(box.start[axis] + box.size[axis], other.start[axis] + other.size[axis]);
    common.start[axis] = std::max(box.start[axis], other.start[axis]);
    common.size[axis] = end - common.start[axis];
    if (common.size[axis] <= 0) return std::nullopt;
  }
  return common;
}

Shard relativeTo(Shard box, const Shape& start) {
  for (size_t axis = 0; axis < start.size(); ++axis) box.start[axis] -= start[axis];
  return box;
}

// A box of what an entry of a file holds, row-major.
std::vector<std::byte> readBoxOf(const TensorFile& file, const TensorEntry& entry, const Shard& box) {
  const int64_t element = dataTypeSize(entry.data_type);
  std::vector<std::byte> bytes(byteCount(entry.data_type, box.size));
  int64_t shortest = std::numeric_limits<int64_t>::max();
  forEachRun(entry.shape, box,
             [&](int64_t, int64_t count) { shortest = std::min(shortest, count * element); });
  if (shortest < kShortRun) {
    copyOutOfBox(entry.data_type, file.read(entry), entry.shape, box, bytes);
    return bytes;
  }
  size_t done = 0;
  forEachRun(entry.shape, box, [&](int64_t first, int64_t count) {
    file.read(entry, first * element, std::span(bytes).subspan(done, count * element));
    done += count * element;
  });
  return bytes;
}

}  // namespace

std::pair<std::string, std::string> partEntry(const std::string& tensor, const BufferPart& part) {
  return {kPartPrefix + tensor, printPart(part)};
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

std::vector<double> JoinedTensors::Tensor::elements() const {
  std::vector<double> numbers(elementCount(shape));
  convertElements(data_type, bytes.data(), DataType::kFloat64, numbers.data(), numbers.size());
  return numbers;
}

JoinedTensors JoinedTensors::open(const std::vector<std::string>& paths, std::string description) {
  JoinedTensors joined = openSome(paths, std::move(description));
  for (const auto& [name, tensor] : joined.tensors_) joined.checkPieces(name, tensor);
  return joined;
}

JoinedTensors JoinedTensors::openSome(const std::vector<std::string>& paths, std::string description) {
  JoinedTensors joined;
  joined.description_ = std::move(description);
  for (const std::string& path : paths) {
    joined.files_.push_back(TensorFile::open(path));
    for (const TensorEntry& entry : joined.files_.back().tensors())
      joined.add(joined.files_.size() - 1, entry);
  }
  for (const auto& [name, tensor] : joined.tensors_) joined.names_.push_back(name);
  return joined;
}

void JoinedTensors::add(int file, const TensorEntry& entry) {
  const TensorFile& holder = files_[file];
  const auto text = holder.metadata().find(kPartPrefix + entry.name);
  std::optional<BufferPart> part;
  if (text != holder.metadata().end()) {
    part = parsePart(text->second);
    if (!part || !boxFault(part->whole, {part->start, entry.shape}).empty()) {
      fail(ErrorCode::kBadModel,
           "{}: the part '{}' of '{}' is \"{}\"; expected the whole shape and where {} starts in it: \"[8,6] "
           "from [0,3]\"",
           holder.path(), entry.name, shapeToString(entry.shape), text->second, shapeToString(entry.shape));
    }
  }
  const auto [found, is_new] =
      tensors_.try_emplace(entry.name, Pieces{entry.data_type, part ? part->whole : entry.shape, {}});
  Pieces& tensor = found->second;
  if (!is_new && (!part || tensor.pieces[0].start.empty())) {
    fail(ErrorCode::kBadModel, "{}: '{}' is in the files of ranks {} and {}", description_, entry.name,
         tensor.pieces[0].file, file);
  }
  if (tensor.data_type != entry.data_type || (part && tensor.whole != part->whole)) {
    fail(ErrorCode::kBadModel,
         "{}: '{}' is a part of {}{} in the file of rank {}, but of {}{} in that of rank {}", description_,
         entry.name, dataTypeName(tensor.data_type), shapeToString(tensor.whole), tensor.pieces[0].file,
         dataTypeName(entry.data_type), shapeToString(part->whole), file);
  }
  tensor.pieces.push_back({file, part ? part->start : Shape{}});
}

Shard JoinedTensors::boxOf(const Piece& piece, std::string_view name) const {
  const Shape& shape = files_[piece.file].find(name)->shape;
  return piece.start.empty() ? wholeBox(shape) : Shard{piece.start, shape};
}

void JoinedTensors::checkPieces(const std::string& name, const Pieces& tensor) const {
  if (tensor.pieces[0].start.empty()) return;
  std::vector<Shard> boxes;
  for (const Piece& piece : tensor.pieces) boxes.push_back(boxOf(piece, name));
  const std::string fault = tilingFault(tensor.whole, boxes);
  if (!fault.empty())
    fail(ErrorCode::kBadModel, "{}: '{}' cannot be put together: {}", description_, name, fault);
}

bool JoinedTensors::has(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }

const JoinedTensors::Pieces& JoinedTensors::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    fail(ErrorCode::kMissingInput, "the {} holds no tensor '{}'", description_, name);
  return found->second;
}

JoinedTensors::Tensor JoinedTensors::read(std::string_view name) const {
  const Pieces& tensor = find(name);
  Tensor joined{std::string(name), tensor.data_type, tensor.whole, {}};
  joined.bytes.resize(byteCount(tensor.data_type, tensor.whole));
  readBox(name, wholeBox(tensor.whole), joined.bytes);
  return joined;
}

void JoinedTensors::readBox(std::string_view name, const Shard& box, std::span<std::byte> out) const {
  const Pieces& tensor = find(name);
  for (const Piece& piece : tensor.pieces) {
    const Shard held = boxOf(piece, name);
    const std::optional<Shard> common = commonBox(box, held);
    if (!common) continue;
    const TensorFile& file = files_[piece.file];
    const std::vector<std::byte> bytes = readBoxOf(file, *file.find(name), relativeTo(*common, held.start));
    copyIntoBox(tensor.data_type, bytes, box.size, relativeTo(*common, box.start), out);
  }
}

}  // namespace pipeshard
