// Program: everything one rank does in a training step, as pure data: buffers, subgraphs and a list of
// instructions. The contract between planning (partition/ writes Programs) and execution (runtime/ runs them
// and knows nothing else).
//
// How a step runs: instructions execute in order. `kSend` is asynchronous: it posts the buffer and goes on;
// the buffer may not be written or freed until the peer has received it, so `kFree` (and any write) of a
// buffer with a send under way waits for it. `kReceive` waits for the matching send. Messages between an
// ordered pair of ranks match in order. Everything has a static size; runtime/execute/memory_plan.h gives
// each buffer an offset in one arena from its live interval.
//
// Buffers that live across steps ("persistent": parameters, states, weights) are never freed and keep their
// content. Every other buffer begins with the first instruction that lists it as an output and ends at its
// kFree.
//
// A rank is one device. Of a stage of several each holds a part of a tensor (Buffer::part), in a buffer of
// the same name. "h@0[2:4,0:8]" is a box of it (rows 2 and 3, columns 0 to 7), cut out to be sent.
//
// Worked example, rank 1 of 2 in GPipe with one microbatch (buffer names in quotes):
//   receive peer=0 -> "h@0";  load_input "labels@0"
//   run forward ["h@0","labels@0","w"] -> ["loss@0","logits@0"];  accumulate "loss@0" -> "loss" overwrite
//   run backward_input [...] -> ["dh@0"];  send peer=0 "dh@0";  free "h@0"
//   run backward_weight [...] -> ["dw@0"];  accumulate "dw@0" -> "dw" overwrite;  free ...;  free "dh@0"
//   update ["w","dw","step"] -> ["w"]
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/base/allowed_integers.h"
#include "ir/base/data_type.h"
#include "ir/base/ids.h"
#include "ir/base/shape.h"
#include "ir/base/sharding_spec.h"
#include "ir/graph/graph.h"
#include "ir/graph/training_graph.h"
#include "ir/program/looped_list.h"

