#include "runtime/validation/update_check.h"

#include <algorithm>
#include <utility>

namespace pipeshard {
namespace {

// Keeps the buffers (ids stay valid) and the update instructions. Everything that the update reads must keep
// its content between filling and running, so it becomes a persistent weight; what is not read shrinks to
// nothing.
RankImage onlyUpdate(RankImage image) {
  Program& program = image.program;
  std::erase_if(program.instructions.unrolled(),
                [](const Instruction& instruction) { return instruction.kind != InstructionKind::kUpdate; });
  std::vector<bool> used(program.buffers.size(), false);
  for (const Instruction& instruction : program.instructions) {
    for (BufferId id : instruction.inputs) used[id.index()] = true;
    for (BufferId id : instruction.outputs) used[id.index()] = true;
  }
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    Buffer& buffer = program.buffers[i];
    if (!used[i]) {
      buffer.shape = {0};
      buffer.part.reset();
      buffer.source.reset();
    }
    if (!isPersistent(buffer.kind)) buffer.kind = BufferKind::kWeight;
  }
  std::erase_if(program.results, [&](const Result& result) { return !used[result.buffer.index()]; });
  program.inputs.clear();
  program.guard = program.loss_scale = {};
  return image;
}

}  // namespace

UpdateOnly::UpdateOnly(RankImage image, uint64_t seed)
    : program_(onlyUpdate(std::move(image)), DataDescription{},
               ExecutorOptions{.check_finite = false, .seed = seed}) {}

const std::vector<Result>& UpdateOnly::results() const { return program_.executor().program().results; }

const Buffer& UpdateOnly::buffer(const Result& result) const {
  return program_.executor().program().buffer(result.buffer);
}

std::span<std::byte> UpdateOnly::content(const Result& result) {
  return program_.executor().content(result.buffer);
}

void UpdateOnly::run(int64_t step, const std::function<void(int update)>& before) {
  Executor& executor = program_.executor();
  if (before) {
    executor.setUpdateObserver(
        [&](const Instruction& update) { before(updateOf(executor.program(), update)); });
  }
  program_.runStep(step);
  executor.setUpdateObserver(nullptr);
}

}  // namespace pipeshard
