// A folder for what a command needs while it runs.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "runtime/files/durable_folder.h"

namespace pipeshard {

// Made in TMPDIR (or /tmp) under a name of its own, removed with all that is in it. For nodes in the present
// folder: hosts share the folder that people work in more often than /tmp. What commands of this user have
// left beside it that were killed on this host is removed as well. Error(kConfiguration) where TMPDIR is no
// folder, Error(kDiskFull) if it cannot be made.
class ScratchFolder {
 public:
  explicit ScratchFolder(bool for_nodes) {
    const std::filesystem::path parent = for_nodes ? std::filesystem::current_path() : temporary();
    sweep(parent);
    std::string pattern = (parent / (std::string(kName) + "XXXXXX")).string();
    if (mkdtemp(pattern.data()) == nullptr)
      fail(ErrorCode::kDiskFull, "no folder can be made in {}: {}{}", parent.string(), std::strerror(errno),
           for_nodes ? "" : "; set TMPDIR to a folder that can be written");
    path_ = pattern;
    try {
      lock_ = FolderLock(path_ / kLock, path_, "another command uses");
    } catch (...) {
      remove();
      throw;
    }
  }
  ~ScratchFolder() { remove(); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  static constexpr const char* kName = "pipeshard-scratch-";
  static constexpr const char* kLock = "in-use";  // held while its process lives; "lock" is that of dumps

  static std::filesystem::path temporary() {
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
    if (!error) return folder;
    const char* given = std::getenv("TMPDIR");
    fail(ErrorCode::kConfiguration,
         "no folder for temporary files: {} cannot be used; set TMPDIR to a folder that can be written",
         given == nullptr ? "/tmp" : fmt::format("'{}', which TMPDIR says,", given));
  }

  static void sweep(const std::filesystem::path& parent) {
    std::error_code error;
    std::vector<std::filesystem::path> found;
    for (std::filesystem::directory_iterator entry(parent, error), end; !error && entry != end;
         entry.increment(error)) {
      struct stat status {};
      if (entry->path().filename().string().starts_with(kName) &&
          ::lstat(entry->path().c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
          status.st_uid == ::geteuid())
        found.push_back(entry->path());
    }
    for (const std::filesystem::path& folder : found) {
      std::error_code ignored;
      if (FolderLock::isAbandoned(folder / kLock)) std::filesystem::remove_all(folder, ignored);
    }
  }

  void remove() const {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::filesystem::path path_;
  FolderLock lock_;
};

}  // namespace pipeshard
