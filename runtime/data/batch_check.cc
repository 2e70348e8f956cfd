#include "runtime/data/batch_check.h"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "ir/base/convert.h"
#include "ir/base/error.h"
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

// The place of the first of `count` integers of a type for which is_wrong(number) holds; nothing: there is
// none. Numbers of uint64 that int64 does not have come as negative ones.
template <typename IsWrong>
std::optional<int64_t> findInteger(DataType type, std::span<const std::byte> bytes, int64_t count,
                                   const IsWrong& is_wrong) {
  std::array<int64_t, 512> numbers;
  const size_t each = dataTypeSize(type);
  for (int64_t done = 0; done < count; done += std::ssize(numbers)) {
    const int64_t piece = std::min<int64_t>(std::ssize(numbers), count - done);
    convertElements(type, bytes.data() + done * each, DataType::kInt64, numbers.data(), piece);
    const auto wrong = std::find_if(numbers.begin(), numbers.begin() + piece, is_wrong);
    if (wrong != numbers.begin() + piece) return done + (wrong - numbers.begin());
  }
  return std::nullopt;
}

bool isUnsigned(DataType type) {
  return type == DataType::kUint8 || type == DataType::kUint16 || type == DataType::kUint32 ||
         type == DataType::kUint64;
}

// Whether an integer type has every number of another.
bool holds(DataType wide, DataType narrow) {
  const bool from_unsigned = isUnsigned(narrow), to_unsigned = isUnsigned(wide);
  if (from_unsigned == to_unsigned) return dataTypeSize(wide) >= dataTypeSize(narrow);
  return from_unsigned && dataTypeSize(wide) > dataTypeSize(narrow);
}

// What an integer type has, of what int64 has.
std::pair<int64_t, int64_t> rangeOf(DataType type) {
  const int bits = static_cast<int>(8 * dataTypeSize(type));
  if (isUnsigned(type)) return {0, bits == 64 ? INT64_MAX : (int64_t{1} << bits) - 1};
  const int64_t high = INT64_MAX >> (64 - bits);
  return {-high - 1, high};
}

std::optional<std::string> rangeFault(const ProgramInput& input, DataType found, const Shard& box,
                                      std::span<const std::byte> bytes) {
  const DataType wanted = input.data_type;
  if (!isInteger(found) || !isInteger(wanted) || holds(wanted, found)) return std::nullopt;
  const auto [low, high] = rangeOf(wanted);
  const int64_t least = isUnsigned(found) ? 0 : low;
  const auto wrong = findInteger(found, bytes, elementCount(box.size), [&, high = high](int64_t number) {
    return number < least || number > high;
  });
  if (!wrong) return std::nullopt;
  int64_t number = 0;
  convertElements(found, bytes.data() + *wrong * dataTypeSize(found), DataType::kInt64, &number, 1);
  return fmt::format(
      "array '{}': element {} is {}, which {} cannot hold", input.name,
      shapeToString(placeInBox(box, *wrong)),
      isUnsigned(found) ? fmt::format("{}", static_cast<uint64_t>(number)) : fmt::format("{}", number),
      dataTypeName(wanted));
}

// A box of the batch of a step, of one input.
std::vector<std::byte> readBatch(const ProgramInput& input, DataSource& data, size_t index, int64_t step,
                                 const Shard& box) {
  std::vector<std::byte> bytes(byteCount(input.data_type, box.size));
  data.fill(index, step, box, bytes);
  return bytes;
}

// describeNotAllowed of an input of the step's batch. Row by row, as rows of a batch lie anywhere in a file.
std::optional<std::string> faultOfBatch(const ProgramInput& input, DataSource& data, size_t index,
                                        int64_t step) {
  Shard box = wholeBox(input.shape);
  const int64_t rows = input.axis < 0 ? 1 : input.shape[input.axis];
  for (int64_t row = 0; row < rows; ++row) {
    std::optional<FileRow> place;
    if (input.axis >= 0) {
      box.start[input.axis] = row;
      box.size[input.axis] = 1;
      place = data.fileRowOf(step, row);
    }
    const std::vector<std::byte> bytes = readBatch(input, data, index, step, box);
    Shard in_file = box;
    if (place) in_file.start[input.axis] = place->row;
    if (const auto fault = describeNotAllowed(input, input.data_type, in_file, bytes))
      return (place ? place->path : "in the step's batch") + ", " + *fault;
  }
  return std::nullopt;
}

