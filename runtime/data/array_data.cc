#include "runtime/data/array_data.h"

#include <cstring>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "runtime/data/batch_check.h"
#include "runtime/data/row_permutation.h"

namespace pipeshard {
namespace {

class ArrayData : public DataSource {
 public:
  ArrayData(const DataDescription& description, ArrayStore& store, const std::vector<ProgramInput>& inputs,
            const std::vector<bool>& needed)
      : DataSource(inputs, description.seed), description_(description), columns_(inputs.size()) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i].drawn) continue;
      std::unique_ptr<StoredArray> array = store.open(inputs_[i]);
      columns_[i].axis = store.rowAxis(inputs_[i]);
      checkArray(i, *array);
      checkRows(i);
      if (!needed.empty() && !needed[i]) continue;
      array->prepare();
      if (array->isSmall()) checkAll(i, *array);
      columns_[i].array = std::move(array);
    }
    decisions_ = store.decisions();
    if (description_.shuffle && rows_of_ < 0)
      fail(ErrorCode::kConfiguration,
           "--shuffle: no input of the model has a batch axis, so there are no rows");
  }

  bool isLastBatch(int64_t step) const override { return has_last_batch_ && step % steps_per_epoch_ == 0; }
  int64_t stepsPerEpoch() const override { return steps_per_epoch_; }

  std::string describe() const override {
    std::string text = printData(description_);
    if (!decisions_.empty()) text += ": " + decisions_;
    if (rows_of_ < 0) return text;
    return fmt::format("{}; {} examples, {} step{} an epoch", text, columns_[rows_of_].rows, steps_per_epoch_,
                       steps_per_epoch_ == 1 ? "" : "s");
  }

 private:
  struct Column {
    std::unique_ptr<StoredArray> array;  // null: this rank does not load it
    Shape shape;                         // of the array
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
    if (!description_.shuffle) return readBox(input, from, out);
    const RowPermutation row_at(column.rows, description_.seed, (step - 1) / steps_per_epoch_);
    Shard to = wholeBox(box.size);
    from.size[axis] = to.size[axis] = 1;
    const size_t element_bytes = dataTypeSize(inputs_[input].data_type);
    row_.resize(elementCount(to.size) * element_bytes);
    for (int64_t k = 0; k < box.size[axis]; ++k) {
      from.start[axis] = row_at(first + k);
      to.start[axis] = k;
      readBox(input, from, row_);
      const std::byte* content = row_.data();
      forEachRun(box.size, to, [&](int64_t element, int64_t count) {
        std::memcpy(out.data() + element * element_bytes, content, count * element_bytes);
        content += count * element_bytes;
      });
    }
  }

  // A box of the array, in the input's type.
  void readBox(size_t input, const Shard& box, std::span<std::byte> out) {
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
    const size_t axis = column.axis;
    const bool has_rows = column.axis >= 0 && axis < comparable.size() && axis < input.shape.size() &&
                          comparable[axis] >= input.shape[axis];
    if (has_rows) comparable[axis] = input.shape[axis];
    if (comparable != input.shape || !mayStandFor(array.dataType(), input.data_type)) {
      fail(ErrorCode::kConfiguration, "{}, array '{}': found {}{}, expected {}", description_.path,
           input.name, dataTypeName(array.dataType()), shapeToString(column.shape), expected);
    }
    if (has_rows) column.rows = column.shape[axis];
  }

  // As many examples in every array: otherwise steps would pair what does not belong together. Of what is
  // left over, a batch that the plan has programs for.
  void checkRows(size_t index) {
    const ProgramInput& input = inputs_[index];
    const Column& column = columns_[index];
    const EpochEnd& end = description_.end;
    if (column.axis < 0) return;
    const int64_t batch = input.shape[column.axis];
    const int64_t left = batch > 0 ? column.rows % batch : 0;
    if (left != 0 && left != end.last_batch && !end.drop_last) {
      fail(ErrorCode::kConfiguration,
           "{}, array '{}' has {} examples: after batches of {} a last one of {} is left, but the plan {}; "
           "plan again with --data or --last-batch {}, or leave these examples out with --drop-last",
           description_.path, input.name, column.rows, batch, left,
           end.last_batch == 0 ? std::string("has programs for whole batches only")
                               : fmt::format("is for a last batch of {}", end.last_batch),
           left);
    }
    has_last_batch_ = left != 0 && !end.drop_last;
    steps_per_epoch_ = batch > 0 ? std::max<int64_t>(1, column.rows / batch + (has_last_batch_ ? 1 : 0)) : 1;
    if (rows_of_ < 0) rows_of_ = static_cast<int64_t>(index);
    const Column& other = columns_[rows_of_];
    if (other.rows == column.rows) return;
    fail(ErrorCode::kConfiguration,
         "{}: array '{}' has {} examples but array '{}' has {}; they must be as many", description_.path,
         inputs_[rows_of_].name, other.rows, input.name, column.rows);
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
  std::vector<Column> columns_;
  int64_t rows_of_ = -1;  // the first input with rows
  int64_t steps_per_epoch_ = 1;
  bool has_last_batch_ = false;
  std::string decisions_;
  std::vector<std::byte> raw_, row_;  // scratch
};

}  // namespace

std::unique_ptr<DataSource> makeArrayData(const DataDescription& description, ArrayStore& store,
                                          const std::vector<ProgramInput>& inputs,
                                          const std::vector<bool>& needed) {
  return std::make_unique<ArrayData>(description, store, inputs, needed);
}

}  // namespace pipeshard
