#include "runtime/files/data.h"

#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "runtime/files/array_data.h"
#include "runtime/files/random_numbers.h"
#include "runtime/files/stored_array.h"

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
  DataDescription description;
  description.path = path;
  const std::unique_ptr<ArrayStore> store = openArrays(description);
  const Shape found = store->open(input)->shape();
  const int axis = store->rowAxis(input);
  const bool whole = axis >= 0 && axis < std::ssize(found) && found[axis] >= input.shape[axis];
  // what does not fit is refused when the data are opened
  return whole ? found[axis] % input.shape[axis] : 0;
}

std::string printData(const DataDescription& description) {
  std::string text = description.path;
  if (description.shuffle) text += ", shuffled";
  if (description.shift_labels) text += ", labels shifted";
  if (description.end.drop_last) text += ", the last rows dropped";
  return text;
}

std::unique_ptr<DataSource> makeSyntheticData(const std::vector<ProgramInput>& inputs, uint64_t seed,
                                              const EpochEnd& end) {
  return std::make_unique<SyntheticData>(inputs, seed, end);
}

std::unique_ptr<DataSource> openData(const DataDescription& description,
                                     const std::vector<ProgramInput>& inputs,
                                     const std::vector<bool>& needed) {
  if (!description.path.empty()) return makeArrayData(description, *openArrays(description), inputs, needed);
  for (const auto& [given, option] :
       {std::pair(description.shuffle, "--shuffle"), std::pair(description.shift_labels, "--shift-labels")}) {
    if (given) fail(ErrorCode::kUsage, "{} goes with --data; synthetic data are random as they are", option);
  }
  return makeSyntheticData(inputs, description.seed, description.end);
}

std::unique_ptr<DataSource> makeDataSource(const DataDescription& description, const Program& program) {
  std::vector<bool> needed(program.inputs.size(), false);
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind != InstructionKind::kLoadInput) continue;
    const std::string& name = program.buffer(instruction.outputs.at(0)).value;
    for (size_t i = 0; i < needed.size(); ++i) needed[i] = needed[i] || program.inputs[i].name == name;
  }
  return openData(description, program.inputs, needed);
}

}  // namespace pipeshard
