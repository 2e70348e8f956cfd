#include "runtime/feed/row_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include <fmt/ranges.h>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "runtime/data/batch_check.h"
#include "runtime/data/stored_array.h"

namespace pipeshard {
namespace {

constexpr uint64_t kLongestMessage = uint64_t{16} << 30;
constexpr uint64_t kShortestMessage = 10;  // safetensors without a tensor
// Memory for a message is taken as it comes: a claim alone takes none.
constexpr size_t kFirstPiece = size_t{1} << 20;

// Elements in front of an axis, and behind it.
std::pair<int64_t, int64_t> aroundAxis(const Shape& shape, size_t axis) {
  const auto at = shape.begin() + static_cast<std::ptrdiff_t>(axis);
  return {elementCount({shape.begin(), at}), elementCount({at + 1, shape.end()})};
}

}  // namespace

RowStream::RowStream(std::vector<ProgramInput> inputs, std::string source, Read read, RowLengths lengths,
                     bool whole_batches)
    : inputs_(std::move(inputs)),
      lengths_(std::move(lengths)),
      source_(std::move(source)),
      read_(std::move(read)),
      batch_(batchRowsOf(inputs_, source_)),
      columns_(inputs_.size()),
      whole_batches_(whole_batches),
      groups_(std::max<size_t>(1, lengths_.count()), batch_, [this](size_t length, auto rows) {
        ready_.push_back({length, std::move(rows)});
      }) {}

std::string RowStream::here() const { return fmt::format("{}, message {}", source_, messages_ + 1); }

bool RowStream::next(const std::vector<std::span<std::byte>>& out) {
  std::optional<Batch> batch;
  if (lengths_.several()) {
    batch = nextOfLength();
    if (!batch) return false;
    batch_length_ = batch->length;
  }
  for (int64_t have = 0; have < batch_ && !batch;) {
    if (rowsLeft() == 0 && !receive()) return false;
    const int64_t count = std::min(batch_ - have, rowsLeft());
    takeRows(count, out, have);
    have += count;
  }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].drawn || out[i].empty()) continue;
    if (inputs_[i].axis < 0) {
      writeConstant(i, out[i]);
    } else if (batch) {
      writeRows(i, *batch, out[i]);
    }
  }
  return true;
}

bool RowStream::skip(int64_t batches) {
  if (lengths_.several()) {
    for (; batches > 0; --batches) {
      if (!nextOfLength()) return false;
    }
    return true;
  }
  int64_t left = batches * batch_;
  while (left > 0) {
    if (rowsLeft() == 0 && !receive()) return false;
    const int64_t count = std::min(left, rowsLeft());
    taken_ += count;
    left -= count;
  }
  return true;
}

void RowStream::takeRows(int64_t wanted, const std::vector<std::span<std::byte>>& out, int64_t have) {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].drawn || inputs_[i].axis < 0 || out[i].empty()) continue;
    copyRows(i, taken_, wanted, out[i], have);
  }
  taken_ += wanted;
}

// Where there are several. Nothing: the stream has ended, and what is left fills no batch.
std::optional<RowStream::Batch> RowStream::nextOfLength() {
  while (ready_.empty() && !has_ended_) {
    if (rowsLeft() > 0 || receive()) {
      groups_.put(takeRow(), message_group_);
    } else {
      has_ended_ = true;
      groups_.finish();
    }
  }
  if (ready_.empty()) return std::nullopt;
  Batch batch = std::move(ready_.front());
  ready_.pop_front();
  return batch;
}

RowStream::Row RowStream::takeRow() {
  Row row(inputs_.size());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const ProgramInput& input = inputs_[i];
    if (input.drawn || input.axis < 0) continue;
    const TensorEntry& entry = *columns_[i].entry;
    Shard box = wholeBox(entry.shape);
    box.start[input.axis] = taken_;
    box.size[input.axis] = 1;
    for (const int axis : lengths_.axes(input.name))
      box.size[axis] = std::min(box.size[axis], lengths_.longest());
    const size_t each = dataTypeSize(entry.data_type);
    std::vector<std::byte> found(elementCount(box.size) * each);
    std::byte* to = found.data();
    forEachRun(entry.shape, box, [&](int64_t first, int64_t count) {
      std::memcpy(to, message_.data() + entry.offset + first * each, count * each);
      to += count * each;
    });
    row[i] = {box.size, std::vector<std::byte>(byteCount(input.data_type, box.size))};
    convertElements(entry.data_type, found.data(), input.data_type, row[i].bytes.data(),
                    elementCount(box.size));
  }
  ++taken_;
  return row;
}

