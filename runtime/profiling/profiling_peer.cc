#include "runtime/profiling/profiling_peer.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr char kAnswer = 'a';

template <typename Call>
auto retried(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

[[noreturn]] void runHelper(const std::function<void()>& work, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);
  try {
    work();
    ::_exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pipeshard profile, helper process: %s\n", error.what());
    ::_exit(1);
  }
}

}  // namespace

std::optional<int64_t> ProfilingPeer::Orders::next() {
  int64_t order = 0;
  const ssize_t got = retried([&] { return ::recv(socket_, &order, sizeof(order), MSG_WAITALL); });
  return got == static_cast<ssize_t>(sizeof(order)) ? std::optional(order) : std::nullopt;
}

void ProfilingPeer::Orders::answer() {
  retried([&] { return ::send(socket_, &kAnswer, 1, MSG_NOSIGNAL); });
}

bool ProfilingPeer::Orders::stopped() const { return stop_->load(std::memory_order_relaxed); }

ProfilingPeer::ProfilingPeer(const std::function<void(Orders&)>& work) {
  void* memory =
      ::mmap(nullptr, sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    fail(ErrorCode::kOutOfMemory, "no memory to share with a helper process: {}", std::strerror(errno));
  stop_ = new (memory) std::atomic<bool>(false);
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    ::munmap(memory, sizeof(*stop_));
    fail(ErrorCode::kOutOfMemory, "no socket to a helper process: {}", std::strerror(errno));
  }
  socket_ = Descriptor(ends[0]);
  Descriptor other(ends[1]);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) {
    ::munmap(memory, sizeof(*stop_));
    fail(ErrorCode::kOutOfMemory, "cannot start a helper process: {}", std::strerror(errno));
  }
  if (pid_ > 0) return;
  socket_ = Descriptor();
  Orders orders;
  orders.socket_ = other.get();
  orders.stop_ = stop_;
  runHelper([&] { work(orders); }, parent);
}

ProfilingPeer::~ProfilingPeer() {
  ::kill(pid_, SIGKILL);
  retried([&] { return ::waitpid(pid_, nullptr, 0); });
  ::munmap(stop_, sizeof(*stop_));
}

void ProfilingPeer::tell(int64_t order) {
  stop_->store(false, std::memory_order_relaxed);
  const ssize_t sent = retried([&] { return ::send(socket_.get(), &order, sizeof(order), MSG_NOSIGNAL); });
  if (sent != static_cast<ssize_t>(sizeof(order)))
    fail(ErrorCode::kPeerUnavailable, "the helper process of the measurement has ended");
}

void ProfilingPeer::awaitAnswer() {
  char answer = 0;
  if (retried([&] { return ::recv(socket_.get(), &answer, 1, 0); }) != 1) {
    fail(ErrorCode::kPeerUnavailable,
         "the helper process of the measurement has ended; what it said is above");
  }
}

void ProfilingPeer::stop() { stop_->store(true, std::memory_order_relaxed); }

}  // namespace pipeshard
