#include "runtime/identity/file_digest.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "runtime/files/content_hash.h"
#include "runtime/files/posix_file.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kAtOnce = uint64_t{4} << 20;
constexpr size_t kMostRemembered = 512;
// A file may be written twice within the resolution of its time stamps.
constexpr int64_t kSettledSeconds = 2;
constexpr auto kLookAgain = std::chrono::milliseconds(20);
constexpr uint64_t kWholeDataBytes = uint64_t{64} << 20;
constexpr uint64_t kDataBlockBytes = 4096;
constexpr uint64_t kDataBlocks = 1024;

struct stat statusOf(const Descriptor& file, const std::string& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(ErrorCode::kMissingInput, "cannot examine {}", path);
  return status;
}

// "" where there is none.
fs::path cacheFolder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache != nullptr && *cache == '/') return fs::path(cache) / "pipeshard/digests";
  if (home != nullptr && *home == '/') return fs::path(home) / ".cache/pipeshard/digests";
  return {};
}

bool isSettled(const struct stat& status) {
  const int64_t now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  return now - std::max<int64_t>(status.st_mtim.tv_sec, status.st_ctim.tv_sec) >= kSettledSeconds;
}

std::string keyOf(const struct stat& status) {
  return fmt::format("{}:{} {} {}.{:09} {}.{:09}", status.st_dev, status.st_ino, status.st_size,
                     status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_ctim.tv_sec,
                     status.st_ctim.tv_nsec);
}

// One file per digest: its key and the digest. What cannot be read or written is as if it were not there.
class RememberedDigest {
 public:
  explicit RememberedDigest(const struct stat& status) : key_(keyOf(status)) {
    const fs::path folder = cacheFolder();
    if (folder.empty()) return;
    std::error_code error;
    fs::create_directories(folder, error);
    if (!error) path_ = folder / hashText(contentHash(key_));
  }

  std::optional<uint64_t> find() const {
    if (path_.empty()) return std::nullopt;
    try {
      const std::optional<std::string> text = readTextFile(path_.string(), 4096);
      const size_t end = text ? text->find('\n') : std::string::npos;
      if (end == std::string::npos || text->substr(0, end) != key_) return std::nullopt;
      return hashFromText(std::string_view(*text).substr(end + 1));
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  // False while another process reads the file. Held until this object goes.
  bool tryLock() {
    if (path_.empty()) return true;
    const std::string name = path_.string() + ".lock";
    if (!lock_.valid()) lock_.reset(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!lock_.valid()) return true;
    return ::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  }

  void store(uint64_t digest) const {
    if (path_.empty()) return;
    try {
      const std::string text = key_ + "\n" + hashText(digest);
      PendingFile file(path_.string());
      file.append(text.data(), text.size());
      file.commit(false);
      forgetOldest();
    } catch (const Error&) {
      // read again the next time
    }
  }

  void removeLock() const {
    std::error_code ignored;
    if (lock_.valid()) fs::remove(path_.string() + ".lock", ignored);
  }

 private:
  void forgetOldest() const {
    std::error_code error;
    std::vector<std::pair<fs::file_time_type, fs::path>> all;
    for (auto entry = fs::directory_iterator(path_.parent_path(), error);
         !error && entry != fs::directory_iterator(); entry.increment(error)) {
      std::error_code gone;
      all.emplace_back(fs::last_write_time(entry->path(), gone), entry->path());
    }
    if (all.size() <= kMostRemembered) return;
    std::sort(all.begin(), all.end());
    for (size_t i = 0; i < all.size() - kMostRemembered / 2; ++i) fs::remove(all[i].second, error);
  }

  std::string key_;
  fs::path path_;  // empty: nothing is remembered
  Descriptor lock_;
};

void requireGoingOn(const ReadingProgress* progress) {
  if (progress != nullptr && progress->stop.load()) fail(ErrorCode::kRequeue, "reading files was stopped");
}

uint64_t readDigest(const Descriptor& file, const std::string& path, uint64_t bytes,
                    ReadingProgress* progress) {
  std::vector<std::byte> buffer(std::min(kAtOnce, bytes));
  RunningHash hash;
  for (uint64_t done = 0; done < bytes; done += buffer.size()) {
    requireGoingOn(progress);
    buffer.resize(std::min(kAtOnce, bytes - done));
    readExactly(file, done, buffer, path);
    hash.add(buffer.data(), buffer.size());
    if (progress != nullptr) progress->bytes_done += buffer.size();
  }
  return hash.value();
}

}  // namespace

uint64_t digestOfFile(const std::string& path, ReadingProgress* progress) {
  const Descriptor file = openForReading(path);
  const struct stat status = statusOf(file, path);
  const auto bytes = static_cast<uint64_t>(status.st_size);
  if (bytes < kRememberedBytes) return readDigest(file, path, bytes, progress);
  RememberedDigest remembered(status);
  std::optional<uint64_t> found = remembered.find();
  while (!found && !remembered.tryLock()) {
    requireGoingOn(progress);
    std::this_thread::sleep_for(kLookAgain);
    found = remembered.find();
  }
  if (!found) found = remembered.find();  // whoever had the lock has read it
  if (found) {
    if (progress != nullptr) progress->bytes_done += bytes;
    return *found;
  }
  const uint64_t digest = readDigest(file, path, bytes, progress);
  if (isSettled(status) && keyOf(statusOf(file, path)) == keyOf(status)) remembered.store(digest);
  remembered.removeLock();
  return digest;
}

uint64_t sampledDigestOfFile(const std::string& path) {
  const Descriptor file = openForReading(path);
  const uint64_t bytes = fileBytes(file, path);
  if (bytes <= kWholeDataBytes) return readDigest(file, path, bytes, nullptr);
  RunningHash hash;
  hash.add(&bytes, sizeof bytes);
  std::vector<std::byte> buffer(kDataBlockBytes);
  for (uint64_t block = 0; block < kDataBlocks; ++block) {
    const auto place = static_cast<unsigned __int128>(bytes - kDataBlockBytes) * block / (kDataBlocks - 1);
    readExactly(file, static_cast<uint64_t>(place), buffer, path);
    hash.add(buffer.data(), buffer.size());
  }
  return hash.value();
}

}  // namespace pipeshard
