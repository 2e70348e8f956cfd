#include "runtime/data/data.h"

#include <algorithm>

#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "runtime/data/array_data.h"
#include "runtime/data/batch_check.h"
#include "runtime/data/batch_ring.h"
#include "runtime/data/stored_array.h"
#include "runtime/files/random_numbers.h"

namespace pipeshard {
namespace {

class SyntheticData : public DataSource {
 public:
  SyntheticData(const std::vector<ProgramInput>& inputs, uint64_t seed, const EpochEnd& end,
                const ShorterInputs& shorter)
      : DataSource(inputs, seed, shorter) {
    if (end.last_batch > 0 && !end.drop_last) sizes_.push_back(StepSize::kLastBatch);
    for (size_t length = 1; length <= shorter.size(); ++length) sizes_.push_back({false, length});
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

  bool isSynthetic() const override { return true; }
  bool isLastBatch(int64_t step) const override { return ofStep(step).last_batch; }
  size_t lengthOf(int64_t step) const override { return ofStep(step).length; }

 private:
  void write(size_t input, int64_t step, const Shard& box, std::span<std::byte> out) override {
    writeRandomNumbers(inputIn(step, input), seed_, step, box, out);
  }
  const StepSize& ofStep(int64_t step) const { return sizes_[(step - 1) % std::ssize(sizes_)]; }

  std::vector<StepSize> sizes_ = {StepSize::kWholeBatch};  // which take turns
};

// Options that say something of data that are not there.
void refuseWithoutData(const DataDescription& description) {
  const bool piped = isPipe(description);
  if (!description.path.empty() && !piped) return;
  for (const auto& [given, option] :
       {std::pair(description.shuffle, "--shuffle"), std::pair(description.shift_labels, "--shift-labels"),
        std::pair(description.end_of_text >= 0, "--end-of-text"),
        // of synthetic data it leaves out the shorter batches that the plan is for, if there are any
        std::pair(description.end.drop_last && (piped || description.end.last_batch == 0), "--drop-last"),
        std::pair(description.truncate && !piped, "--truncate"),
        std::pair(!description.padding.empty() && !piped, "--pad")}) {
    if (!given) continue;
    if (piped)
      fail(ErrorCode::kUsage, "{} goes with --data of a file or folder; a loader gives batches as they are",
           option);
    fail(ErrorCode::kUsage, "{} goes with --data; synthetic data are random as they are", option);
  }
}

}  // namespace

void DataSource::fill(size_t input, int64_t step, const Shard& box, std::span<std::byte> out) {
  const ProgramInput& description = inputIn(step, input);
  const std::string fault = boxFault(description.shape, box);
  PIPESHARD_CHECK(fault.empty(), "input '{}': {}", description.name, fault);
  const size_t bytes = byteCount(description.data_type, box.size);
  PIPESHARD_CHECK(out.size() == bytes, "input '{}': {} bytes for {}", description.name, out.size(),
                  printBox(box));
  if (description.drawn) return writeRandomNumbers(description, seed_, step, box, out);
  write(input, step, box, out);
}

void DataSource::fill(size_t input, int64_t step, int64_t offset, std::span<std::byte> out) {
  const ProgramInput& description = inputIn(step, input);
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

DataOutline outlineData(const DataDescription& description, const std::vector<ProgramInput>& inputs,
                        const ShorterInputs& shorter) {
  refuseWithoutData(description);
  if (isPipe(description)) {
    fail(ErrorCode::kUsage, "--data {}: what comes through a pipe has no length that is known; leave it out",
         description.path);
  }
  DataOutline outline;
  if (description.path.empty()) return outline;
  const RowLengths lengths(description, inputs, shorter);
  const std::unique_ptr<ArrayStore> store = openArrays(description, inputs, lengths);
  std::optional<ArrayRows> first;
  for (const ProgramInput& input : inputs) {
    if (input.drawn) continue;
    const Shape found = store->open(input)->shape();
    const int axis = store->rowAxis(input);
    // what does not fit is refused when the data are opened
    if (input.axis < 0 || axis < 0 || axis >= std::ssize(found) || axis >= std::ssize(input.shape)) continue;
    const ArrayRows rows{input.name, found[axis]};
    if (first) requireSameRows(description.path, *first, rows);
    const int64_t batch = input.shape[axis];
    const bool whole = batch > 0 && rows.count >= batch;
    if (!first && whole && !description.end.drop_last) outline.last_batch = rows.count % batch;
    if (!first && rows.count < batch)
      outline.too_few = describeTooFew(description.end.parts, rows.count, batch);
    if (!first) first = rows;
  }
  outline.unused = describeUnused(*store, inputs);
  return outline;
}

std::unique_ptr<DataSource> makeSyntheticData(const std::vector<ProgramInput>& inputs, uint64_t seed,
                                              const EpochEnd& end, const ShorterInputs& shorter) {
  return std::make_unique<SyntheticData>(inputs, seed, end, shorter);
}

std::unique_ptr<DataSource> openData(const DataDescription& description,
                                     const std::vector<ProgramInput>& inputs, const std::vector<bool>& needed,
                                     const ShorterInputs& shorter) {
  if (description.ring_descriptor >= 0) return makeRingData(description, inputs, shorter);
  refuseWithoutData(description);
  if (isPipe(description)) return describePipe(description, inputs, shorter);
  const RowLengths lengths(description, inputs, shorter);
  if (!description.path.empty())
    return makeArrayData(description, *openArrays(description, inputs, lengths), inputs, needed, shorter);
  return makeSyntheticData(inputs, description.seed, description.end, shorter);
}

std::unique_ptr<DataSource> makeDataSource(const DataDescription& description, const Program& program,
                                           const ShorterInputs& shorter) {
  std::vector<bool> needed(program.inputs.size(), false);
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind != InstructionKind::kLoadInput) continue;
    const std::string& name = program.buffer(instruction.outputs.at(0)).value;
    for (size_t i = 0; i < needed.size(); ++i) needed[i] = needed[i] || program.inputs[i].name == name;
  }
  return openData(description, program.inputs, needed, shorter);
}

}  // namespace pipeshard
