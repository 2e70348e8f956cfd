#include "ir/program/program_verify.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/ranges.h>

#include "ir/base/ids_format.h"
#include "ir/base/tensor_box.h"
#include "ir/program/name_index.h"
#include "ir/program/program_print.h"
#include "ir/program/program_verify_failure.h"
#include "ir/program/program_verify_lifetimes.h"
#include "ir/program/program_verify_waits.h"

namespace pipeshard {
namespace {

std::string tensorText(const Buffer& buffer) {
  return fmt::format("\"{}\" ({}{})", buffer.name, dataTypeName(buffer.data_type),
                     shapeToString(buffer.shape));
}

bool sameTensor(const Buffer& a, const Buffer& b) { return a.data_type == b.data_type && a.shape == b.shape; }

// What an instruction of each kind must have.
struct Form {
  int inputs = -1;  // -1: as the subgraph says; without one: at least one
  int outputs = -1;
  bool subgraph = false;
  bool peer = false;
  bool group = false;
};

Form formOf(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::kLoadInput: return {0, 1, false, false, false};
    case InstructionKind::kRun:
    case InstructionKind::kUpdate: return {-1, -1, true, false, false};
    case InstructionKind::kAccumulate: return {1, 1, false, false, false};
    case InstructionKind::kSend: return {1, 0, false, true, false};
    case InstructionKind::kReceive: return {0, 1, false, true, false};
    case InstructionKind::kFree: return {1, 0, false, false, false};
    case InstructionKind::kAllReduce: return {1, 1, false, false, true};
    case InstructionKind::kSlice: return {1, 1, false, false, false};
    case InstructionKind::kConcatenate: return {-1, 1, false, false, false};
    case InstructionKind::kZero: return {0, 1, false, false, false};
  }
  return {};
}

// What one program shows without being run: forms, ids, shapes, peers and groups. The order matters: header,
// buffers, groups and subgraphs first, then instructions, and of each instruction its ids before its form,
// and its form before what depends on its kind. So every check may use as an index what an earlier one has
// found in range. Other programs are looked at only for what all ranks must have alike: microbatches, updates
// and the list of batch inputs, compared with rank 0.
class StructureVerifier {
 public:
  // `first`: rank 0, of `ranks` programs.
  StructureVerifier(const Program& first, size_t ranks, const Program& program)
      : first_(first), ranks_(ranks), program_(program) {}

  void run(RankId expected_rank) {
    verifyHeader(expected_rank);
    verifyBuffers();
    read_at_.assign(program_.buffers.size(), kNever);
    written_at_.assign(program_.buffers.size(), kNever);
    verifyGroups();
    verifySubgraphs();
    findForegroundRuns();
    at_ = 0;
    for (const Instruction& instruction : program_.instructions) {
      verifyInstruction(instruction);
      ++at_;
    }
    for (const Result& result : program_.results) verifyResult(result);
    verifyGuard();
    verifyLossScale();
  }

 private:
  std::string rankText() const { return fmt::format("rank {}", program_.rank); }
  [[noreturn]] void failHere(const std::string& message) const { failVerification(rankText(), message); }
  [[noreturn]] void failInstruction(const std::string& message) const {
    failVerification(describeAt(program_, at_), message);
  }
  bool exists(RankId rank) const { return rank < RankId(program_.world_size); }
  bool exists(GroupId group) const { return group < program_.groups.nextId(); }
  std::string textOf(BufferId id) const { return tensorText(program_.buffers.copyAt(id.index())); }
  bool inRange(BufferId id) const { return id.valid() && id.index() < program_.buffers.size(); }

  void verifyHeader(RankId expected_rank) const {
    if (program_.rank != expected_rank)
      failHere(fmt::format("this program stands at position {}", expected_rank));
    if (program_.world_size < 1 || static_cast<size_t>(program_.world_size) != ranks_)
      failHere(fmt::format("its world size is {}, but there are {} programs", program_.world_size, ranks_));
    if (!exists(program_.rank)) failHere(fmt::format("there are {} ranks", program_.world_size));
    if (program_.microbatches < 1 || program_.microbatches != first_.microbatches) {
      failHere(
          fmt::format("it has {} microbatches, rank 0 has {}", program_.microbatches, first_.microbatches));
    }
    const int64_t updates = program_.updates_per_step;
    if (updates < 1 || program_.microbatches % updates != 0 || updates != first_.updates_per_step) {
      failHere(fmt::format("it makes {} updates of {} microbatches, rank 0 makes {}", updates,
                           program_.microbatches, first_.updates_per_step));
    }
    const auto same = [](const ProgramInput& a, const ProgramInput& b) {
      return a.name == b.name && a.data_type == b.data_type && a.shape == b.shape && a.axis == b.axis &&
             a.drawn == b.drawn;
    };
    if (!std::equal(program_.inputs.begin(), program_.inputs.end(), first_.inputs.begin(),
                    first_.inputs.end(), same)) {
      failHere("its list of batch inputs differs from that of rank 0");
    }
  }

