#include "runtime/machine/limits.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>

#include "ir/base/amounts.h"
#include "ir/base/error.h"
#include "runtime/machine/control_group.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFilesOfACommand = 16;
constexpr int64_t kFilesOfAJob = 32;    // sockets, locks, logs, libraries
constexpr int64_t kFilesOfAWorker = 4;  // process, trace, arena, early ends
constexpr int64_t kFilesOfAWire = 2;    // of a worker, to the ranks of other hosts
constexpr rlim_t kLeastStack = rlim_t{512} << 10;
constexpr rlim_t kUsualStack = rlim_t{8} << 20;
constexpr uint64_t kSpaceOfLibraries = uint64_t{160} << 20;
// Of threads that begin meanwhile: glibc maps 128 MiB for an arena, for a moment, and keeps 64.
constexpr uint64_t kSpaceOfThreads = uint64_t{192} << 20;
constexpr uint64_t kDataOfThreads = uint64_t{64} << 20;  // stacks, and what they allocate
// What workers take from the first question on, beside their tensors: libraries at work, kernels, constants,
// threads. Measured: 45 MiB of data with two threads; said where a value is advised.
constexpr uint64_t kSpaceToCome = uint64_t{256} << 20;
constexpr uint64_t kDataToCome = uint64_t{96} << 20;
constexpr uint64_t kDataOfAThread = uint64_t{4} << 20;
constexpr int64_t kTasksOfAJob = 8;     // the command, its readers, those of the control sockets
constexpr int64_t kTasksOfAWorker = 6;  // beside those that compute: link, control sockets, lane, saving

// The soft limit, raised to the hard one; nothing: there is none.
std::optional<int64_t> raised(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return std::nullopt;
  if (limit.rlim_cur != limit.rlim_max) {
    rlimit more{limit.rlim_max, limit.rlim_max};
    if (::setrlimit(static_cast<__rlimit_resource_t>(resource), &more) == 0) limit = more;
  }
  if (limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<int64_t>(limit.rlim_cur);
}

// Threads of all processes of this user, as the kernel counts them.
int64_t tasksOfThisUser() {
  int64_t count = 0;
  std::error_code error;
  for (auto entry = fs::directory_iterator("/proc", error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    struct stat status {};
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (::stat(entry->path().c_str(), &status) != 0 || status.st_uid != ::getuid()) continue;
    std::error_code gone;
    const fs::directory_iterator tasks(entry->path() / "task", gone);
    if (!gone) count += std::distance(tasks, fs::directory_iterator());
  }
  return count;
}

[[noreturn]] void failLimit(std::string_view what, int64_t has, int64_t needs, std::string_view remedy) {
  fail(ErrorCode::kConfiguration, "{}: {} are allowed, this job needs {} on this host; {}", what, has, needs,
       remedy);
}

// Beside `pages` that this process has, of what `ulimit -FLAG` counts. `to_come`: what will be needed beside.
void requireRoom(int resource, std::string_view what, char flag, uint64_t pages, uint64_t bytes,
                 uint64_t to_come) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return;
  const uint64_t needed = pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) + bytes;
  if (limit.rlim_cur >= needed) return;
  fail(ErrorCode::kOutOfMemory, "{}: {} are allowed, about {} are needed by now; `ulimit -{} {}` should do",
       what, formatBytes(limit.rlim_cur), formatBytes(needed), flag, ((needed + to_come) >> 10) + 1);
}

// Bytes of each, beside what this process has. `to_come`: of tensors and threads.
void requireMemory(uint64_t space, uint64_t data, uint64_t to_come) {
  uint64_t all = 0, ignored = 0, written = 0;  // pages
  std::ifstream("/proc/self/statm") >> all >> ignored >> ignored >> ignored >> ignored >> written;
  requireRoom(RLIMIT_AS, "address space", 'v', all, space, kSpaceToCome + to_come);
  requireRoom(RLIMIT_DATA, "data", 'd', written, data, kDataToCome + to_come);
}

fs::path existingFolder(fs::path folder) {
  std::error_code ignored;
  folder = fs::absolute(folder, ignored);
  while (!fs::exists(folder, ignored) && folder.has_parent_path() && folder != folder.parent_path())
    folder = folder.parent_path();
  return folder;
}

}  // namespace

int64_t openFilesNeeded(const LimitNeeds& needs) {
  const int64_t of_a_worker = kFilesOfAWorker + (needs.ranks > needs.workers ? kFilesOfAWire : 0);
  return kFilesOfAJob + of_a_worker * needs.workers + needs.ranks;
}

int64_t tasksNeeded(const LimitNeeds& needs) {
  return kTasksOfAJob + (kTasksOfAWorker + needs.threads) * int64_t{needs.workers};
}

