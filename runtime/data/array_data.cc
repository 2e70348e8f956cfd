#include "runtime/data/array_data.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/ranges.h>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "runtime/data/batch_check.h"
#include "runtime/data/length_order.h"
#include "runtime/data/row_lengths.h"
#include "runtime/data/row_permutation.h"

namespace pipeshard {
namespace {

class ArrayData : public DataSource {
 public:
  ArrayData(const DataDescription& description, ArrayStore& store, const std::vector<ProgramInput>& inputs,
            const std::vector<bool>& needed, const ShorterInputs& shorter)
      : DataSource(inputs, description.seed, shorter),
        description_(description),
        lengths_(description, inputs, shorter),
        columns_(inputs.size()) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i].drawn) continue;
      std::unique_ptr<StoredArray> array = store.open(inputs_[i]);
      columns_[i].axis = store.rowAxis(inputs_[i]);
      checkArray(i, *array);
      checkSameRows(i);
      if (lengths_.pads()) takeLengths(i, *array);
      if (needed.empty() || needed[i]) columns_[i].array = std::move(array);
    }
    for (size_t i = 0; i < inputs_.size(); ++i) checkRest(i);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (columns_[i].array == nullptr) continue;
      columns_[i].array->prepare();
      if (columns_[i].array->isSmall()) checkAll(i, *columns_[i].array);
    }
    decisions_ = store.decisions();
    const std::string unused = describeUnused(store, inputs_);
    if (!unused.empty()) decisions_ += (decisions_.empty() ? "" : "; ") + unused;
    if (description_.shuffle && rows_of_ < 0)
      fail(ErrorCode::kConfiguration,
           "--shuffle: no input of the model has a batch axis, so there are no rows");
    if (lengths_.pads()) orderByLength();
    length_of_row_ = std::vector<int64_t>();
  }

  bool isLastBatch(int64_t step) const override { return has_last_batch_ && step % steps_per_epoch_ == 0; }
  size_t lengthOf(int64_t step) const override {
    if (order_) return order_->lengthOf(step);
    return isLastBatch(step) ? 0 : length_;
  }
  int64_t stepsPerEpoch() const override { return steps_per_epoch_; }

  std::optional<FileRow> fileRowOf(int64_t step, int64_t row) const override {
    if (rows_of_ < 0) return std::nullopt;
    if (order_) return FileRow{description_.path, order_->rowsOf(step).at(row)};
    const int64_t batch = inputs_[rows_of_].shape[columns_[rows_of_].axis];
    const int64_t place = (step - 1) % steps_per_epoch_ * batch + row;
    const RowPermutation row_at(columns_[rows_of_].rows, description_.seed, (step - 1) / steps_per_epoch_);
    return FileRow{description_.path, description_.shuffle ? row_at(place) : place};
  }

  std::string decisions() const override { return decisions_; }
  std::string describe() const override {
    std::string text = printData(description_);
    if (!decisions_.empty()) text += ": " + decisions_;
    if (rows_of_ < 0) return text;
    text = fmt::format("{}; {} examples, {} step{} an epoch", text, columns_[rows_of_].rows, steps_per_epoch_,
                       steps_per_epoch_ == 1 ? "" : "s");
    if (lengths_.several() && !rows_by_length_.empty()) text += "; " + lengths_.describeRows(rows_by_length_);
    if (pads_) text += "; " + lengths_.describePadding();
    return text;
  }

 private:
  struct Column {
    std::unique_ptr<StoredArray> array;  // null: this rank does not load it
    Shape shape;                         // of the array
    std::vector<int> length_axes;        // along which the array may be shorter than the batch
    int axis = -1;                       // along which its rows follow each other; -1: the same in every step
    int64_t rows = 1;
  };

  // The array may be longer than the batch along its rows.
  void write(size_t input, int64_t step, const Shard& box, std::span<std::byte> out) override {
    const Column& column = columns_[input];
    Shard from = box;
    if (column.axis < 0) return readBox(input, from, out);
    const size_t axis = column.axis;
    const int64_t first = (step - 1) % steps_per_epoch_ * inputs_[input].shape[axis] + box.start[axis];
    from.start[axis] = first;
    if (!description_.shuffle && !order_) return readBox(input, from, out);
    const std::vector<int64_t> rows = order_ ? order_->rowsOf(step) : std::vector<int64_t>();
    const RowPermutation row_at(column.rows, description_.seed, (step - 1) / steps_per_epoch_);
    Shard to = wholeBox(box.size);
    from.size[axis] = to.size[axis] = 1;
    const size_t element_bytes = dataTypeSize(inputs_[input].data_type);
    row_.resize(elementCount(to.size) * element_bytes);
    for (int64_t k = 0; k < box.size[axis]; ++k) {
      from.start[axis] = order_ ? rows.at(box.start[axis] + k) : row_at(first + k);
      to.start[axis] = k;
      readBox(input, from, row_);
      const std::byte* content = row_.data();
      forEachRun(box.size, to, [&](int64_t element, int64_t count) {
        std::memcpy(out.data() + element * element_bytes, content, count * element_bytes);
        content += count * element_bytes;
      });
    }
  }

  // A box of the batch, in the input's type: what the array has of it, and padding.
  void readBox(size_t input, const Shard& box, std::span<std::byte> out) {
    const Column& column = columns_[input];
    Shard inside = box;
    for (const int axis : column.length_axes)
      inside.size[axis] = std::clamp<int64_t>(column.shape[axis] - box.start[axis], 0, box.size[axis]);
    if (inside == box) return readArray(input, box, out);
    const DataType type = inputs_[input].data_type;
    inside_.resize(byteCount(type, inside.size));
    if (!inside_.empty()) readArray(input, inside, inside_);
    writePadded(type, lengths_.padding(inputs_[input].name), box.size, wholeBox(inside.size), inside_, out);
  }

  // A box of the array, in the input's type.
  void readArray(size_t input, const Shard& box, std::span<std::byte> out) {
    const Column& column = columns_[input];
    PIPESHARD_CHECK(column.array != nullptr, "input '{}' was not asked for", inputs_[input].name);
    const std::string fault = boxFault(column.shape, box);
    PIPESHARD_CHECK(fault.empty(), "input '{}': {}", inputs_[input].name, fault);
    const DataType found = column.array->dataType(), wanted = inputs_[input].data_type;
    const size_t element_bytes = dataTypeSize(found);
    std::span<std::byte> raw = out;
    if (found != wanted) {
      raw_.resize(elementCount(box.size) * element_bytes);
      raw = raw_;
    }
    size_t done = 0;
    forEachRun(column.shape, box, [&](int64_t first, int64_t count) {
      column.array->read(first, raw.subspan(done, count * element_bytes));
      done += count * element_bytes;
    });
    if (!column.array->isSmall()) checkNumbers(input, found, box, raw);
    if (found != wanted) convertElements(found, raw.data(), wanted, out.data(), elementCount(box.size));
  }

  void checkArray(size_t index, const StoredArray& array) {
    const ProgramInput& input = inputs_[index];
    Column& column = columns_[index];
    column.shape = array.shape();
    const std::string expected =
        fmt::format("{}{}", dataTypeName(input.data_type), shapeToString(input.shape)) +
        (column.axis < 0 ? "" : fmt::format(" (or a longer axis {})", column.axis));
    Shape comparable = column.shape;
    for (const int length_axis : lengths_.axes(input.name)) {
      if (column.axis < 0 || length_axis >= std::ssize(comparable)) continue;
      column.length_axes.push_back(length_axis);
      comparable[length_axis] = input.shape[length_axis];
    }
    const size_t axis = column.axis;
    const bool has_rows = column.axis >= 0 && axis < comparable.size() && axis < input.shape.size() &&
                          comparable[axis] >= input.shape[axis];
    if (has_rows) comparable[axis] = input.shape[axis];
    if (comparable != input.shape || !mayStandFor(array.dataType(), input.data_type)) {
      fail(ErrorCode::kConfiguration, "{}, array '{}': found {}{}, expected {}{}", description_.path,
           input.name, dataTypeName(array.dataType()), shapeToString(column.shape), expected,
           tooFew(input, column, std::move(comparable)));
    }
    if (has_rows) column.rows = column.shape[axis];
  }

  // Where nothing is wrong with the shape but that it has too few rows for a step.
  std::string tooFew(const ProgramInput& input, const Column& column, Shape shape) const {
    const size_t axis = column.axis;
    if (column.axis < 0 || axis >= std::min(shape.size(), input.shape.size())) return "";
    const int64_t examples = std::exchange(shape[axis], input.shape[axis]);
    if (shape != input.shape || examples >= input.shape[axis]) return "";
    return ": " + describeTooFew(description_.end.parts, examples, input.shape[axis]);
  }

  void checkSameRows(size_t index) {
    const Column& column = columns_[index];
    if (column.axis < 0) return;
    if (rows_of_ < 0) rows_of_ = static_cast<int64_t>(index);
    requireSameRows(description_.path, {inputs_[rows_of_].name, columns_[rows_of_].rows},
                    {inputs_[index].name, column.rows});
  }

  // Of what is left over, a batch that the plan has programs for.
  void checkRest(size_t index) {
    const ProgramInput& input = inputs_[index];
    const Column& column = columns_[index];
    const EpochEnd& end = description_.end;
    if (column.axis < 0) return;
    const int64_t batch = input.shape[column.axis];
    const int64_t left = batch > 0 ? column.rows % batch : 0;
    if (left != 0 && left != end.last_batch && !end.drop_last) {
      fail(
          ErrorCode::kConfiguration,
          "{}, array '{}' has {} examples: after batches of {} a last one of {} is left, but {}; leave these "
          "examples out with --drop-last{}",
          description_.path, input.name, column.rows, batch, left,
          !end.whole_only.empty() ? end.whole_only
          : end.last_batch == 0   ? std::string("the plan has programs for whole batches only")
                                  : fmt::format("the plan is for a last batch of {}", end.last_batch),
          !end.whole_only.empty() ? std::string()
                                  : fmt::format(", or plan again with --data or --last-batch {}", left));
    }
    has_last_batch_ = left != 0 && !end.drop_last;
    steps_per_epoch_ = batch > 0 ? std::max<int64_t>(1, column.rows / batch + (has_last_batch_ ? 1 : 0)) : 1;
  }

  // An example has one length: along all axes of all its arrays.
  void takeLengths(size_t index, const StoredArray& array) {
    const Column& column = columns_[index];
    if (column.length_axes.empty()) return;
    const int64_t all = column.shape[column.length_axes.front()];
    const std::span<const int64_t> own = array.lengths();
    if (length_of_row_.empty()) {
      lengths_of_ = index;
      length_of_row_.assign(own.begin(), own.end());
      if (own.empty()) length_of_row_.assign(1, all);
    }
    const auto of = [](std::span<const int64_t> lengths, int64_t row) {
      return lengths.size() == 1 ? lengths[0] : lengths[row];
    };
    const std::span<const int64_t> mine = own.empty() ? std::span<const int64_t>(&all, 1) : own;
    const int64_t rows = std::max<int64_t>(std::ssize(mine), std::ssize(length_of_row_));
    for (int64_t row = 0; row < rows; ++row) {
      if (of(mine, row) == of(length_of_row_, row)) continue;
      fail(ErrorCode::kConfiguration,
           "{}, example {}: '{}' has a length of {}, but '{}' one of {}; an example has one length",
           description_.path, row + 1, inputs_[lengths_of_].name, of(length_of_row_, row),
           inputs_[index].name, of(mine, row));
    }
    for (const int axis : column.length_axes) {
      if (column.shape[axis] == all) continue;
      fail(ErrorCode::kConfiguration, "{}, array '{}': found {}, which has several lengths along axes {}",
           description_.path, inputs_[index].name, shapeToString(column.shape),
           fmt::join(column.length_axes, ", "));
    }
  }

  // Examples of one length in an array of numbers take no memory each.
  void orderByLength() {
    if (length_of_row_.empty()) return;
    const int64_t rows = columns_[rows_of_].rows;
    std::vector<uint8_t> lengths;
    rows_by_length_.assign(shorter_.size() + 1, 0);
    for (size_t row = 0; row < length_of_row_.size(); ++row) {
      const std::string where = length_of_row_.size() == 1
                                    ? description_.path
                                    : fmt::format("{}, example {}", description_.path, row + 1);
      lengths.push_back(static_cast<uint8_t>(lengths_.shortestFor(length_of_row_[row], where)));
      rows_by_length_[lengths.back()] += length_of_row_.size() == 1 ? rows : 1;
      const ProgramInput& input =
          lengths.back() == 0 ? inputs_[lengths_of_] : shorter_[lengths.back() - 1][lengths_of_];
      pads_ = pads_ || input.shape[columns_[lengths_of_].length_axes.front()] > length_of_row_[row] ||
              lengths.back() != lengths.front();
    }
    length_ = lengths.front();
    pads_ = pads_ || (has_last_batch_ && length_ > 0);  // that batch has the longest sequences
    if (pads_) lengths_.requirePadding(description_.path);
    const int64_t batch = inputs_[rows_of_].shape[columns_[rows_of_].axis];
    if (lengths.size() < 2 || !lengths_.several()) return;
    order_.emplace(std::move(lengths), shorter_.size() + 1, batch, description_.end.drop_last,
                   description_.shuffle ? std::optional(description_.seed) : std::nullopt);
  }

  void checkAll(size_t index, const StoredArray& array) const {
    std::vector<std::byte> bytes(byteCount(array.dataType(), array.shape()));
    array.read(0, bytes);
    checkNumbers(index, array.dataType(), wholeBox(array.shape()), bytes);
  }

  // Said here, where array and row are known. `bytes`: a box of the array.
  void checkNumbers(size_t index, DataType found, const Shard& box, std::span<const std::byte> bytes) const {
    if (const auto fault = numberFault(inputs_[index], found, box, bytes))
      fail(ErrorCode::kConfiguration, "{}, {}", description_.path, *fault);
  }

  DataDescription description_;
  RowLengths lengths_;
  std::vector<Column> columns_;
  int64_t rows_of_ = -1;  // the first input with rows
  int64_t steps_per_epoch_ = 1;
  bool has_last_batch_ = false;
  std::string decisions_;
  // Where sequences may be of several lengths: one number for all examples, or one for each, as the first
  // input with sequences has them.
  std::vector<int64_t> length_of_row_;
  size_t lengths_of_ = 0;
  std::vector<int64_t> rows_by_length_;
  std::optional<LengthOrder> order_;
  size_t length_ = 0;  // without an order: that of all steps
  bool pads_ = false;
  std::vector<std::byte> raw_, row_, inside_;  // scratch
};

}  // namespace

std::unique_ptr<DataSource> makeArrayData(const DataDescription& description, ArrayStore& store,
                                          const std::vector<ProgramInput>& inputs,
                                          const std::vector<bool>& needed, const ShorterInputs& shorter) {
  return std::make_unique<ArrayData>(description, store, inputs, needed, shorter);
}

}  // namespace pipeshard