  void verifyBuffers() const {
    NameIndex names(program_.buffers.size());
    const LoopedList<Buffer>::Reader buffers(program_.buffers);
    const auto name_of = [&](uint32_t position) { return std::string_view(buffers[position].name); };
    uint32_t position = 0;
    for (const Buffer& buffer : program_.buffers) {
      if (buffer.name.empty() || !names.add(buffer.name, position++, name_of))
        failHere(fmt::format("the buffer name \"{}\" is empty or taken", buffer.name));
      if (dataTypeSize(buffer.data_type) == 0 || !isStatic(buffer.shape))
        failHere(fmt::format("buffer {} has no size", tensorText(buffer)));
      const std::string fault = buffer.part ? boxFault(buffer.part->whole, boxOf(buffer)) : "";
      if (!fault.empty())
        failHere(fmt::format("buffer {} is no part of a tensor: {}", tensorText(buffer), fault));
      const bool sourced = buffer.kind == BufferKind::kParameter || buffer.kind == BufferKind::kWeight ||
                           buffer.kind == BufferKind::kForwardState;
      // a state may start as its parameter does
      const bool may_have = sourced || buffer.kind == BufferKind::kOptimizerState;
      if (buffer.source.has_value() ? !may_have : sourced) {
        failHere(fmt::format("buffer \"{}\" of kind {} {} a source", buffer.name, bufferKindName(buffer.kind),
                             sourced ? "needs" : "cannot have"));
      }
      if (buffer.kind == BufferKind::kStep &&
          (buffer.data_type != DataType::kInt64 || !buffer.shape.empty())) {
        failHere(fmt::format("the step {} must be an int64 scalar", tensorText(buffer)));
      }
      if (buffer.update < 0 || buffer.update >= program_.updates_per_step) {
        failHere(fmt::format("buffer \"{}\" is of update {}, of {}", buffer.name, buffer.update,
                             program_.updates_per_step));
      }
    }
  }

  void verifyResult(const Result& result) const {
    if (!inRange(result.buffer)) failHere(fmt::format("the result \"{}\" has no buffer", result.name));
    if (result.update >= program_.updates_per_step) {
      failHere(fmt::format("the result \"{}\" is of update {}, of {}", result.name, result.update,
                           program_.updates_per_step));
    }
    const bool is_output = result.kind == Result::Kind::kOutput;
    if (is_output != (result.microbatch >= 0) || result.microbatch >= program_.microbatches ||
        result.axis >= std::ssize(program_.buffer(result.buffer).shape)) {
      failHere(fmt::format("the result \"{}\" is of microbatch {} of {}, along axis {}", result.name,
                           result.microbatch, program_.microbatches, result.axis));
    }
    if (result.update < 0 || result.kind != Result::Kind::kGradient) return;
    for (const Instruction& instruction : program_.instructions) {
      const bool reads = std::find(instruction.inputs.begin(), instruction.inputs.end(), result.buffer) !=
                         instruction.inputs.end();
      if (reads && instruction.kind == InstructionKind::kUpdate &&
          updateOf(program_, instruction) == result.update)
        return;
    }
    failHere(fmt::format("no update {} reads the gradient of \"{}\"", result.update, result.name));
  }

  // What it holds is decided before the first update, and by all ranks or none.
  void verifyGuard() const {
    if (program_.guard.valid() != first_.guard.valid())
      failHere("it has a guard and rank 0 has none, or the reverse");
    if (!program_.guard.valid()) return;
    if (!inRange(program_.guard)) failHere("the guard has no buffer");
    const Buffer& buffer = program_.buffer(program_.guard);
    if (buffer.data_type != DataType::kFloat64 || !buffer.shape.empty() || isPersistent(buffer.kind))
      failHere(fmt::format("the guard {} must be a float64 scalar of one step", textOf(program_.guard)));
    if (program_.updates_per_step != 1) failHere("a step of several updates has a guard");
    bool updates = false;
    for (const Instruction& instruction : program_.instructions) {
      const auto& outputs = instruction.outputs;
      updates = updates || instruction.kind == InstructionKind::kUpdate;
      if (updates && std::find(outputs.begin(), outputs.end(), program_.guard) != outputs.end())
        failHere("the guard is written behind an update");
    }
  }

