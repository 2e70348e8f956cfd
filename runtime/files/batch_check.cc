#include "runtime/files/batch_check.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "ir/base/convert.h"
#include "ir/base/tensor_box.h"

namespace pipeshard {
namespace {

bool isLoaded(const Program& program, const std::string& input) {
  return std::any_of(program.instructions.begin(), program.instructions.end(),
                     [&](const Instruction& instruction) {
                       return instruction.kind == InstructionKind::kLoadInput &&
                              program.buffer(instruction.outputs.at(0)).value == input;
                     });
}

std::vector<int64_t> integersOf(DataType type, const Shape& shape, std::span<const std::byte> bytes) {
  std::vector<int64_t> numbers(elementCount(shape));
  convertElements(type, bytes.data(), DataType::kInt64, numbers.data(), numbers.size());
  return numbers;
}

// The batch of a step, of one input.
std::vector<std::byte> batchOf(const ProgramInput& input, DataSource& data, size_t index, int64_t step) {
  std::vector<std::byte> bytes(byteCount(input.data_type, input.shape));
  data.fill(index, step, 0, bytes);
  return bytes;
}

// "0 to 9 (or -100, which is ignored)".
std::string describeAllowed(const AllowedIntegers& allowed) {
  std::string text = fmt::format("{} to {}", allowed.low, allowed.high - 1);
  if (allowed.ignored) text += fmt::format(" (or {}, which is ignored)", *allowed.ignored);
  return text;
}

}  // namespace

Shape placeInBox(const Shard& box, int64_t element) {
  Shape place = box.start;
  for (size_t axis = place.size(); axis-- > 0;) {
    place[axis] += element % box.size[axis];
    element /= box.size[axis];
  }
  return place;
}

std::optional<std::string> describeNotAllowed(const ProgramInput& input, DataType data_type, const Shard& box,
                                              std::span<const std::byte> bytes) {
  if (!input.allowed || !isInteger(data_type)) return std::nullopt;
  const std::vector<int64_t> numbers = integersOf(data_type, box.size, bytes);
  const auto wrong = std::find_if(numbers.begin(), numbers.end(),
                                  [&](int64_t number) { return !input.allowed->contains(number); });
  if (wrong == numbers.end()) return std::nullopt;
  const Shape place = placeInBox(box, wrong - numbers.begin());
  const std::string row = input.axis < 0 ? "" : fmt::format(", row {}", place[input.axis]);
  return fmt::format("array '{}'{}: found {} at {}, but the model takes integers from {}", input.name, row,
                     *wrong, shapeToString(place), describeAllowed(*input.allowed));
}

std::string explainFailedStep(const Program& program, DataSource& data, int64_t step) {
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const ProgramInput& input = program.inputs[i];
    if (!input.allowed || !isLoaded(program, input.name)) continue;
    if (const auto fault =
            describeNotAllowed(input, input.data_type, wholeBox(input.shape), batchOf(input, data, i, step)))
      return "; in this step's batch, " + *fault;
  }
  return "";
}

std::string explainNotFiniteLoss(const Program& program, DataSource& data, int64_t step) {
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const ProgramInput& input = program.inputs[i];
    if (!input.allowed || !input.allowed->ignored || !isLoaded(program, input.name)) continue;
    const std::vector<int64_t> labels =
        integersOf(input.data_type, input.shape, batchOf(input, data, i, step));
    if (std::all_of(labels.begin(), labels.end(),
                    [&](int64_t label) { return label == input.allowed->ignored; })) {
      return fmt::format(
          "every label of its batch ('{}') is {}, which the loss ignores, so the mean over labels is 0/0; "
          "leave such batches out",
          input.name, *input.allowed->ignored);
    }
  }
  return "lower the learning rate or check the data (a mean over labels that are all ignored is 0/0)";
}

}  // namespace pipeshard
