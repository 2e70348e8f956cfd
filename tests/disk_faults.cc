#include "tests/disk_faults.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <vector>

namespace pipeshard {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kBadEntry = 125;

// Where a call says what it works on: as a descriptor, as a path, or as a path below an open folder.
enum class Place { kDescriptor, kPath, kPathBelow };

struct WatchedCall {
  const char* name;
  Place place;
};

const std::map<int, WatchedCall>& watchedCalls() {
  static const std::map<int, WatchedCall> calls = {
#ifdef SYS_open
      {SYS_open, {"open", Place::kPath}},
      {SYS_mkdir, {"make", Place::kPath}},
      {SYS_rmdir, {"remove", Place::kPath}},
      {SYS_unlink, {"remove", Place::kPath}},
      {SYS_rename, {"rename", Place::kPath}},
#endif
#ifdef SYS_renameat
      {SYS_renameat, {"rename", Place::kPathBelow}},
#endif
      {SYS_openat, {"open", Place::kPathBelow}},
      {SYS_mkdirat, {"make", Place::kPathBelow}},
      {SYS_unlinkat, {"remove", Place::kPathBelow}},
      {SYS_renameat2, {"rename", Place::kPathBelow}},
      {SYS_write, {"write", Place::kDescriptor}},
      {SYS_pwrite64, {"write", Place::kDescriptor}},
      {SYS_writev, {"write", Place::kDescriptor}},
      {SYS_fsync, {"sync", Place::kDescriptor}},
      {SYS_fdatasync, {"sync", Place::kDescriptor}},
      {SYS_ftruncate, {"resize", Place::kDescriptor}},
      {SYS_fallocate, {"resize", Place::kDescriptor}}};
  return calls;
}

// Listens for the calls of this process and its children; the descriptor, or -1.
int startListening() {
  std::vector<sock_filter> filter = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offsetof(seccomp_data, nr)))};
  for (const auto& [number, call] : watchedCalls()) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return static_cast<int>(
      ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program));
}

// A descriptor through a unix socket.
struct PassedDescriptor {
  char byte = 'x';
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};

  PassedDescriptor() {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }

  bool send(int socket, int descriptor) {
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    return ::sendmsg(socket, &message, 0) == 1;
  }

  int receive(int socket) {
    if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1 || CMSG_FIRSTHDR(&message) == nullptr) return -1;
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
  }
};

std::string linkOf(const std::string& path) {
  std::error_code ignored;
  return fs::read_symlink(path, ignored).string();
}

std::string textOf(pid_t process, uint64_t address) {
  std::string text(PATH_MAX, '\0');
  // in pieces that do not cross a page, as the next one may not be there
  for (size_t at = 0; at < text.size();) {
    const size_t piece = std::min(text.size() - at, 4096 - (address + at) % 4096);
    iovec here{text.data() + at, piece};
    iovec there{reinterpret_cast<void*>(address + at), piece};
    if (::process_vm_readv(process, &here, 1, &there, 1, 0) != static_cast<ssize_t>(piece)) return "";
    const size_t end = text.find('\0', at);
    if (end < at + piece) return text.substr(0, end);
    at += piece;
  }
  return "";
}

bool opensForWriting(const seccomp_data& data) {
  const uint64_t flags = data.args[data.nr == SYS_openat ? 2 : 1];
  return (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) != 0;
}

}  // namespace

// What has been asked and is not answered yet.
struct DiskFaults::Pending {
  struct Call {
    uint64_t id;
    int error;
    Clock::time_point due;
  };
  std::vector<Call> calls;