// Of the last batch.
Shape RowStream::batchShape(size_t input) const {
  Shape shape = inputs_[input].shape;
  for (const int axis : lengths_.axes(inputs_[input].name)) shape[axis] = lengths_.lengthAt(batch_length_);
  return shape;
}

void RowStream::writeRows(size_t index, const Batch& batch, std::span<std::byte> out) const {
  const ProgramInput& input = inputs_[index];
  const Shape shape = batchShape(index);
  const Shape nothing(shape.size(), 0);
  writePadded(input.data_type, lengths_.padding(input.name), shape, wholeBox(nothing), {},
              out.first(byteCount(input.data_type, shape)));
  for (size_t k = 0; k < batch.rows.size(); ++k) {
    const Part& part = batch.rows[k][index];
    Shard box = wholeBox(part.size);
    box.start[input.axis] = static_cast<int64_t>(k);
    writeBox(input.data_type, shape, box, part.bytes, out);
    const std::vector<int>& axes = lengths_.axes(input.name);
    if (!axes.empty() && part.size[axes.front()] < shape[axes.front()]) lengths_.requirePadding(source_);
  }
}

// Of an input without rows, as much as the batch's sequences have.
void RowStream::writeConstant(size_t index, std::span<std::byte> out) const {
  const ProgramInput& input = inputs_[index];
  const std::vector<std::byte>& constant = columns_[index].constant;
  std::byte* to = out.data();
  forEachRun(input.shape, wholeBox(batchShape(index)), [&](int64_t first, int64_t count) {
    const size_t each = dataTypeSize(input.data_type);
    std::memcpy(to, constant.data() + first * each, count * each);
    to += count * each;
  });
}

void RowStream::copyRows(size_t input, int64_t first, int64_t count, std::span<std::byte> out,
                         int64_t have) const {
  const ProgramInput& wanted = inputs_[input];
  const TensorEntry& entry = *columns_[input].entry;
  const auto [outer, inner] = aroundAxis(wanted.shape, wanted.axis);
  const size_t from_bytes = dataTypeSize(entry.data_type), to_bytes = dataTypeSize(wanted.data_type);
  const std::byte* from = message_.data() + entry.offset;
  for (int64_t k = 0; k < outer; ++k) {
    convertElements(entry.data_type, from + (k * message_rows_ + first) * inner * from_bytes,
                    wanted.data_type, out.data() + (k * batch_ + have) * inner * to_bytes, count * inner);
  }
}

// The next message that has rows; false: there is none.
bool RowStream::receive() {
  do {
    if (!readMessage()) return false;
    entries_ = TensorFile::parse({message_.data(), message_bytes_}, here()).tensors();
    message_rows_ = -1;
    message_length_ = -1;
    taken_ = 0;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i].drawn) lookAt(i);
    }
    if (messages_ == 0) noteUnused();
    if (message_rows_ < 0) message_rows_ = 1;  // no input has an axis: a message is a batch
    if (lengths_.several() && whole_batches_ && message_rows_ % batch_ != 0) {
      fail(ErrorCode::kConfiguration,
           "{}: found {} rows; with sequences of several lengths a command that goes on by {{step}} sends "
           "messages of whole batches, of {} rows each",
           here(), message_rows_, batch_);
    }
    rows_ += message_rows_;
    ++messages_;
  } while (message_rows_ == 0);
  return true;
}

void RowStream::noteUnused() {
  std::set<std::string> taken;
  for (const ProgramInput& input : inputs_) {
    if (!input.drawn) taken.insert(input.name);
  }
  std::vector<std::string> names;
  for (const TensorEntry& entry : entries_) names.push_back(entry.name);
  unused_ = describeUnused(namesBut(std::move(names), taken), inputs_);
}

