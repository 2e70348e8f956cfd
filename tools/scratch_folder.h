// A folder for what a command needs while it runs.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "ir/base/error.h"

namespace pipeshard {

// Made in `parent` under a name of its own, removed with all that is in it. Error(kDiskFull) if it cannot be
// made.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::filesystem::path& parent) {
    std::string pattern = (parent / "pipeshard-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr)
      fail(ErrorCode::kDiskFull, "no folder can be made in {}", parent.string());
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
  std::filesystem::path path_;
};

}  // namespace pipeshard
