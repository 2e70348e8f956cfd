// From instructions to actions: pointers, sizes, kernel calls, copies.

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "runtime/execute/executor_parts.h"

namespace pipeshard {

// One action is made for all instructions of a form whose buffers have the same types and shapes, lie in the
// same places and are used in the same way. A schedule's steady state comes back to the same places after a
// few microbatches, so that there are about as many actions for a thousand microbatches as for ten.
class Executor::ActionMaker {
 public:
  explicit ActionMaker(Executor& executor) : executor_(executor) {
    for (const Instruction& instruction : executor.program().instructions) {
      if (instruction.kind == InstructionKind::kSend)
        slots_.try_emplace(memoryOf(instruction.inputs.at(0)), static_cast<uint32_t>(slots_.size()));
    }
  }
  size_t sendSlots() const { return slots_.size(); }

  // The number of the action that does it.
  uint32_t find(const Instruction& instruction, size_t position) {
    const LoopedList<Instruction>& list = executor_.program().instructions;
    const Instruction& form = list.form(position);
    const bool is_run = instruction.subgraph.valid();
    const auto aliasing = is_run ? executor_.aliasingOf(instruction, position) : CompiledSubgraph::Aliasing();
    std::vector<int64_t> key = {static_cast<int64_t>(list.storedAt(position)), instruction.offset,
                                executor_.accumulation_.done[position],
                                hasOwnAction(form) ? static_cast<int64_t>(position) : -1,
                                executor_.memory_.run_of[position]};
    for (const BufferId id : instruction.inputs) {
      addBuffer(id, key);
      key.push_back(hasOwnPlace(id));
    }
    for (const BufferId id : instruction.outputs) {
      addBuffer(id, key);
      key.push_back(executor_.accumulation_.adds[id.index()]);
      if (form.kind == InstructionKind::kLoadInput) addLoaded(id, key);
    }
    key.insert(key.end(), aliasing.inputs.begin(), aliasing.inputs.end());
    key.insert(key.end(), aliasing.outputs.begin(), aliasing.outputs.end());
    key.insert(key.end(), aliasing.ending.begin(), aliasing.ending.end());
    const auto [entry, is_new] = known_.try_emplace(std::move(key), executor_.actions_.size());
    if (is_new) executor_.actions_.push_back(make(instruction, position, aliasing));
    return entry->second;
  }

 private:
  // A loop's iterations may be for tensors of other sizes, one behind the other in the same memory.
  void addBuffer(BufferId id, std::vector<int64_t>& key) const {
    const Buffer& of = buffer(id);
    key.insert(key.end(), {offsetOf(id), static_cast<int64_t>(of.data_type), std::ssize(of.shape)});
    key.insert(key.end(), of.shape.begin(), of.shape.end());
  }
  // And for other inputs.
  void addLoaded(BufferId id, std::vector<int64_t>& key) const {
    const Buffer& of = buffer(id);
    const auto& inputs = executor_.program().inputs;
    key.push_back(std::ranges::find(inputs, of.value, &ProgramInput::name) - inputs.begin());
    if (of.part) key.insert(key.end(), of.part->start.begin(), of.part->start.end());
  }
  int64_t offsetOf(BufferId id) const { return executor_.memory_.offsets[id.index()]; }
  // False: it is computed in its accumulator.
  bool hasOwnPlace(BufferId id) const { return executor_.accumulation_.placeOf(id) == id; }
  // Where its memory begins; buffers without any lie beside all others.
  int64_t memoryOf(BufferId id) const { return executor_.place(id).empty() ? -1 : offsetOf(id); }
  std::byte* addressOf(BufferId id) const { return executor_.place(id).data(); }
  const Buffer& buffer(BufferId id) const { return executor_.program().buffer(id); }

  // What it gives to others, or leaves behind, may not be replaced in the same step.
  bool hasOwnAction(const Instruction& form) const {
    if (isOfLane(form)) return true;
    if (executor_.device_->isHostMemory()) return false;
    return executor_.isOfHost(form) || form.background ||
           (form.subgraph.valid() && executor_.subgraphs_[form.subgraph.index()]->recordsFaults());
  }

  Action make(const Instruction& instruction, size_t position,
              const CompiledSubgraph::Aliasing& aliasing) const {
    Action action;
    action.position = position;
    action.form = &executor_.program().instructions.form(position);
    action.done = executor_.accumulation_.done[position];
    if (!instruction.inputs.empty()) action.input = addressOf(instruction.inputs[0]);
    if (!instruction.outputs.empty()) action.output = addressOf(instruction.outputs[0]);
    const std::vector<BufferId>& sized =
        instruction.outputs.empty() ? instruction.inputs : instruction.outputs;
    if (!sized.empty()) {
      action.data_type = buffer(sized[0]).data_type;
      action.elements = elementCount(buffer(sized[0]).shape);
      action.bytes = executor_.place(sized[0]).size();
    }
    action.sends = sendsOf(instruction);
    if (instruction.subgraph.valid()) action.run = bindRun(instruction, position, aliasing);
    if (instruction.kind == InstructionKind::kLoadInput) findInput(instruction, action);
    const bool copies =
        instruction.kind == InstructionKind::kSlice || instruction.kind == InstructionKind::kConcatenate;
    if (copies) action.copies = copiesOf(instruction);
    return action;
  }