bool RowStream::readMessage() {
  std::array<std::byte, 8> length_bytes;
  bool ended = false;
  fill(length_bytes, "the length", true, ended);
  if (ended) return false;
  uint64_t bytes = 0;
  std::memcpy(&bytes, length_bytes.data(), sizeof bytes);
  if (bytes < kShortestMessage || bytes > kLongestMessage) {
    fail(
        ErrorCode::kBadModel,
        "{} claims {} bytes; expected 8 bytes with the length of what follows (little-endian, {} to {}), and "
        "a safetensors file of this length",
        here(), bytes, kShortestMessage, kLongestMessage);
  }
  size_t done = 0;
  while (done < bytes) {
    const size_t end = std::min<uint64_t>(bytes, std::max(kFirstPiece, 2 * done));
    if (message_.size() < end) message_.resize(end);
    fill({message_.data() + done, end - done}, "the content", false, ended);
    done = end;
  }
  message_bytes_ = bytes;
  return true;
}

void RowStream::fill(std::span<std::byte> out, const char* what, bool may_end, bool& ended) {
  size_t done = 0;
  while (done < out.size()) {
    const size_t got = read_(out.subspan(done));
    if (got == 0 && done == 0 && may_end) {
      ended = true;
      return;
    }
    if (got == 0) fail(ErrorCode::kBadModel, "{} is cut off: the stream ended inside {}", here(), what);
    done += got;
  }
}

// Finds the tensor of an input, and compares it with what the input needs.
void RowStream::lookAt(size_t index) {
  const ProgramInput& input = inputs_[index];
  Column& column = columns_[index];
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const TensorEntry& entry) { return entry.name == input.name; });
  if (found == entries_.end()) {
    if (input.axis < 0 && messages_ > 0) return;
    std::vector<std::string> names;
    for (const TensorEntry& entry : entries_) names.push_back(entry.name);
    fail(ErrorCode::kMissingInput, "{} holds no tensor '{}'; it holds: {}", here(), input.name,
         fmt::join(names, ", "));
  }
  column.entry = &*found;
  const bool has_rows = input.axis >= 0 && input.axis < std::ssize(found->shape);
  Shape comparable = found->shape;
  for (const int axis : lengths_.axes(input.name)) {
    if (has_rows && axis < std::ssize(comparable)) comparable[axis] = input.shape[axis];
  }
  if (has_rows) comparable[input.axis] = input.shape[input.axis];
  if (comparable != input.shape || !mayStandFor(found->data_type, input.data_type)) {
    fail(ErrorCode::kConfiguration, "{}, tensor '{}': found {}{}, expected {}{}{}", here(), input.name,
         dataTypeName(found->data_type), shapeToString(found->shape), dataTypeName(input.data_type),
         shapeToString(input.shape),
         input.axis < 0 ? "" : fmt::format(", or any other number of rows on axis {}", input.axis));
  }
  if (has_rows) takeLength(input, *found);
  const std::span<const std::byte> bytes(message_.data() + found->offset, found->length);
  if (const auto fault = numberFault(input, found->data_type, wholeBox(found->shape), bytes))
    fail(ErrorCode::kConfiguration, "{}, {}", here(), *fault);
  if (input.axis < 0) {
    column.constant.resize(byteCount(input.data_type, input.shape));
    convertElements(found->data_type, bytes.data(), input.data_type, column.constant.data(),
                    elementCount(input.shape));
    return;
  }
  const int64_t rows = found->shape[input.axis];
  if (message_rows_ >= 0 && rows != message_rows_) {
    fail(ErrorCode::kConfiguration,
         "{}: tensor '{}' has {} rows but those before it have {}; they must be as many", here(), input.name,
         rows, message_rows_);
  }
  message_rows_ = rows;
}

// All sequences of a message have one length.
void RowStream::takeLength(const ProgramInput& input, const TensorEntry& entry) {
  for (const int axis : lengths_.axes(input.name)) {
    const int64_t length = entry.shape[axis];
    if (message_length_ >= 0 && length != message_length_) {
      fail(ErrorCode::kConfiguration,
           "{}, tensor '{}': found {}, whose sequences have {} elements, but those before it {}; all of a "
           "message "
           "have one length",
           here(), input.name, shapeToString(entry.shape), length, message_length_);
    }
    message_length_ = length;
    message_group_ = lengths_.shortestFor(length, fmt::format("{}, tensor '{}'", here(), input.name));
    if (length != lengths_.lengthAt(message_group_) && !(length > lengths_.longest()))
      lengths_.requirePadding(here());
  }
}

}  // namespace pipeshard
