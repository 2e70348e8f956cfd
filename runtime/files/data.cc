#include "runtime/files/data.h"

#include <cstring>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "runtime/files/batch_check.h"
#include "runtime/files/npz.h"
#include "runtime/files/random_numbers.h"

namespace pipeshard {
namespace {

class SyntheticData : public DataSource {
 public:
  SyntheticData(const std::vector<ProgramInput>& inputs, uint64_t seed, const EpochEnd& end)
      : DataSource(inputs, seed), alternates_(end.last_batch > 0 && !end.drop_last) {
    for (const ProgramInput& input : inputs_) {
      const bool is_integer = isInteger(input.data_type);
      if (!is_integer && !isFloatingPoint(input.data_type) && input.data_type != DataType::kBool) {
        fail(ErrorCode::kConfiguration, "input '{}': no synthetic data of type {}; give --data", input.name,
             dataTypeName(input.data_type));
      }
      if (is_integer && input.high <= input.low) {
        fail(ErrorCode::kConfiguration,
             "input '{}': its integer range [{}, {}) is empty, so there is no synthetic data for it; give "
             "--data",
             input.name, input.low, input.high);
      }
    }
  }

  bool isLastBatch(int64_t step) const override { return alternates_ && step % 2 == 0; }

 private:
  void write(size_t input, int64_t step, const Shard& box, std::span<std::byte> out) override {
    writeRandomNumbers(inputs_[input], seed_, step, box, out);
  }

  bool alternates_;
};

// Whether an array of one type may stand for an input of another: floats for floats, integers (and bools) for
// integers.
bool isAcceptable(DataType found, DataType wanted) {
  if (found == wanted) return true;
  if (isFloatingPoint(found)) return isFloatingPoint(wanted);
  return isInteger(found) && (isInteger(wanted) || wanted == DataType::kBool);
}

// Integers that an operator of the model would refuse: said here, where array and row are known.
void checkAllowed(const std::string& path, const ProgramInput& input, const NpzArray& array) {
  if (!input.allowed || !input.allowed->exact) return;
  if (const auto fault = describeNotAllowed(input, array.data_type, array.shape, array.bytes))
    fail(ErrorCode::kConfiguration, "{}, {}", path, *fault);
}

class NpzData : public DataSource {
 public:
  NpzData(const std::string& path, const std::vector<ProgramInput>& inputs, const std::vector<bool>& needed,
          const EpochEnd& end, uint64_t seed)
      : DataSource(inputs, seed), end_(end), rows_(inputs.size(), 1), content_(inputs.size()) {
    const NpzFile file = NpzFile::open(path);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i].drawn) continue;
      const NpzArray array = file.read(inputs_[i].name);
      checkArray(path, i, array);
      checkRows(path, i);
      if (!needed.empty() && !needed[i]) continue;
      checkRange(path, i, array);
      checkAllowed(path, inputs_[i], array);
      const size_t count = elementCount(array.shape);
      content_[i].resize(count * dataTypeSize(inputs_[i].data_type));
      convertElements(array.data_type, array.bytes.data(), inputs_[i].data_type, content_[i].data(), count);
    }
  }

  bool isLastBatch(int64_t step) const override { return has_last_batch_ && step % steps_per_epoch_ == 0; }

 private:
  // The array may be longer than the batch along the input's axis.
  void write(size_t input, int64_t step, const Shard& box, std::span<std::byte> out) override {
    Shape array = inputs_[input].shape;
    Shard rows = box;
    if (inputs_[input].axis >= 0) {
      const size_t axis = inputs_[input].axis;
      rows.start[axis] += (step - 1) % steps_per_epoch_ * array[axis];
      array[axis] = rows_[input];
    }
    const std::string fault = boxFault(array, rows);
    PIPESHARD_CHECK(fault.empty(), "input '{}': {}", inputs_[input].name, fault);
    const size_t element_bytes = dataTypeSize(inputs_[input].data_type);
    std::byte* to = out.data();
    forEachRun(array, rows, [&](int64_t first, int64_t count) {
      const size_t bytes = count * element_bytes;
      std::memcpy(to, content_[input].data() + first * element_bytes, bytes);
      to += bytes;
    });
  }

  void checkArray(const std::string& path, size_t index, const NpzArray& array) {
    const ProgramInput& input = inputs_[index];
    const std::string expected =
        fmt::format("{}{}", dataTypeName(input.data_type), shapeToString(input.shape)) +
        (input.axis < 0 ? "" : fmt::format(" (or a longer axis {})", input.axis));
    Shape comparable = array.shape;
    const size_t axis = input.axis;
    const bool has_rows =
        input.axis >= 0 && axis < array.shape.size() && array.shape[axis] >= input.shape[axis];
    if (has_rows) comparable[axis] = input.shape[axis];
    if (comparable != input.shape || !isAcceptable(array.data_type, input.data_type)) {
      fail(ErrorCode::kConfiguration, "{}, array '{}': found {}{}, expected {}", path, input.name,
           dataTypeName(array.data_type), shapeToString(array.shape), expected);
    }
    if (has_rows) rows_[index] = array.shape[axis];
  }

  // As many examples in every array: otherwise steps would pair what does not belong together. Of what is
  // left over, a batch that the plan has programs for.
  void checkRows(const std::string& path, size_t index) {
    const ProgramInput& input = inputs_[index];
    if (input.axis < 0) return;
    const int64_t batch = input.shape[input.axis];
    const int64_t left = batch > 0 ? rows_[index] % batch : 0;
    if (left != 0 && left != end_.last_batch && !end_.drop_last) {
      fail(ErrorCode::kConfiguration,
           "{}, array '{}' has {} examples: after batches of {} a last one of {} is left, but the plan {}; "
           "plan again with --data or --last-batch {}, or leave these examples out with --drop-last",
           path, input.name, rows_[index], batch, left,
           end_.last_batch == 0 ? std::string("has programs for whole batches only")
                                : fmt::format("is for a last batch of {}", end_.last_batch),
           left);
    }
    has_last_batch_ = left != 0 && !end_.drop_last;
    steps_per_epoch_ = batch > 0 ? std::max<int64_t>(1, rows_[index] / batch + (has_last_batch_ ? 1 : 0)) : 1;
    for (size_t other = 0; other < index; ++other) {
      if (inputs_[other].axis < 0 || inputs_[other].drawn || rows_[other] == rows_[index]) continue;
      fail(ErrorCode::kConfiguration,
           "{}: array '{}' has {} examples but array '{}' has {}; they must be as many", path,
           inputs_[other].name, rows_[other], input.name, rows_[index]);
    }
  }

  // Integers that the input's type cannot hold.
  void checkRange(const std::string& path, size_t index, const NpzArray& array) const {
    const DataType wanted = inputs_[index].data_type;
    if (!isInteger(array.data_type) || !isInteger(wanted) || array.data_type == wanted) return;
    const size_t count = elementCount(array.shape);
    std::vector<std::byte> there(count * dataTypeSize(wanted));
    convertElements(array.data_type, array.bytes.data(), wanted, there.data(), count);
    const std::vector<double> found = numericElements(Constant{array.data_type, array.shape, array.bytes});
    const std::vector<double> kept = numericElements(Constant{wanted, array.shape, there});
    for (size_t i = 0; i < count; ++i) {
      if (found[i] == kept[i]) continue;
      fail(ErrorCode::kConfiguration, "{}, array '{}': element {} is {:.0f}, which {} cannot hold", path,
           inputs_[index].name, i, found[i], dataTypeName(wanted));
    }
  }

  EpochEnd end_;
  int64_t steps_per_epoch_ = 1;
  bool has_last_batch_ = false;
  std::vector<int64_t> rows_;  // of the array, along the input's axis
  std::vector<std::vector<std::byte>> content_;
};

}  // namespace