namespace pipeshard {

inline constexpr int kProgramVersion = 5;

enum class BufferKind : uint8_t {
  kParameter,       // persistent; initial content from `source`
  kWeight,          // persistent, never updated (a big constant, a frozen parameter); from `source`
  kOptimizerState,  // persistent; starts as zeros, or from `source` (a moving average of a parameter)
  // persistent; from `source`; the forward passes replace it (running statistics), by kAccumulate overwrite
  kForwardState,
  // persistent int64 scalar; before step t (1-based) the executor sets it to (t-1) * updates_per_step +
  // update + 1
  kStep,
  kGradient,     // accumulator of a parameter's gradient
  kAccumulator,  // other sums over microbatches: the loss, prologue totals
  kInput,        // a batch input of one microbatch
  kActivation,   // anything else
  // Asynchronous schedules: a version of a parameter that lives beside the one in the kParameter buffer.
  // Written by one kUpdate, freed when nothing reads that version any more. Buffer::value is the parameter's
  // name.
  kWeightVersion,
};
std::string_view bufferKindName(BufferKind kind);
bool isPersistent(BufferKind kind);

// The buffer holds a box of a tensor: [start, start + the buffer's shape) of `whole`. So several ranks hold
// one tensor in parts.
struct BufferPart {
  Shape whole;
  Shape start;
  friend bool operator==(const BufferPart&, const BufferPart&) = default;
};

struct Buffer {
  // value name, "@microbatch" appended where there is one per microbatch; unique in the program
  std::string name;
  BufferKind kind = BufferKind::kActivation;
  DataType data_type = DataType::kUndefined;
  Shape shape;
  // the value's name in the model (parameters, weights, inputs), for messages, data and checkpoints
  std::string value;
  // Initial content of kParameter, kWeight and kForwardState. Bytes in the file have type `source_type`
  // (converted to data_type on load). It is the whole tensor: of a buffer with a `part`, only the box is
  // read.
  std::optional<Initializer> source;
  DataType source_type = DataType::kUndefined;
  // The source is a file of this rank's own in the plan directory (copiedWeightsFile in program_set.h), to
  // which its location is relative; it holds the buffer's box alone, of type `source_type`.
  bool own_copy = false;
  // Nothing: the whole tensor. Of a kInput buffer, `whole` is what is loaded where nothing is sharded: the
  // rows of a microbatch.
  //   rank 1 of 2, "w" [8,6] in columns: shape [8,3], part {whole [8,6], start [0,3]}
  std::optional<BufferPart> part = {};
  int update = 0;  // kStep: which of the step's updates reads it
};
// The shape of the tensor that a buffer holds (a part of), and the box of it that it holds.
const Shape& wholeShape(const Buffer& buffer);
Shard boxOf(const Buffer& buffer);

// One .onnx file of this rank. Run instructions bind buffers to its inputs and outputs by position.
struct Subgraph {
  std::string name;  // such as "forward", "stage4_backward_input", "update", "prologue", "reshard_0"
  std::string file;  // in a folder of programs, of subgraphs/; else, name + ".onnx"
  Phase phase = Phase::kForward;
  std::vector<std::string> inputs;   // names of the graph inputs, in order
  std::vector<std::string> outputs;  // names of the graph outputs, in order
  // of its nodes in the pipeshard domain that are collectives, in node order: their groups
  std::vector<GroupId> collectives = {};
  // makes again, for a backward pass, what a forward pass has made and freed
  bool recomputation = false;
};

enum class InstructionKind : uint8_t {
  // outputs[0] := the buffer's box of batch input buffer.value, of the microbatch that begins at index
  // `offset` of its axis (loadedBox)
  kLoadInput,
  kRun,  // outputs := subgraph(inputs)
  // like kRun; an output may be the same buffer as an input: it is replaced when all have been read
  kUpdate,
  kAccumulate,  // outputs[0] := inputs[0] if overwrite, else outputs[0] + inputs[0], element by element
  kSend,        // inputs[0] to rank `peer` (asynchronous)
  kReceive,     // outputs[0] from rank `peer`
  kFree,        // the content of inputs[0] ends
  // outputs[0] := sum over the ranks of groups[group], of inputs[0]; in fixed rank order; may be in place
  kAllReduce,
  kSlice,        // outputs[0] := inputs[0] from index `offset` of `axis` on, as many as the output holds
  kConcatenate,  // outputs[0] := inputs, one behind the other along `axis`
  kZero,         // outputs[0] := 0
};
std::string_view instructionKindName(InstructionKind kind);

struct Instruction {
  InstructionKind kind = InstructionKind::kRun;
  SubgraphId subgraph;  // kRun, kUpdate
  StageId stage;        // that it works for; invalid: for several, or none
  // -1: belongs to the whole step; a kUpdate inside a window names the last one whose gradient it takes
  int microbatch = -1;
  std::vector<BufferId> inputs;
  std::vector<BufferId> outputs;
  RankId peer;             // kSend, kReceive
  GroupId group;           // kAllReduce
  bool overwrite = false;  // kAccumulate
  int axis = -1;           // kSlice, kConcatenate
  int64_t offset = 0;      // kSlice, kLoadInput
  // kAllReduce, and kRun of a subgraph that is there for its collectives: done by the rank's background lane,
  // beside the instructions behind it, after those of the lane before it, over a communicator of its own:
  // such collectives meet only each other. kReceive: posted; its message comes while the instructions behind
  // it run. What writes, reads or frees its outputs, or writes or frees its inputs, waits for its end
  // (ir/program/background.h). So does the end of the step, and, for a receive, whatever waits for a later
  // message from that peer: messages come in order.
  bool background = false;
};

// What a step leaves behind for the user: loss, gradients, parameters, states, outputs, and measures of the
// step (a scalar by name: "gradient_norm"). Names are the
// model's. Of all ranks that hold equal copies, one lists the result. Where ranks hold parts of a tensor,
// several list it: together every element exactly once.
struct Result {
  enum class Kind : uint8_t {
    kLoss,
    kGradient,
    kParameter,
    kOptimizerState,
    kForwardState,
    kOutput,
    kMeasure
  };
  Kind kind = Kind::kLoss;
  std::string name;   // of the parameter, forward state, output or measure; "loss" for the loss
  std::string state;  // kOptimizerState: its name ("first_moment")
  BufferId buffer;    // valid at the end of the step (a gradient buffer is not freed before)
  // Of a window of several updates: to which of them a loss or gradient belongs; -1: to the whole step. Such
  // a gradient is valid when its update runs; that of the next update takes its place.
  int update = -1;
  // kOutput: of which microbatch, and the axis along which the microbatches follow each other (-1: none; it
  // is the same in all of them)
  int microbatch = -1;
  int axis = -1;
  // The buffer holds the transposed matrix of what the model calls `name` (a weight that the exporter has
  // transposed, its gradient, its states). Dumps have the model's.
  bool transposed = false;
  // The first of two axes of the buffer that are one in the model (ir/graph/weight_role.h), -1: there are
  // none. Dumps have the model's, where the buffer has all of both.
  int divided_axis = -1;
};

// How a batch input is cut; the same list in every rank's program.
struct ProgramInput {
  std::string name;
  DataType data_type = DataType::kUndefined;
  Shape shape;    // of the whole batch
  int axis = -1;  // cut into microbatches along it; -1: not cut
  // Synthetic data: integers in [low, high); floating-point: standard normal (low == high == 0).
  int64_t low = 0;
  int64_t high = 0;
  // other data is refused if it is exact; nothing: the model does not tell
  std::optional<AllowedIntegers> allowed = {};
  // drawn in every step: no data file has it
  std::optional<RandomNumbers> drawn = {};
};

// Adds so many times the steps to an item's numbers (ir/program/numbers.h has them).
void advance(Buffer& buffer, std::span<const int64_t> steps, int64_t iterations);
void advance(Instruction& instruction, std::span<const int64_t> steps, int64_t iterations);
extern template class LoopedList<Buffer>;
extern template class LoopedList<Instruction>;
using InstructionReader = LoopedList<Instruction>::Reader;

struct Program {
  RankId rank = RankId(0);
  int world_size = 1;
  int64_t microbatches = 1;
  // more than one in asynchronous schedules: a step is a window of so many updates
  int64_t updates_per_step = 1;
  LoopedList<Buffer> buffers;
  std::vector<Subgraph> subgraphs;
  LoopedList<Instruction> instructions;           // one step
  IdVector<GroupId, std::vector<RankId>> groups;  // ascending
  std::vector<Result> results;
  std::vector<ProgramInput> inputs;
  // A float64 scalar, of the same bits on all ranks before the first kUpdate and until the step's end (the
  // norm of all gradients). Where it is not finite no rank makes an update in this step, and what lives
  // across steps is after it what it was before. Invalid: every step is made.
  BufferId guard;
  // A persistent float32 scalar, of the same bits on all ranks: what the gradient of the loss is multiplied
  // with in the next step (LossScaling). Under 1 behind a step that was not made, training ends. Invalid: the
  // loss is not scaled.
  BufferId loss_scale;

  // All that a buffer is but its name, which may be that of an earlier iteration: nameOf has it.
  const Buffer& buffer(BufferId id) const { return buffers.form(id.index()); }
  std::string nameOf(BufferId id) const { return buffers.copyAt(id.index()).name; }
};

// What a kLoadInput into `buffer` reads of the whole batch, whose input `input` is.
//   x [8,6] cut along axis 0; of microbatch 1 of 2 columns 3..5: buffer [4,3], part {whole [4,6], start
//   [0,3]}, offset 4; the box has size [4,3] and starts at [4,3]
// Error(kConfiguration), naming the buffer, when that is no part of the batch.
Shard loadedBox(const ProgramInput& input, const Buffer& buffer, int64_t offset);

// Which of the step's updates a kUpdate makes, from 0 on; 0 where a step makes one.
int updateOf(const Program& program, const Instruction& instruction);

}  // namespace pipeshard