// "0 to 9 (or -100, which is ignored)".
std::string describeAllowed(const AllowedIntegers& allowed) {
  std::string text = fmt::format("{} to {}", allowed.low, allowed.high - 1);
  if (allowed.ignored) text += fmt::format(" (or {}, which is ignored)", *allowed.ignored);
  return text;
}

}  // namespace

int64_t batchRowsOf(const std::vector<ProgramInput>& inputs, const std::string& source) {
  const ProgramInput* first = nullptr;
  for (const ProgramInput& input : inputs) {
    if (input.drawn || input.axis < 0) continue;
    if (first == nullptr) first = &input;
    const int64_t rows = input.shape[input.axis], expected = first->shape[first->axis];
    if (rows == expected) continue;
    fail(ErrorCode::kConfiguration,
         "{}: a batch has {} rows of input '{}' but {} of '{}'; give --data instead", source, expected,
         first->name, rows, input.name);
  }
  return first == nullptr ? 1 : first->shape[first->axis];
}

void requireSameRows(const std::string& path, const ArrayRows& one, const ArrayRows& other) {
  if (one.count == other.count) return;
  fail(ErrorCode::kConfiguration,
       "{}: array '{}' has {} examples but array '{}' has {}; they must be as many", path, one.input,
       one.count, other.input, other.count);
}

bool mayStandFor(DataType found, DataType wanted) {
  if (found == wanted) return true;
  if (isFloatingPoint(found)) return isFloatingPoint(wanted);
  const auto counts = [](DataType type) { return isInteger(type) || type == DataType::kBool; };
  return counts(found) && counts(wanted);
}

std::optional<std::string> numberFault(const ProgramInput& input, DataType found, const Shard& box,
                                       std::span<const std::byte> bytes) {
  if (std::optional<std::string> fault = rangeFault(input, found, box, bytes)) return fault;
  if (!input.allowed || !input.allowed->exact) return std::nullopt;
  return describeNotAllowed(input, found, box, bytes);
}

std::optional<std::string> describeNotAllowed(const ProgramInput& input, DataType data_type, const Shard& box,
                                              std::span<const std::byte> bytes) {
  if (!input.allowed || !isInteger(data_type)) return std::nullopt;
  const auto wrong = findInteger(data_type, bytes, elementCount(box.size),
                                 [&](int64_t number) { return !input.allowed->contains(number); });
  if (!wrong) return std::nullopt;
  int64_t number = 0;
  convertElements(data_type, bytes.data() + *wrong * dataTypeSize(data_type), DataType::kInt64, &number, 1);
  const Shape place = placeInBox(box, *wrong);
  const std::string row = input.axis < 0 ? "" : fmt::format(", row {}", place[input.axis]);
  return fmt::format("array '{}'{}: found {} at {}, but the model takes integers from {}", input.name, row,
                     number, shapeToString(place), describeAllowed(*input.allowed));
}

std::string explainFailedStep(const Program& program, DataSource& data, int64_t step) {
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const ProgramInput& input = program.inputs[i];
    if (!input.allowed || !isLoaded(program, input.name)) continue;
    if (const auto fault = faultOfBatch(input, data, i, step)) return *fault;
  }
  return "";
}

std::string explainNotFiniteLoss(const Program& program, DataSource& data, int64_t step) {
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const ProgramInput& input = program.inputs[i];
    if (!input.allowed || !input.allowed->ignored || !isLoaded(program, input.name)) continue;
    const std::vector<std::byte> labels = readBatch(input, data, i, step, wholeBox(input.shape));
    const auto counted = findInteger(input.data_type, labels, elementCount(input.shape),
                                     [&](int64_t label) { return label != input.allowed->ignored; });
    if (!counted) {
      return fmt::format(
          "every label of its batch ('{}') is {}, which the loss ignores, so the mean over labels is 0/0; "
          "leave such batches out",
          input.name, *input.allowed->ignored);
    }
  }
  if (data.isSynthetic()) {
    return "its inputs are random numbers, for no data were given, and these alone may be to blame (a length "
           "of 0, a mask of ones); give real ones (--data FILE), or else lower the learning rate";
  }
  return "lower the learning rate or check the data (a mean over labels that are all ignored is 0/0)";
}

}  // namespace pipeshard
