#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "ir/program/program.h"

namespace pipeshard {
namespace {

std::string quoted(const Program& program, const std::vector<BufferId>& buffers, size_t most = SIZE_MAX) {
  std::string text;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const BufferId id = buffers[i];
    if (i == most) return text + fmt::format(" and {} more", buffers.size() - most);
    if (!text.empty()) text += ", ";
    text += id.valid() && id.index() < program.buffers.size() ? "\"" + program.buffer(id).name + "\"" : "?";
  }
  return text;
}

std::string sourceText(const Buffer& buffer) {
  std::string text;
  if (const auto* weight = std::get_if<WeightReference>(&*buffer.source)) {
    text = fmt::format(" from {} [{}, +{}]", weight->location, weight->offset, weight->length);
  } else {
    text = fmt::format(" from {} bytes in the program", std::get<Constant>(*buffer.source).bytes.size());
  }
  if (buffer.source_type != buffer.data_type)
    text += fmt::format(" stored as {}", dataTypeName(buffer.source_type));
  return text;
}

std::string bufferLine(const Buffer& buffer) {
  std::string text = fmt::format("  \"{}\": {} {}{}", buffer.name, bufferKindName(buffer.kind),
                                 dataTypeName(buffer.data_type), shapeToString(buffer.shape));
  if (!buffer.value.empty() && buffer.value != buffer.name) text += fmt::format(" of {}", buffer.value);
  if (buffer.part)
    text += fmt::format(" part of {} from {} on", shapeToString(buffer.part->whole),
                        shapeToString(buffer.part->start));
  if (buffer.source) text += sourceText(buffer);
  return text + "\n";
}

std::string_view resultKindName(Result::Kind kind) {
  switch (kind) {
    case Result::Kind::kLoss: return "loss";
    case Result::Kind::kGradient: return "gradient";
    case Result::Kind::kParameter: return "parameter";
    case Result::Kind::kOptimizerState: return "optimizer_state";
    case Result::Kind::kForwardState: return "forward_state";
  }
  return "unknown";
}

}  // namespace

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
  if (input.axis >= 0 && static_cast<size_t>(input.axis) < rows.size())
    loaded.start[static_cast<size_t>(input.axis)] = offset;
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

std::string describeInstruction(const Program& program, const Instruction& instruction, size_t most_buffers) {
  std::string text(instructionKindName(instruction.kind));
  const SubgraphId subgraph = instruction.subgraph;
  if (subgraph.valid())
    text +=
        " " + (subgraph.index() < program.subgraphs.size() ? program.subgraphs[subgraph.index()].name : "?");
  if (instruction.background) text += " background";
  if (instruction.microbatch >= 0) text += fmt::format(" microbatch={}", instruction.microbatch);
  if (instruction.peer >= 0) text += fmt::format(" peer={}", instruction.peer);
  if (instruction.group >= 0) text += fmt::format(" group={}", instruction.group);
  if (instruction.overwrite) text += " overwrite";
  if (instruction.axis >= 0) text += fmt::format(" axis={}", instruction.axis);
  if (instruction.offset > 0) text += fmt::format(" offset={}", instruction.offset);
  if (!instruction.inputs.empty()) text += " " + quoted(program, instruction.inputs, most_buffers);
  if (!instruction.outputs.empty()) text += " -> " + quoted(program, instruction.outputs, most_buffers);
  return text;
}

std::string printProgram(const Program& program) {
  std::string text =
      fmt::format("program of rank {} of {}, {} microbatch{}\n", program.rank, program.world_size,
                  program.microbatches, program.microbatches == 1 ? "" : "es");
  if (!program.inputs.empty()) text += "inputs\n";
  for (const ProgramInput& input : program.inputs) {
    text +=
        fmt::format("  \"{}\": {}{}", input.name, dataTypeName(input.data_type), shapeToString(input.shape));
    text += input.axis >= 0 ? fmt::format(" cut along axis {}", input.axis) : " not cut";
    text += input.low != input.high ? fmt::format(", in [{}, {})\n", input.low, input.high) : "\n";
  }
  if (!program.groups.empty()) text += "groups\n";
  for (size_t i = 0; i < program.groups.size(); ++i)
    text += fmt::format("  {}: {}\n", i, fmt::join(program.groups[i], ","));
  if (!program.subgraphs.empty()) text += "subgraphs\n";
  for (const Subgraph& subgraph : program.subgraphs) {
    text +=
        fmt::format("  {} ({}, {}): [{}] -> [{}]", subgraph.name, subgraph.file, phaseName(subgraph.phase),
                    fmt::join(subgraph.inputs, ", "), fmt::join(subgraph.outputs, ", "));
    text += subgraph.collectives.empty()
                ? "\n"
                : fmt::format(" collectives over groups {}\n", fmt::join(subgraph.collectives, ","));
  }
  if (!program.buffers.empty()) text += "buffers\n";
  for (const Buffer& buffer : program.buffers) text += bufferLine(buffer);
  if (!program.instructions.empty()) text += "instructions\n";
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    text += fmt::format("  {:>4}  {}\n", i, describeInstruction(program, program.instructions[i], SIZE_MAX));
  }
  if (!program.results.empty()) text += "results\n";
  for (const Result& result : program.results) {
    text += fmt::format("  {} {}{}{}: {}\n", resultKindName(result.kind), result.name,
                        result.state.empty() ? "" : "." + result.state,
                        result.update < 0 ? "" : fmt::format(" of update {}", result.update),
                        quoted(program, {result.buffer}));
  }
  return text;
}

}  // namespace pipeshard