  void verifyLossScale() const {
    if (program_.loss_scale.valid() != first_.loss_scale.valid())
      failHere("it has a scale of the loss and rank 0 has none, or the reverse");
    if (!program_.loss_scale.valid()) return;
    if (!program_.guard.valid()) failHere("the loss is scaled, and there is no guard");
    if (!inRange(program_.loss_scale)) failHere("the scale of the loss has no buffer");
    const Buffer& buffer = program_.buffer(program_.loss_scale);
    // float64 where all is (widenToFloat64)
    const bool is_float = buffer.data_type == DataType::kFloat32 || buffer.data_type == DataType::kFloat64;
    if (!is_float || !buffer.shape.empty() || !isPersistent(buffer.kind))
      failHere(fmt::format("the scale of the loss, {}, must be a float32 scalar that stays",
                           textOf(program_.loss_scale)));
  }

  void verifyGroups() const {
    for (const std::vector<RankId>& group : program_.groups) {
      const bool ascending =
          std::adjacent_find(group.begin(), group.end(), std::greater_equal<>()) == group.end();
      const bool in_range =
          std::all_of(group.begin(), group.end(), [&](RankId rank) { return exists(rank); });
      if (!ascending || !in_range || std::find(group.begin(), group.end(), program_.rank) == group.end()) {
        failHere(fmt::format("group {{{}}} must list existing ranks in ascending order, this rank among them",
                             fmt::join(group, ",")));
      }
    }
  }

  void verifySubgraphs() const {
    for (const Subgraph& subgraph : program_.subgraphs) {
      for (GroupId group : subgraph.collectives) {
        if (!exists(group))
          failHere(fmt::format("subgraph \"{}\": there is no group {}", subgraph.name, group));
      }
    }
  }

  void findForegroundRuns() {
    runs_in_foreground_.assign(program_.subgraphs.size(), false);
    for (const Instruction& instruction : program_.instructions) {
      if (!instruction.background && instruction.subgraph.index() < program_.subgraphs.size())
        runs_in_foreground_[instruction.subgraph.index()] = true;
    }
  }

  void verifyInstruction(const Instruction& instruction) {
    for (BufferId id : instruction.inputs) {
      if (!inRange(id)) failInstruction("an input is no buffer of this program");
    }
    for (BufferId id : instruction.outputs) {
      if (!inRange(id)) failInstruction("an output is no buffer of this program");
    }
    verifyForm(instruction);
    if (instruction.background) verifyBackground(instruction);
    if (instruction.microbatch >= program_.microbatches)
      failInstruction(fmt::format("there are {} microbatches", program_.microbatches));
    verifyOutputs(instruction);
    if (instruction.kind == InstructionKind::kLoadInput) verifyLoad(instruction);
    if (instruction.kind == InstructionKind::kSlice) verifySlice(instruction);
    if (instruction.kind == InstructionKind::kConcatenate) verifyConcatenation(instruction);
    const bool copies =
        instruction.kind == InstructionKind::kAccumulate || instruction.kind == InstructionKind::kAllReduce;
    if (!copies) return;
    const BufferId from_id = instruction.inputs[0], to_id = instruction.outputs[0];
    const Buffer &from = program_.buffer(from_id), &to = program_.buffer(to_id);
    if (!sameTensor(from, to))
      failInstruction(fmt::format("{} and {} differ in type or shape", textOf(from_id), textOf(to_id)));
    if (from.part && to.part && from.part != to.part)
      failInstruction(
          fmt::format("{} and {} are different parts of a tensor", textOf(from_id), textOf(to_id)));
  }

