// A folder for what a command needs while it runs.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "ir/base/error.h"

namespace pipeshard {

// Made in TMPDIR (or /tmp) under a name of its own, removed with all that is in it. For nodes in the present
// folder: hosts share the folder that people work in more often than /tmp. Error(kConfiguration) where TMPDIR
// is no folder, Error(kDiskFull) if it cannot be made.
class ScratchFolder {
 public:
  explicit ScratchFolder(bool for_nodes) {
    const std::filesystem::path parent = for_nodes ? std::filesystem::current_path() : temporary();
    std::string pattern = (parent / "pipeshard-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr)
      fail(ErrorCode::kDiskFull, "no folder can be made in {}: {}{}", parent.string(), std::strerror(errno),
           for_nodes ? "" : "; set TMPDIR to a folder that can be written");
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  static std::filesystem::path temporary() {
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
    if (!error) return folder;
    const char* given = std::getenv("TMPDIR");
    fail(ErrorCode::kConfiguration,
         "no folder for temporary files: {} cannot be used; set TMPDIR to a folder that can be written",
         given == nullptr ? "/tmp" : fmt::format("'{}', which TMPDIR says,", given));
  }

  std::filesystem::path path_;
};

}  // namespace pipeshard
