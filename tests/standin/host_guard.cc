#include "tests/standin/host_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "tests/standin/heap.h"
#include "tests/standin/waits.h"

namespace standin {
namespace {

constexpr uintptr_t kPage = 4096;
constexpr greg_t kStep = 0x100;    // of the flags register: a trap behind the next instruction
constexpr greg_t kIsWrite = 2;     // of a page fault's error code
constexpr size_t kMostPages = 16;  // that an instruction touches, and more

struct Guarded {
  uintptr_t begin, end;
  bool write;
  OpId id;
  uint32_t line;
  std::string name;
};

std::vector<Guarded>& guarded() {
  static auto* const all = new std::vector<Guarded>;
  return *all;
}

struct sigaction segv_before, trap_before;
thread_local uintptr_t stepping[kMostPages];
thread_local size_t stepping_count = 0;

uintptr_t pageOf(uintptr_t at) { return at / kPage * kPage; }

void protect(uintptr_t page, int access) {
  if (::mprotect(reinterpret_cast<void*>(page), kPage, access) != 0) std::abort();
}

// As those that are guarded want it.
void protectAgain(uintptr_t page) {
  int access = PROT_READ | PROT_WRITE;
  for (const Guarded& one : guarded()) {
    if (one.begin < page + kPage && page < one.end) access &= one.write ? PROT_NONE : PROT_READ;
  }
  protect(page, access);
}

void forPages(uintptr_t begin, uintptr_t end, void (*use)(uintptr_t)) {
  for (uintptr_t page = pageOf(begin); page < end; page += kPage) use(page);
}

// The host has touched a protected page: it is told of if it touched what is guarded itself, and goes on by
// one instruction with the page open.
void onFault(int, siginfo_t* info, void* context) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  if (!inHeap(info->si_addr) || stepping_count == kMostPages) {
    ::sigaction(SIGSEGV, &segv_before, nullptr);  // and it faults again
    return;
  }
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const bool write = (registers[REG_ERR] & kIsWrite) != 0;
  const std::lock_guard held(lock());
  for (const Guarded& one : guarded()) {
    if (at < one.begin || at >= one.end || !(write || one.write)) continue;
    report(std::string("the host ") + (write ? "writes" : "reads") + " what " + one.name + " on stream " +
           std::to_string(one.line) + (one.write ? " writes" : " reads") + ", and has not waited for it, " +
           describeAddress(info->si_addr));
  }
  stepping[stepping_count++] = pageOf(at);
  protect(pageOf(at), PROT_READ | PROT_WRITE);
  registers[REG_EFL] |= kStep;
}

void onTrap(int, siginfo_t*, void* context) {
  if (stepping_count == 0) {
    ::sigaction(SIGTRAP, &trap_before, nullptr);
    return;
  }
  const std::lock_guard held(lock());
  while (stepping_count > 0) protectAgain(stepping[--stepping_count]);
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~kStep;
}

void handleSignals() {
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  action.sa_sigaction = onFault;
  ::sigaction(SIGSEGV, &action, &segv_before);
  action.sa_sigaction = onTrap;
  ::sigaction(SIGTRAP, &action, &trap_before);
}

bool isUsed(const void* begin) { return waitsAreWatched() && isPinned(begin); }

}  // namespace

void guard(const void* begin, size_t bytes, bool write, const Running& op) {
  if (bytes == 0 || !isUsed(begin)) return;
  static const bool ready = (handleSignals(), true);
  static_cast<void>(ready);
  const auto at = reinterpret_cast<uintptr_t>(begin);
  guarded().push_back({at, at + bytes, write, op.id, op.line, *op.name});
  forPages(at, at + bytes, protectAgain);
}

void openUntil(const Clock& host) {
  std::vector<Guarded> done;
  std::erase_if(guarded(), [&](const Guarded& one) {
    const bool is_done = one.line < host.size() && one.id <= host[one.line];
    if (is_done) done.push_back(one);
    return is_done;
  });
  for (const Guarded& one : done) forPages(one.begin, one.end, protectAgain);
}

AtWork::AtWork(const void* begin, size_t bytes) : begin_(begin), bytes_(isUsed(begin) ? bytes : 0) {
  const auto at = reinterpret_cast<uintptr_t>(begin_);
  forPages(at, at + bytes_, [](uintptr_t page) { protect(page, PROT_READ | PROT_WRITE); });
}

AtWork::~AtWork() {
  const auto at = reinterpret_cast<uintptr_t>(begin_);
  forPages(at, at + bytes_, protectAgain);
}

}  // namespace standin