  void verifyForm(const Instruction& instruction) const {
    const Form form = formOf(instruction.kind);
    if (form.subgraph != instruction.subgraph.valid() ||
        (form.subgraph && instruction.subgraph.index() >= program_.subgraphs.size())) {
      failInstruction(form.subgraph ? "it names no subgraph of this program" : "it cannot have a subgraph");
    }
    size_t inputs = form.inputs;
    size_t outputs = form.outputs;
    if (form.subgraph) {
      const Subgraph& subgraph = program_.subgraphs[instruction.subgraph.index()];
      inputs = subgraph.inputs.size();
      outputs = subgraph.outputs.size();
    } else if (form.inputs < 0) {
      inputs = std::max<size_t>(1, instruction.inputs.size());
    }
    if (instruction.inputs.size() != inputs || instruction.outputs.size() != outputs) {
      failInstruction(fmt::format("it has {} inputs and {} outputs where {} and {} are needed",
                                  instruction.inputs.size(), instruction.outputs.size(), inputs, outputs));
    }
    const bool peer_exists = exists(instruction.peer) && instruction.peer != program_.rank;
    if (form.peer && !peer_exists)
      failInstruction(fmt::format("there is no peer {} of rank {}", instruction.peer, program_.rank));
    if (form.group && !exists(instruction.group))
      failInstruction(fmt::format("there is no group {}", instruction.group));
  }

  void verifyBackground(const Instruction& instruction) const {
    const bool has_collectives = instruction.kind == InstructionKind::kRun &&
                                 !program_.subgraphs[instruction.subgraph.index()].collectives.empty();
    if (instruction.kind != InstructionKind::kReceive && instruction.kind != InstructionKind::kAllReduce &&
        !has_collectives)
      failInstruction("only receives and collectives go on in the background");
    // A subgraph's kernels are used by one thread.
    if (has_collectives && runs_in_foreground_[instruction.subgraph.index()])
      failInstruction("its subgraph runs elsewhere, too, and not in the background");
  }

  void verifyOutputs(const Instruction& instruction) {
    for (BufferId id : instruction.inputs) read_at_[id.index()] = at_;
    for (BufferId id : instruction.outputs) {
      const Buffer& buffer = program_.buffer(id);
      if (std::exchange(written_at_[id.index()], at_) == at_)
        failInstruction(fmt::format("it writes \"{}\" twice", program_.nameOf(id)));
      const bool is_input = read_at_[id.index()] == at_;
      const bool may_replace =
          instruction.kind == InstructionKind::kUpdate || instruction.kind == InstructionKind::kAllReduce;
      if (is_input && !may_replace)
        failInstruction(fmt::format("it reads and writes \"{}\"", program_.nameOf(id)));
      if (buffer.kind == BufferKind::kWeightVersion && instruction.kind != InstructionKind::kUpdate) {
        failInstruction(fmt::format("it writes \"{}\", a version of a parameter, which only an update makes",
                                    program_.nameOf(id)));
      }
      const bool constant = buffer.kind == BufferKind::kWeight || buffer.kind == BufferKind::kStep;
      const bool hands_on =
          (buffer.kind == BufferKind::kForwardState || buffer.kind == BufferKind::kOptimizerState) &&
          instruction.kind == InstructionKind::kAccumulate && instruction.overwrite;
      if (constant || (isPersistent(buffer.kind) && !may_replace && !hands_on)) {
        failInstruction(fmt::format("it writes \"{}\", whose kind is {}", program_.nameOf(id),
                                    bufferKindName(buffer.kind)));
      }
    }
  }

  void verifyLoad(const Instruction& instruction) const {
    const Buffer& buffer = program_.buffer(instruction.outputs[0]);
    const auto input = std::find_if(program_.inputs.begin(), program_.inputs.end(),
                                    [&](const ProgramInput& i) { return i.name == buffer.value; });
    if (buffer.kind != BufferKind::kInput || input == program_.inputs.end()) {
      failInstruction(
          fmt::format("\"{}\" is no batch input of the program", program_.nameOf(instruction.outputs[0])));
    }
    if (instruction.microbatch < 0) failInstruction("it names no microbatch");
    try {
      loadedBox(*input, buffer, instruction.offset);
    } catch (const Error& error) {
      failInstruction(error.message());
    }
  }

  // Is `part` the range of `whole` from `offset` on along `axis`?
  static bool isRange(const Buffer& whole, const Buffer& part, size_t axis, int64_t offset) {
    if (whole.data_type != part.data_type || whole.shape.size() != part.shape.size() ||
        axis >= whole.shape.size() || offset < 0)
      return false;
    Shape expected = whole.shape;
    expected[axis] = part.shape[axis];
    return part.shape == expected && part.shape[axis] <= whole.shape[axis] - offset;
  }

