#include "ir/program/program.h"

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "ir/program/numbers.h"

namespace pipeshard {

std::string_view bufferKindName(BufferKind kind) {
  switch (kind) {
    case BufferKind::kParameter: return "parameter";
    case BufferKind::kWeight: return "weight";
    case BufferKind::kOptimizerState: return "optimizer_state";
    case BufferKind::kForwardState: return "forward_state";
    case BufferKind::kStep: return "step";
    case BufferKind::kGradient: return "gradient";
    case BufferKind::kAccumulator: return "accumulator";
    case BufferKind::kInput: return "input";
    case BufferKind::kActivation: return "activation";
    case BufferKind::kWeightVersion: return "weight_version";
  }
  return "unknown";
}

bool isPersistent(BufferKind kind) {
  return kind == BufferKind::kParameter || kind == BufferKind::kWeight ||
         kind == BufferKind::kOptimizerState || kind == BufferKind::kForwardState ||
         kind == BufferKind::kStep;
}

int updateOf(const Program& program, const Instruction& instruction) {
  return instruction.microbatch < 0
             ? 0
             : static_cast<int>(instruction.microbatch * program.updates_per_step / program.microbatches);
}

const Shape& wholeShape(const Buffer& buffer) { return buffer.part ? buffer.part->whole : buffer.shape; }

Shard boxOf(const Buffer& buffer) {
  return buffer.part ? Shard{buffer.part->start, buffer.shape} : wholeBox(buffer.shape);
}

Shard loadedBox(const ProgramInput& input, const Buffer& buffer, int64_t offset) {
  const Shape& rows = wholeShape(buffer);  // of one microbatch
  Shard loaded{Shape(rows.size(), 0), rows};
  if (input.axis >= 0 && input.axis < std::ssize(rows)) loaded.start[input.axis] = offset;
  bool fits = input.data_type == buffer.data_type && boxFault(input.shape, loaded).empty() &&
              boxFault(rows, boxOf(buffer)).empty();
  for (size_t axis = 0; fits && axis < rows.size(); ++axis) {
    fits = static_cast<int>(axis) == input.axis || rows[axis] == input.shape[axis];
  }
  if (!fits || (input.axis < 0 && offset != 0)) {
    const std::string part = buffer.part ? fmt::format(" (part of {} from {} on)", shapeToString(rows),
                                                       shapeToString(buffer.part->start))
                                         : "";
    fail(ErrorCode::kConfiguration, "\"{}\" ({}{}){} from {} on is no part of {}{}", buffer.name,
         dataTypeName(buffer.data_type), shapeToString(buffer.shape), part, offset,
         dataTypeName(input.data_type), shapeToString(input.shape));
  }
  Shard box = boxOf(buffer);
  for (size_t axis = 0; axis < rows.size(); ++axis) box.start[axis] += loaded.start[axis];
  return box;
}

std::string_view instructionKindName(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::kLoadInput: return "load_input";
    case InstructionKind::kRun: return "run";
    case InstructionKind::kUpdate: return "update";
    case InstructionKind::kAccumulate: return "accumulate";
    case InstructionKind::kSend: return "send";
    case InstructionKind::kReceive: return "receive";
    case InstructionKind::kFree: return "free";
    case InstructionKind::kAllReduce: return "all_reduce";
    case InstructionKind::kSlice: return "slice";
    case InstructionKind::kConcatenate: return "concatenate";
    case InstructionKind::kZero: return "zero";
  }
  return "unknown";
}

void advance(Instruction& instruction, std::span<const int64_t> steps, int64_t iterations) {
  const auto next = [&] {
    const int64_t grown = steps.front() * iterations;
    steps = steps.subspan(1);
    return grown;
  };
  if (instruction.microbatch >= 0) instruction.microbatch += static_cast<int>(next());
  instruction.offset += next();
  for (std::vector<BufferId>* ids : {&instruction.inputs, &instruction.outputs}) {
    for (BufferId& id : *ids) id = BufferId(static_cast<size_t>(static_cast<int64_t>(id.index()) + next()));
  }
}

void advance(Buffer& buffer, std::span<const int64_t> steps, int64_t iterations) {
  if (steps.empty() || steps.front() == 0) return;
  setNumbers(buffer, std::vector<int64_t>{numbersOf(buffer).front() + steps.front() * iterations});
}

template class LoopedList<Buffer>;
template class LoopedList<Instruction>;

}  // namespace pipeshard
