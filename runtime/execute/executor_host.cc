// What the host gives to an executor's device, and what it sees of it.

#include <algorithm>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "runtime/execute/executor_parts.h"
#include "runtime/execute/memory_plan.h"

namespace pipeshard {

// The host gives the content of the output, or takes that of the input.
bool Executor::isOfHost(const Instruction& form) const {
  switch (form.kind) {
    case InstructionKind::kLoadInput: return true;
    case InstructionKind::kSend:
    case InstructionKind::kReceive:
    case InstructionKind::kAllReduce: return isStaged();
    default: return false;
  }
}

std::span<std::byte> Executor::place(BufferId id) const {
  const Buffer& buffer = program().buffer(id);
  return arena_.subspan(memory_.offsets[id.index()],
                        static_cast<size_t>(byteCount(buffer.data_type, buffer.shape)));
}

std::span<std::byte> Executor::content(BufferId id) const {
  PIPESHARD_CHECK(device_->isHostMemory(), "the host cannot read the memory of {}", device_->name());
  return place(id);
}

HostView Executor::view(BufferId id) const { return HostView(*compute_, place(id)); }

void Executor::read(BufferId id, std::span<std::byte> out, size_t first) const {
  const std::span<const std::byte> memory = place(id);
  PIPESHARD_CHECK(first <= memory.size() && out.size() <= memory.size() - first,
                  "{} bytes from byte {} on, of {}", out.size(), first, memory.size());
  readMemory(*compute_, memory.subspan(first, out.size()), out);
}

void Executor::write(BufferId id, const std::function<void(std::span<std::byte>)>& fill) {
  writeMemory(*compute_, place(id), fill);
}

// Every instruction has its own action, and part, so that nothing in it is replaced before the end of the
// step, when all is done.
void Executor::placeStaging() {
  const auto is_step = [](const Buffer& buffer) { return buffer.kind == BufferKind::kStep; };
  step_numbers_ = device_->allocateHost(std::ranges::count_if(program().buffers, is_step) * sizeof(int64_t));
  if (device_->isHostMemory()) return;
  const auto aligned = [](size_t bytes) {
    return static_cast<size_t>(alignedBytes(bytes, kMemoryAlignment));
  };
  size_t bytes = 0;
  for (const Action& action : actions_) bytes += isOfHost(*action.form) ? aligned(action.bytes) : 0;
  staging_ = device_->allocateHost(bytes);
  std::byte* next = staging_.bytes.data();
  for (Action& action : actions_) {
    if (!isOfHost(*action.form)) continue;
    action.host = next;
    next += aligned(action.bytes);
  }
}

std::span<std::byte> Executor::hostSide(const Action& action) const {
  if (action.host != nullptr) return {action.host, action.bytes};
  return {action.output == nullptr ? action.input : action.output, action.bytes};
}

void Executor::download(const Action& action, DeviceQueue& queue) const {
  if (action.host == nullptr) return;
  queue.download(action.input, action.host, action.bytes);
  queue.synchronize();
}

void Executor::upload(const Action& action, DeviceQueue& queue) const {
  if (action.host != nullptr) queue.upload(action.host, action.output, action.bytes);
}

void Executor::giveStepNumbers(int64_t step) {
  auto* number = reinterpret_cast<int64_t*>(step_numbers_.bytes.data());
  for (size_t b = 0; b < program().buffers.size(); ++b) {
    const Buffer& buffer = program().buffer(BufferId(b));
    if (buffer.kind != BufferKind::kStep) continue;
    *number = (step - 1) * program().updates_per_step + buffer.update + 1;
    compute_->upload(reinterpret_cast<const std::byte*>(number++), place(BufferId(b)).data(), sizeof *number);
  }
}

void Executor::placeFaults() {
  size_t count = 0;
  for (const Action& action : actions_) count += action.run.faultCount();
  faults_ = device_->allocate(count * sizeof(DataFault));
  auto* next = reinterpret_cast<DataFault*>(faults_.bytes.data());
  for (Action& action : actions_) {
    action.run.placeFaults(next);
    next += action.run.faultCount();
  }
}

// Behind a step: wrong data that kernels have recorded, instead of throwing.
void Executor::throwFaults(int64_t step, std::span<const std::byte> recorded) {
  if (recorded.empty()) return;
  const std::span faults(reinterpret_cast<const DataFault*>(recorded.data()),
                         recorded.size() / sizeof(DataFault));
  size_t first = 0;
  for (const Action& action : actions_) {
    const size_t count = action.run.faultCount();
    try {
      action.run.throwFirst(faults.subspan(first, count));
    } catch (Error& error) {
      failInstruction(action.position, step, std::move(error));
    }
    first += count;
  }
}

// Nothing is under way on the device, whatever became of it.
void Executor::comeToRest() noexcept {
  for (DeviceQueue* queue : {compute_.get(), lane_queue_.get()}) {
    try {
      queue->synchronize();
    } catch (const Error&) {
      // It comes after the one that ended the step.
    }
  }
}

// Once, before the first step that is run: what was read from files, or has come from a checkpoint.
void Executor::lookAtWeights() {
  finder_->beginStep();
  if (weights_looked_at_) return;
  weights_looked_at_ = true;
  for (size_t b = 0; b < program().buffers.size(); ++b) {
    const Buffer& buffer = program().buffer(BufferId(b));
    const bool is_weight = buffer.kind == BufferKind::kParameter || buffer.kind == BufferKind::kWeight ||
                           buffer.kind == BufferKind::kForwardState;
    if (!is_weight) continue;
    finder_->lookAtTensor(
        fmt::format("rank {}, before its first step: the weight '{}'", program().rank, buffer.value),
        buffer.data_type, boxOf(buffer), view(BufferId(b)).bytes(),
        "it is so in the model's file, or in the checkpoint that the run goes on from");
  }
}

void Executor::lookAtInput(const Action& action) {
  const ProgramInput& input = program().inputs[action.data_input];
  finder_->lookAtTensor(fmt::format("the input '{}'", input.name), input.data_type, action.box,
                        hostSide(action),
                        "the first number is the row of the batch; mend or leave out that row of the data");
}

// Makes an update. What becomes infinite in it is an error, though nothing is NaN yet: it is kept, and the
// next step would have to be blamed on it.
void Executor::lookAtUpdate(size_t position) {
  const auto firstIn = [&](BufferId id) {
    return firstNotFinite(program().buffer(id).data_type, view(id).bytes(), true);
  };
  std::vector<BufferId> finite;
  const Instruction form = program().instructions.copyAt(position);
  for (const BufferId id : form.outputs) {
    const BufferKind kind = program().buffer(id).kind;
    const bool is_kept = kind == BufferKind::kParameter || kind == BufferKind::kOptimizerState;
    if (is_kept && !firstIn(id)) finite.push_back(id);
  }
  runNodes(position);
  for (const BufferId id : finite) {
    const auto first = firstIn(id);
    if (!first) continue;
    const Buffer& buffer = program().buffer(id);
    const Shape place = placeInBox(boxOf(buffer), static_cast<int64_t>(first->first));
    fail(ErrorCode::kNotANumber, "the update has made {} of '{}' at {}, the first there is{}",
         describeNotFinite(first->second), buffer.value, shapeToString(place), finder_->firstInfinite());
  }
}

double Executor::readNumber(BufferId id) const {
  double number = 0;
  convertElements(program().buffer(id).data_type, view(id).data(), DataType::kFloat64, &number, 1);
  return number;
}

std::vector<std::pair<std::string, double>> Executor::readMeasures() const {
  std::vector<std::pair<std::string, double>> measures;
  for (const Result& result : program().results) {
    if (result.kind == Result::Kind::kMeasure) measures.emplace_back(result.name, readNumber(result.buffer));
  }
  return measures;
}

std::vector<double> Executor::readLosses() const {
  std::vector<double> losses;
  for (const Result& result : program().results) {
    if (result.kind != Result::Kind::kLoss) continue;
    const size_t update = std::max(0, result.update);
    losses.resize(std::max(losses.size(), update + 1));
    losses[update] = readNumber(result.buffer);
  }
  return losses;
}

}  // namespace pipeshard