  std::vector<uint32_t> sendsOf(const Instruction& instruction) const {
    const bool is_free = instruction.kind == InstructionKind::kFree;
    const bool is_of_inputs = is_free || instruction.kind == InstructionKind::kSend;
    std::vector<uint32_t> sends;
    for (const BufferId id : is_of_inputs ? instruction.inputs : instruction.outputs) {
      // What was computed in its accumulator is not what is sent from there.
      if (is_free && !hasOwnPlace(id)) continue;
      const auto slot = slots_.find(memoryOf(id));
      if (slot != slots_.end()) sends.push_back(slot->second);
    }
    return sends;
  }

  BoundRun bindRun(const Instruction& instruction, size_t position,
                   const CompiledSubgraph::Aliasing& aliasing) const {
    std::vector<std::byte*> inputs, outputs;
    for (const BufferId id : instruction.inputs) inputs.push_back(addressOf(id));
    for (const BufferId id : instruction.outputs) outputs.push_back(addressOf(id));
    std::vector<bool> adds;
    for (const BufferId id : instruction.outputs) adds.push_back(executor_.accumulation_.adds[id.index()]);
    const bool of_lane = isOfLane(instruction);
    CompiledSubgraph& subgraph = *executor_.subgraphs_[instruction.subgraph.index()];
    std::byte* arena = executor_.arena_.data();
    const MemoryPlan& memory = executor_.memory_;
    if (of_lane) {
      return subgraph.bind(aliasing, inputs, outputs, arena + memory.lane_offset,
                           executor_.background_collectives_.get(), adds, executor_.lane_queue_.get());
    }
    return subgraph.bind(aliasing, inputs, outputs, arena + memory.run_base, executor_.collectives_.get(),
                         adds, executor_.compute_.get(), &memory.run_offsets[memory.run_of[position]]);
  }

  void findInput(const Instruction& instruction, Action& action) const {
    const std::string& name = buffer(instruction.outputs.at(0)).value;
    const auto& inputs = executor_.program().inputs;
    const auto found = std::find_if(inputs.begin(), inputs.end(),
                                    [&](const ProgramInput& input) { return input.name == name; });
    if (found == inputs.end())
      fail(ErrorCode::kConfiguration, "the program loads '{}', which is not one of its inputs", name);
    if (executor_.data_ == nullptr)
      fail(ErrorCode::kConfiguration, "the program loads '{}', but no data was given", name);
    action.data_input = found - inputs.begin();
    action.box = loadedBox(*found, buffer(instruction.outputs[0]), instruction.offset);
  }

  // A slice takes from `offset` on; a concatenation fills its output from 0 on.
  std::vector<RowCopy> copiesOf(const Instruction& instruction) const {
    const BufferId output = instruction.outputs.at(0);
    const Buffer& to = buffer(output);
    const bool is_slice = instruction.kind == InstructionKind::kSlice;
    if (is_slice && instruction.inputs.size() != 1)
      fail(ErrorCode::kConfiguration, "a slice has {} inputs", instruction.inputs.size());
    std::vector<RowCopy> copies;
    int64_t filled = 0;
    for (const BufferId input : instruction.inputs) {
      const Buffer& from = buffer(input);
      if (input == output)
        fail(ErrorCode::kConfiguration, "'{}' is input and output", executor_.program().nameOf(input));
      if (is_slice)
        return {copyOutOfRange(from, addressOf(input), to, addressOf(output), instruction.axis,
                               instruction.offset)};
      copies.push_back(
          copyIntoRange(from, addressOf(input), to, addressOf(output), instruction.axis, filled));
      filled += from.shape[instruction.axis];
    }
    if (instruction.inputs.empty() || filled != to.shape[instruction.axis]) {
      fail(ErrorCode::kConfiguration, "its inputs fill {} entries of axis {} of '{}' {}", filled,
           instruction.axis, executor_.program().nameOf(output), shapeToString(to.shape));
    }
    return copies;
  }

  Executor& executor_;
  std::map<int64_t, uint32_t> slots_;  // of pending_sends_, by memoryOf
  std::map<std::vector<int64_t>, uint32_t> known_;
};

size_t Executor::actionCount() const { return actions_.size(); }

void Executor::makeActions() {
  ActionMaker maker(*this);
  pending_sends_.resize(maker.sendSlots());
  for (auto& sends : pending_sends_) sends.reserve(program().world_size);
  for (const Instruction& instruction : program().instructions) {
    const size_t position = action_of_.size();
    try {
      action_of_.push_back(maker.find(instruction, position));
    } catch (Error& error) {
      error.addContext(describePlace(program(), position));
      throw;
    }
  }
}

}  // namespace pipeshard