  int millisecondsToNext() const {
    int least = -1;
    for (const Call& call : calls) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(call.due - Clock::now()).count();
      const int wait = static_cast<int>(std::max<int64_t>(0, left));
      least = least < 0 ? wait : std::min(least, wait);
    }
    return least;
  }

  void answer(int listener, bool all) {
    std::erase_if(calls, [&](const Call& call) {
      if (!all && call.due > Clock::now()) return false;
      seccomp_notif_resp response{};
      response.id = call.id;
      response.error = -call.error;
      response.flags = call.error == 0 ? SECCOMP_USER_NOTIF_FLAG_CONTINUE : 0;
      ::ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response);  // a process that is gone needs none
      return true;
    });
  }
};

DiskFaults::DiskFaults(std::string folder, std::function<DiskAnswer(const DiskCall&)> answer)
    : folder_(std::move(folder)), answer_(std::move(answer)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
    throw std::runtime_error("socketpair failed");
  here_.reset(sockets[0]);
  there_.reset(sockets[1]);
  thread_ = std::thread([this] { serve(); });
}

DiskFaults::~DiskFaults() {
  const uint64_t one = 1;
  if (::write(stop_.get(), &one, sizeof one) < 0) std::abort();
  thread_.join();
}

bool DiskFaults::areAvailable() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(startListening() < 0 ? 1 : 0);
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void DiskFaults::enter() const {
  const int listener = startListening();
  if (listener < 0 || !PassedDescriptor().send(there_.get(), listener)) ::_exit(kBadEntry);
  ::close(listener);
}

int DiskFaults::runForked(const std::function<int()>& body) const {
  const pid_t child = ::fork();
  if (child == 0) {
    enter();
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void DiskFaults::serve() {
  Pending pending;
  while (true) {
    std::array<pollfd, 3> watched = {pollfd{stop_.get(), POLLIN, 0}, pollfd{here_.get(), POLLIN, 0},
                                     pollfd{listener_.get(), POLLIN, 0}};
    if (::poll(watched.data(), watched.size(), pending.millisecondsToNext()) < 0 && errno != EINTR) return;
    if (watched[0].revents != 0) break;
    if (watched[1].revents != 0) {
      listener_.reset(PassedDescriptor().receive(here_.get()));
      continue;
    }
    pending.answer(listener_.get(), false);
    if ((watched[2].revents & POLLIN) != 0) {
      takeCall(pending);
    } else if ((watched[2].revents & POLLHUP) != 0) {
      listener_.reset();  // all that were watched have ended
    }
  }
  pending.answer(listener_.get(), true);
}

bool DiskFaults::takeCall(Pending& pending) {
  seccomp_notif request{};
  if (::ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_RECV, &request) != 0) return false;
  DiskCall call;
  DiskAnswer answer;
  if (describe(&request, call)) {
    call.number = ++calls_;
    answer = answer_(call);
  }
  pending.calls.push_back({request.id, answer.error, Clock::now() + answer.delay});
  pending.answer(listener_.get(), false);
  return true;
}

// Whether it is one below the folder.
bool DiskFaults::describe(const void* request, DiskCall& call) const {
  const auto& asked = *static_cast<const seccomp_notif*>(request);
  const seccomp_data& data = asked.data;
  const WatchedCall& watched = watchedCalls().at(data.nr);
  const std::string process = "/proc/" + std::to_string(asked.pid);
  call.name = watched.name;
  if (call.name == "open" && !opensForWriting(data)) return false;
  if (watched.place == Place::kDescriptor) {
    call.path = linkOf(process + "/fd/" + std::to_string(data.args[0]));
  } else {
    const bool below = watched.place == Place::kPathBelow;
    const int descriptor = below ? static_cast<int>(data.args[0]) : AT_FDCWD;
    const fs::path path = textOf(static_cast<pid_t>(asked.pid), data.args[below ? 1 : 0]);
    const std::string start =
        descriptor == AT_FDCWD ? process + "/cwd" : process + "/fd/" + std::to_string(descriptor);
    call.path = (path.is_absolute() ? path : fs::path(linkOf(start)) / path).string();
  }
  return call.path.starts_with(folder_ + "/");
}

}  // namespace pipeshard
