#include "tests/standin/fibers.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/standin/heap.h"
#include "tests/standin/lines.h"
#include "tests/standin/waits.h"

// Saves the registers that a call keeps, and goes on where `to` was saved.
extern "C" void standin_switch(void** save, void* to);
#ifdef __x86_64__
asm(R"(
.globl standin_switch
standin_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi); movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");
#else
#error "the stand-in's fibers know x86-64 alone"
#endif

namespace standin {
namespace {

enum class State : uint8_t { kReady, kAtBarrier, kAtShuffle, kDone };

struct Fiber {
  void* stack_pointer = nullptr;
  Thread self{};
  State state = State::kReady;
  uint64_t given = 0, got = 0;  // of a shuffle
  int from = 0;
};

constexpr size_t kStack = 64 << 10;
constexpr unsigned kMostThreads = 1024;
constexpr unsigned kWarp = 32;

struct Scheduler {
  void* stack_pointer = nullptr;
  std::vector<Fiber> fibers;
  const KernelEntry* entry = nullptr;
  void* arguments = nullptr;
  Fiber* now = nullptr;
  uint32_t epoch = 0;
};

thread_local Scheduler* scheduler = nullptr;
uint32_t blocks_run = 0;  // under the lock

std::byte* stacks() {
  static auto* const all =
      static_cast<std::byte*>(::mmap(nullptr, kStack * kMostThreads, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  return all;
}

void fiberMain() {
  Scheduler& s = *scheduler;
  s.entry->run(s.arguments);
  s.now->state = State::kDone;
  standin_switch(&s.now->stack_pointer, s.stack_pointer);
  __builtin_trap();
}

void rest(State state) {
  Fiber& fiber = *scheduler->now;
  fiber.state = state;
  standin_switch(&fiber.stack_pointer, scheduler->stack_pointer);
}

// As after a call of fiberMain, whose registers are nobody's.
void prepare(Fiber& fiber, size_t number) {
  constexpr int kSavedRegisters = 6;
  auto* top = reinterpret_cast<void**>(stacks() + kStack * (number + 1));
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&fiberMain);
  fiber.stack_pointer = top - kSavedRegisters;
  fiber.state = State::kReady;
}

uint3 indexIn(dim3 size, unsigned number) {
  return {number % size.x, number / size.x % size.y, number / size.x / size.y};
}

bool runReady(Scheduler& s) {
  bool moved = false;
  for (Fiber& fiber : s.fibers) {
    if (fiber.state != State::kReady) continue;
    moved = true;
    s.now = &fiber;
    standin_switch(&s.stack_pointer, fiber.stack_pointer);
    s.now = nullptr;
  }
  return moved;
}

bool shuffle(Scheduler& s) {
  bool moved = false;
  for (size_t first = 0; first < s.fibers.size(); first += kWarp) {
    const size_t last = std::min(s.fibers.size(), first + kWarp);
    const auto waits = [&](const Fiber& fiber) { return fiber.state == State::kAtShuffle; };
    if (!std::all_of(s.fibers.begin() + first, s.fibers.begin() + last, waits)) continue;
    for (size_t t = first; t < last; ++t) {
      const size_t from = std::min(last - 1, first + s.fibers[t].from);
      s.fibers[t].got = s.fibers[from].given;
    }
    for (size_t t = first; t < last; ++t) s.fibers[t].state = State::kReady;
    moved = true;
  }
  return moved;
}

// False: some threads wait for others that never come.
bool runBlock(Scheduler& s) {
  const auto all = [&](State state) {
    return std::ranges::all_of(s.fibers, [&](const Fiber& fiber) { return fiber.state == state; });
  };
  while (!all(State::kDone)) {
    if (runReady(s) || shuffle(s)) continue;
    if (!all(State::kAtBarrier)) return false;
    ++s.epoch;
    for (Fiber& fiber : s.fibers) fiber.state = State::kReady;
  }
  return true;
}

}  // namespace

void runGrid(const KernelEntry& entry, void* arguments, dim3 grid, dim3 block) {
  Scheduler s;
  s.entry = &entry;
  s.arguments = arguments;
  s.fibers.resize(size_t{block.x} * block.y * block.z);
  Scheduler* const before = std::exchange(scheduler, &s);
  forgetShared();
  for (unsigned b = 0; b < grid.x * grid.y * grid.z; ++b) {
    ++blocks_run;
    s.epoch = 0;
    for (size_t t = 0; t < s.fibers.size(); ++t) {
      s.fibers[t].self = {indexIn(block, t), indexIn(grid, b), block, grid};
      prepare(s.fibers[t], t);
    }
    if (runBlock(s)) continue;
    report(*running().name + ": a barrier or shuffle that not all threads reach");
    break;
  }
  scheduler = before;
}

const Thread* currentThread() {
  return scheduler == nullptr || scheduler->now == nullptr ? nullptr : &scheduler->now->self;
}
uint32_t currentEpoch() { return scheduler->epoch; }
uint32_t currentBlock() { return blocks_run; }
bool isThreadsOwn(const void* address) {
  const auto isIn = [&](const void* begin, size_t bytes) {
    return address >= begin && address < static_cast<const std::byte*>(begin) + bytes;
  };
  const Scheduler& s = *scheduler;
  return isIn(s.fibers.data(), s.fibers.size() * sizeof(Fiber)) || isIn(s.arguments, s.entry->bytes) ||
         isIn(stacks(), kStack * kMostThreads);
}

extern "C" const Thread* standin_thread() { return &scheduler->now->self; }
extern "C" void standin_barrier(const char* file, unsigned line) {
  if (!isBarrierDropped(file, line)) rest(State::kAtBarrier);
}
extern "C" uint64_t standin_exchange(uint32_t, uint64_t value, int from_lane) {
  Fiber& fiber = *scheduler->now;
  fiber.given = value;
  fiber.from = from_lane;
  rest(State::kAtShuffle);
  return fiber.got;
}

}  // namespace standin
