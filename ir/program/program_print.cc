#include "ir/program/program_print.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/ids_format.h"

namespace pipeshard {
namespace {

std::string quoted(const Program& program, const std::vector<BufferId>& buffers, size_t most = SIZE_MAX) {
  std::string text;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const BufferId id = buffers[i];
    if (i == most) return text + fmt::format(" and {} more", buffers.size() - most);
    if (!text.empty()) text += ", ";
    text += id.valid() && id.index() < program.buffers.size() ? "\"" + program.nameOf(id) + "\"" : "?";
  }
  return text;
}

std::string sourceText(const Buffer& buffer) {
  std::string text;
  if (const auto* weight = std::get_if<WeightReference>(&*buffer.source);
      weight != nullptr && weight->drawn) {
    text = " drawn";
  } else if (weight != nullptr) {
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
    case Result::Kind::kOutput: return "output";
    case Result::Kind::kMeasure: return "measure";
  }
  return "unknown";
}

}  // namespace

std::string describeInstruction(const Program& program, const Instruction& instruction, size_t most_buffers) {
  std::string text(instructionKindName(instruction.kind));
  const SubgraphId subgraph = instruction.subgraph;
  if (subgraph.valid())
    text +=
        " " + (subgraph.index() < program.subgraphs.size() ? program.subgraphs[subgraph.index()].name : "?");
  if (instruction.background) text += " background";
  if (instruction.microbatch >= 0) text += fmt::format(" microbatch={}", instruction.microbatch);
  if (instruction.peer.valid()) text += fmt::format(" peer={}", instruction.peer);
  if (instruction.group.valid()) text += fmt::format(" group={}", instruction.group);
  if (instruction.overwrite) text += " overwrite";
  if (instruction.axis >= 0) text += fmt::format(" axis={}", instruction.axis);
  if (instruction.offset > 0) text += fmt::format(" offset={}", instruction.offset);
  if (!instruction.inputs.empty()) text += " " + quoted(program, instruction.inputs, most_buffers);
  if (!instruction.outputs.empty()) text += " -> " + quoted(program, instruction.outputs, most_buffers);
  return text;
}

std::string describeAt(const Program& program, size_t instruction) {
  return fmt::format("rank {}, instruction {} ({})", program.rank, instruction,
                     describeInstruction(program, program.instructions.copyAt(instruction)));
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
    if (input.drawn) text += ", drawn";
    text += input.low != input.high ? fmt::format(", in [{}, {})\n", input.low, input.high) : "\n";
  }
  if (!program.groups.empty()) text += "groups\n";
  for (GroupId group : program.groups.ids())
    text += fmt::format("  {}: {}\n", group, fmt::join(program.groups[group], ","));
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
  size_t i = 0;
  for (const Instruction& instruction : program.instructions) {
    text += fmt::format("  {:>4}  {}\n", i++, describeInstruction(program, instruction, SIZE_MAX));
  }
  if (!program.results.empty()) text += "results\n";
  for (const Result& result : program.results) {
    text += fmt::format("  {} {}{}{}{}: {}\n", resultKindName(result.kind), result.name,
                        result.state.empty() ? "" : "." + result.state,
                        result.update < 0 ? "" : fmt::format(" of update {}", result.update),
                        result.microbatch < 0 ? "" : fmt::format(" of microbatch {}", result.microbatch),
                        quoted(program, {result.buffer}));
  }
  if (program.guard.valid()) text += fmt::format("guard {}\n", quoted(program, {program.guard}));
  if (program.loss_scale.valid())
    text += fmt::format("loss scale {}\n", quoted(program, {program.loss_scale}));
  return text;
}

}  // namespace pipeshard