  void verifySlice(const Instruction& instruction) const {
    const Buffer& whole = program_.buffer(instruction.inputs[0]);
    const Buffer& part = program_.buffer(instruction.outputs[0]);
    if (instruction.axis < 0 || !isRange(whole, part, instruction.axis, instruction.offset))
      failInstruction(fmt::format("{} from {} on is no part of {}", textOf(instruction.outputs[0]),
                                  instruction.offset, textOf(instruction.inputs[0])));
  }

  void verifyConcatenation(const Instruction& instruction) const {
    const Buffer& whole = program_.buffer(instruction.outputs[0]);
    int64_t offset = 0;
    for (BufferId id : instruction.inputs) {
      const Buffer& part = program_.buffer(id);
      if (instruction.axis < 0 || !isRange(whole, part, instruction.axis, offset))
        failInstruction(fmt::format("{} from {} on is no part of {}", textOf(id), offset,
                                    textOf(instruction.outputs[0])));
      offset += part.shape[instruction.axis];
    }
    if (offset != whole.shape[instruction.axis])
      failInstruction(fmt::format("its inputs fill {} of {}", offset, textOf(instruction.outputs[0])));
  }

  static constexpr size_t kNever = SIZE_MAX;

  const Program& first_;
  size_t ranks_;
  const Program& program_;
  size_t at_ = 0;
  std::vector<size_t> read_at_, written_at_;  // by buffer: the last instruction that does so
  std::vector<bool> runs_in_foreground_;      // by subgraph
};

// Ids in range, arities, equal shapes where an instruction demands them, ranks and groups that exist.
void verifyStructure(const std::vector<Program>& programs) {
  for (RankId rank : idsBelow<RankId>(programs.size()))
    StructureVerifier(programs.front(), programs.size(), programs[rank.index()]).run(rank);
}

}  // namespace

// One rank lists a whole tensor, or several its parts: then every element is listed once.
void verifyResults(const std::vector<Program>& programs) {
  struct Place {
    RankId rank;
    const Buffer* buffer = nullptr;
  };
  std::map<std::tuple<Result::Kind, std::string, std::string, int, int>, std::vector<Place>> results;
  for (const Program& program : programs) {
    for (const Result& result : program.results) {
      results[{result.kind, result.name, result.state, result.update, result.microbatch}].push_back(
          {program.rank, &program.buffer(result.buffer)});
    }
  }
  for (const auto& [key, places] : results) {
    const auto fail_here = [&, &name = std::get<1>(key), &state = std::get<2>(key)](
                               RankId rank, const std::string& message) {
      failVerification(
          fmt::format("rank {}, the result \"{}{}{}\"", rank, name, state.empty() ? "" : ".", state),
          message);
    };
    const Place& first = places.front();
    std::vector<Shard> boxes;
    for (const Place& place : places) {
      if (!place.buffer->part && places.size() > 1) {
        fail_here(place.rank, fmt::format("ranks {} and {} list it, and the buffer {} is no part of a tensor",
                                          first.rank, places.back().rank, tensorText(*place.buffer)));
      }
      if (wholeShape(*place.buffer) != wholeShape(*first.buffer) ||
          place.buffer->data_type != first.buffer->data_type)
        fail_here(place.rank,
                  fmt::format("it is of another type or whole shape than on rank {}", first.rank));
      boxes.push_back(boxOf(*place.buffer));
    }
    const std::string fault = tilingFault(wholeShape(*first.buffer), boxes);
    if (!fault.empty()) fail_here(first.rank, fault);
  }
}

namespace {

// What holds of sound programs one by one, and between them.
void verifySteps(const std::vector<Program>& programs) {
  for (const Program& program : programs) verifyLifetimes(program);
  verifyMessages(programs);
  verifyProgress(programs);
}

}  // namespace

void verifyProgram(const Program& program) {
  StructureVerifier(program, static_cast<size_t>(std::max(1, program.world_size)), program).run(program.rank);
  verifyLifetimes(program);
}

void verifySample(const std::vector<Program>& programs) {
  verifyStructure(programs);
  verifySteps(programs);
}

void verifyPrograms(const std::vector<Program>& programs) {
  verifyStructure(programs);
  verifyResults(programs);
  verifySteps(programs);
}

}  // namespace pipeshard
