#include "runtime/files/durable_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "ir/base/error.h"
#include "ir/base/text_file.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPartialName = ".partial-";
constexpr const char* kReplacedName = ".replaced";
constexpr const char* kLockName = ".lock";

fs::path withEnding(fs::path path, std::string_view ending) {
  path += ending;
  return path;
}

// Whether the name still leads to the open file: another process may have removed it meanwhile.
bool isNameOf(const Descriptor& file, const fs::path& path) {
  struct stat opened {
  }, named{};
  return ::fstat(file.get(), &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

std::string thisProcess() {
  char host[HOST_NAME_MAX + 1] = {};
  return fmt::format(
      "{}{}", ::getpid(),
      ::gethostname(host, HOST_NAME_MAX) == 0 && host[0] != 0 ? fmt::format(" on {}", host) : std::string());
}

void syncPath(const fs::path& path, int flags) {
  const Descriptor opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags));
  if (!opened.valid() || ::fsync(opened.get()) != 0)
    fail(ErrorCode::kDiskFull, "cannot make {} durable: {}", path.string(), std::strerror(errno));
}

void renameTo(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    fail(ErrorCode::kDiskFull, "cannot rename {} to {}: {}", from.string(), to.string(),
         std::strerror(errno));
}

}  // namespace

void makeFolder(const fs::path& path, FileAccess access) {
  std::error_code error;
  const fs::path folder = path.has_filename() ? path : path.parent_path();  // "dumps/" is "dumps"
  if (access == FileAccess::kOwner) {
    if (folder.has_parent_path()) fs::create_directories(folder.parent_path(), error);
    if (!error) ::mkdir(folder.c_str(), 0700);  // what fails is said below
  }
  if (!error) fs::create_directories(path, error);
  if (!error) return;
  const bool is_choice = error == std::errc::not_a_directory || error == std::errc::file_exists ||
                         error == std::errc::permission_denied || error == std::errc::operation_not_permitted;
  fail(is_choice ? ErrorCode::kConfiguration : ErrorCode::kDiskFull, "folder {} cannot be made: {}{}",
       path.string(), error.message(), is_choice ? "; name another one" : "");
}

void writeDurably(const fs::path& path, const std::string& text) {
  PendingFile file(path.string());
  file.append(text.data(), text.size());
  file.commit(true);
}

void syncFolder(const fs::path& path) { syncPath(path, O_DIRECTORY); }

void syncTree(const fs::path& path) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_directory()) syncFolder(entry.path());
    if (entry.is_regular_file()) syncPath(entry.path(), 0);
  }
  syncFolder(path);
}

void exchangeNames(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return;
  const bool cannot = errno == EINVAL || errno == ENOSYS;
  std::error_code ignored;
  if (!cannot || !fs::exists(to, ignored)) {
    renameTo(from, to);
    return;
  }
  const fs::path replaced = withEnding(to, kReplacedName);
  renameTo(to, replaced);
  renameTo(from, to);
  renameTo(replaced, from);
}

void recoverReplaced(const fs::path& to) {
  const fs::path replaced = withEnding(to, kReplacedName);
  std::error_code ignored;
  if (!fs::exists(replaced, ignored)) return;
  if (fs::exists(to, ignored)) {
    fs::remove_all(replaced, ignored);
  } else {
    renameTo(replaced, to);
  }
}

FolderLock::FolderLock(const fs::path& file, const fs::path& folder, std::string_view what,
                       std::chrono::milliseconds patience)
    : file_(file) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!tryTake()) {
    if (std::chrono::steady_clock::now() > end) {
      const std::string owner = readTextFile(file_.string()).value_or("");
      descriptor_.reset();
      fail(ErrorCode::kAddressInUse, "{} {} (process {}); name another one, or end it", what, folder.string(),
           owner.empty() ? "unknown" : owner);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// False: somebody else has it.
bool FolderLock::tryTake() {
  const auto failed = [&](const char* action) {
    const int reason = errno;
    descriptor_.reset();
    fail(ErrorCode::kDiskFull, "cannot {} {}: {}", action, file_.string(), std::strerror(reason));
  };
  if (!descriptor_.valid()) {
    descriptor_.reset(::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
    if (!descriptor_.valid()) failed("write");
  }
  if (::flock(descriptor_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) failed("lock");
    if (!isNameOf(descriptor_, file_)) descriptor_.reset();
    return false;
  }
  if (!isNameOf(descriptor_, file_)) {  // its owner has removed it at its end
    descriptor_.reset();
    return false;
  }
  const std::string owner = thisProcess();
  if (::ftruncate(descriptor_.get(), 0) != 0 ||
      ::pwrite(descriptor_.get(), owner.data(), owner.size(), 0) < 0)
    failed("write");
  return true;
}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  if (this == &other) return *this;
  release();
  file_ = std::move(other.file_);
  descriptor_ = std::move(other.descriptor_);
  return *this;
}

void FolderLock::release() {
  if (!descriptor_.valid()) return;
  ::unlink(file_.c_str());  // while it is held: nobody else's
  descriptor_.reset();
}

bool FolderLock::isAbandoned(const fs::path& file) {
  // Of another host this one may not see the lock.
  const std::string here = thisProcess();
  const Descriptor opened(::open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  char text[HOST_NAME_MAX + 32] = {};
  if (!opened.valid() || ::pread(opened.get(), text, sizeof text - 1, 0) <= 0) return false;
  const std::string_view owner(text);
  const auto host = [](std::string_view process) {
    return process.substr(std::min(process.find(' '), process.size()));
  };
  return host(owner) == host(here) && ::flock(opened.get(), LOCK_EX | LOCK_NB) == 0 && isNameOf(opened, file);
}

PartialFolder::PartialFolder(fs::path target)
    : target_(std::move(target)), path_(withEnding(target_, fmt::format("{}{}", kPartialName, ::getpid()))) {
  if (target_.has_parent_path()) makeFolder(target_.parent_path());
  do {
    makeFolder(path_);
    lock_.reset(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!lock_.valid() && errno != ENOENT)
      fail(ErrorCode::kDiskFull, "cannot open the folder {}: {}", path_.string(), std::strerror(errno));
    // Where folders cannot be locked, as on some network file systems, nothing is swept either.
    if (lock_.valid()) ::flock(lock_.get(), LOCK_EX);
  } while (!lock_.valid() || !isNameOf(lock_, path_));  // another process has swept it before it was locked
  for (const fs::directory_entry& old : fs::directory_iterator(path_)) fs::remove_all(old.path());
}

PartialFolder::~PartialFolder() {
  std::error_code ignored;
  if (lock_.valid()) fs::remove_all(path_, ignored);
}

void PartialFolder::publish(std::chrono::milliseconds patience) {
  syncTree(path_);
  const FolderLock lock(withEnding(target_, kLockName), target_, "another process writes", patience);
  recoverReplaced(target_);
  exchangeNames(path_, target_);
  if (target_.has_parent_path()) syncFolder(target_.parent_path());
  lock_.reset();
  std::error_code ignored;  // the next one sweeps what is left
  fs::remove_all(path_, ignored);
  sweep();
}

void PartialFolder::sweep() const {
  const fs::path parent = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
  const std::string start = target_.filename().string() + kPartialName;
  std::error_code ignored;
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, ignored)) {
    if (entry.path().filename().string().starts_with(start)) found.push_back(entry.path());
  }
  for (const fs::path& path : found) {
    const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (folder.valid() && ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0) fs::remove_all(path, ignored);
  }
}

}  // namespace pipeshard