void DataSource::fill(size_t input, int64_t step, const Shard& box, std::span<std::byte> out) {
  const ProgramInput& description = inputs_.at(input);
  const std::string fault = boxFault(description.shape, box);
  PIPESHARD_CHECK(fault.empty(), "input '{}': {}", description.name, fault);
  const size_t bytes = byteCount(description.data_type, box.size);
  PIPESHARD_CHECK(out.size() == bytes, "input '{}': {} bytes for {}", description.name, out.size(),
                  printBox(box));
  if (description.drawn) return writeRandomNumbers(description, seed_, step, box, out);
  write(input, step, box, out);
}

void DataSource::fill(size_t input, int64_t step, int64_t offset, std::span<std::byte> out) {
  const ProgramInput& description = inputs_.at(input);
  Shard box = wholeBox(description.shape);
  PIPESHARD_CHECK(description.axis >= 0 || offset == 0, "input '{}' is not cut", description.name);
  if (description.axis >= 0) {
    const size_t axis = description.axis;
    box.start[axis] = offset;
    box.size[axis] = 1;
    const size_t row_bytes = byteCount(description.data_type, box.size);
    box.size[axis] = row_bytes == 0 ? 0 : static_cast<int64_t>(out.size() / row_bytes);
  }
  fill(input, step, box, out);
}

int64_t lastBatchOf(const std::string& path, const ProgramInput& input) {
  const NpzArray array = NpzFile::open(path).read(input.name);
  const size_t axis = input.axis;
  const bool whole = axis < array.shape.size() && array.shape[axis] >= input.shape[axis];
  // what does not fit is refused when the data are opened
  return whole ? array.shape[axis] % input.shape[axis] : 0;
}

std::unique_ptr<DataSource> makeSyntheticData(const std::vector<ProgramInput>& inputs, uint64_t seed,
                                              const EpochEnd& end) {
  return std::make_unique<SyntheticData>(inputs, seed, end);
}

std::unique_ptr<DataSource> openNpzData(const std::string& path, const std::vector<ProgramInput>& inputs,
                                        const std::vector<bool>& needed, const EpochEnd& end, uint64_t seed) {
  return std::make_unique<NpzData>(path, inputs, needed, end, seed);
}

std::unique_ptr<DataSource> makeDataSource(const DataDescription& description, const Program& program) {
  if (description.path.empty()) return makeSyntheticData(program.inputs, description.seed, description.end);
  std::vector<bool> needed(program.inputs.size(), false);
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind != InstructionKind::kLoadInput) continue;
    const std::string& name = program.buffer(instruction.outputs.at(0)).value;
    for (size_t i = 0; i < needed.size(); ++i) needed[i] = needed[i] || program.inputs[i].name == name;
  }
  return openNpzData(description.path, program.inputs, needed, description.end, description.seed);
}

}  // namespace pipeshard