void requireLimits(const LimitNeeds& needs) {
  const std::optional<int64_t> files = raised(RLIMIT_NOFILE);
  if (files && *files < openFilesNeeded(needs))
    failLimit("open files", *files, openFilesNeeded(needs),
              fmt::format("`ulimit -n {}`", openFilesNeeded(needs)));
  const int64_t tasks = tasksNeeded(needs);
  const std::optional<int64_t> allowed = raised(RLIMIT_NPROC);
  if (allowed && ::geteuid() != 0) {  // the kernel asks it of nobody else
    const int64_t used = *allowed < tasks ? 0 : tasksOfThisUser();
    if (*allowed - used < tasks)
      failLimit(
          "processes and threads", *allowed, used + tasks,
          fmt::format("{} of them are other processes of this user; `ulimit -u {}`, fewer --threads, or "
                      "fewer devices",
                      used, used + tasks));
  }
  const TaskGroup group = readTaskGroup(::getpid());
  if (group.limit && static_cast<int64_t>(*group.limit) - static_cast<int64_t>(group.used) < tasks) {
    failLimit("processes and threads of the control group", static_cast<int64_t>(*group.limit),
              static_cast<int64_t>(group.used) + tasks,
              fmt::format("raise pids.max of {} (a container's --pids-limit)", group.path));
  }
  requireMemory(kSpaceOfThreads + kSpaceOfLibraries, kDataOfThreads,
                needs.tensor_bytes + kDataOfAThread * static_cast<uint64_t>(needs.threads));
}

bool hasMemoryLimit() {
  const auto isLimited = [](auto resource) {
    rlimit limit{};
    return ::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  };
  return isLimited(RLIMIT_AS) || isLimited(RLIMIT_DATA);
}

void requireFiles() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= rlim_t{kFilesOfACommand}) return;
  const std::optional<int64_t> files = raised(RLIMIT_NOFILE);
  if (files && *files < kFilesOfACommand)
    fail(ErrorCode::kConfiguration, "open files: {} are allowed, {} are needed; `ulimit -n {}`", *files,
         kFilesOfACommand, kFilesOfACommand);
}

void requireStack() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kLeastStack) return;
  rlimit more{std::min(limit.rlim_max, kUsualStack), limit.rlim_max};
  if (more.rlim_cur < kLeastStack || ::setrlimit(RLIMIT_STACK, &more) != 0) {
    fail(ErrorCode::kConfiguration, "stack size: {} are allowed, {} are needed; `ulimit -s {}`",
         formatBytes(std::min(limit.rlim_cur, limit.rlim_max)), formatBytes(kLeastStack), kUsualStack >> 10);
  }
  // Threads get what the limit was when the process began.
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, more.rlim_cur);
  ::pthread_setattr_default_np(&attributes);
  ::pthread_attr_destroy(&attributes);
}

void requireAddressSpace(uint64_t bytes) {
  requireMemory(bytes + kSpaceOfLibraries, bytes + kDataOfThreads, 0);
}

std::string describeMemoryLimits() {
  std::string text;
  const auto add = [&](auto resource, char flag) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    text += fmt::format("; `ulimit -{}` allows it {}: raise it", flag, formatBytes(limit.rlim_cur));
  };
  add(RLIMIT_AS, 'v');
  add(RLIMIT_DATA, 'd');
  return text;
}

Error errorOfSystem(const std::system_error& error) {
  const bool refused = error.code() == std::errc::resource_unavailable_try_again ||
                       error.code() == std::errc::not_enough_memory;
  if (!refused) return Error(ErrorCode::kInternal, error.what());
  return Error(
      ErrorCode::kOutOfMemory,
      fmt::format(
          "the system gives no further thread or memory ({}){}; threads are limited by `ulimit -u`, and "
          "by pids.max of a control group",
          error.code().message(), describeMemoryLimits()));
}

void requireSpace(const fs::path& folder, uint64_t bytes, std::string_view what) {
  const fs::path existing = existingFolder(folder);
  struct statvfs space {};
  if (::statvfs(existing.c_str(), &space) != 0) return;  // whoever writes there says so
  if (space.f_blocks == 0) return;                       // a file system that does not tell
  const uint64_t free = static_cast<uint64_t>(space.f_bavail) * space.f_frsize;
  if (free >= bytes) return;
  fail(ErrorCode::kDiskFull, "{}: {} needs {}, but {} are free; make room, or choose another folder",
       folder.string(), what, formatBytes(bytes), formatBytes(free));
}

void ignoreFileSizeSignal() { ::signal(SIGXFSZ, SIG_IGN); }

void seeChildrenEnd() { ::signal(SIGCHLD, SIG_DFL); }

}  // namespace pipeshard
