#include "ir/program/rolled_kind.h"

#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ir/program/numbers.h"

namespace pipeshard {
namespace {

template <typename T>
void roll(const NumberedList& numbered, LoopedList<T>& list) {
  const std::vector<Loop> loops = findLoops(numbered);
  if (loops.empty()) return;
  std::vector<T>& items = list.unrolled();
  LoopedList<T> rolled;
  size_t at = 0;
  const auto addUntil = [&](size_t end) {
    for (; at < end; ++at) rolled.push_back(std::move(items[at]));
  };
  for (const Loop& loop : loops) {
    addUntil(loop.first);
    std::vector<std::vector<int64_t>> steps;
    for (size_t i = at; i < at + loop.period; ++i) steps.push_back(stepsOf(numbered, loop, i));
    const auto first = std::move_iterator(items.begin() + static_cast<std::ptrdiff_t>(at));
    rolled.addLoop({first, first + static_cast<std::ptrdiff_t>(loop.period)}, std::move(steps), loop.count);
    at = loop.end();
  }
  addUntil(items.size());
  list = std::move(rolled);
}

}  // namespace

void addBuffers(const ProgramKind& kind, NumberedList& list) {
  size_t b = 0;
  for (const Buffer& buffer : kind.program.buffers) {
    const std::string form = buffer.source ? "source of " + buffer.name : formOf(buffer);
    list.add(fmt::format("{} {} {}", kind.start_slots[b], kind.boxed[b] ? 1 : 0, form),
             buffer.source ? std::vector<int64_t>() : numbersOf(buffer));
    ++b;
  }
}

void addInstructions(const Program& program, NumberedList& list) {
  for (const Instruction& instruction : program.instructions)
    list.add(formOf(instruction), numbersOf(instruction));
}

void rollLoops(ProgramKind& kind) {
  Program& program = kind.program;
  if (program.buffers.loops().empty()) {
    NumberedList numbered;
    addBuffers(kind, numbered);
    roll(numbered, program.buffers);
  }
  if (program.instructions.loops().empty()) {
    NumberedList numbered;
    addInstructions(program, numbered);
    roll(numbered, program.instructions);
  }
}

}  // namespace pipeshard
