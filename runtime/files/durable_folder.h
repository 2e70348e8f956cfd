// Folders that are written whole or not at all, by one process at a time: what plan directories, checkpoints
// and dumps share. A crash at any moment leaves the old one or the new one.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/files/posix_file.h"

namespace pipeshard {

// Makes the folder and those above it. Error(kConfiguration) where something that is no folder has its name,
// or where the user may not; else Error(kDiskFull). `access` is of the folder itself, where it is a new one.
void makeFolder(const std::filesystem::path& path, FileAccess access = FileAccess::kByUmask);

// Writes a file and makes it durable. Error(kDiskFull).
void writeDurably(const std::filesystem::path& path, const std::string& text);

// What was renamed or made in it reaches the disk; syncTree: with all files and folders in it.
// Error(kDiskFull).
void syncFolder(const std::filesystem::path& path);
void syncTree(const std::filesystem::path& path);

// Gives `from` the name `to`; a folder that has it gets the name `from`. At once, so that there is one at any
// moment; file systems that cannot do that have the old one at "TO.replaced" for a moment, from where
// recoverReplaced() takes it back after a crash. Error(kDiskFull).
void exchangeNames(const std::filesystem::path& from, const std::filesystem::path& to);
void recoverReplaced(const std::filesystem::path& to);

// Held by the one process that writes a folder; free again when that process ends, however it ends.
class FolderLock {
 public:
  static constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(10);

  FolderLock() = default;
  // Takes the lock `file`, which is made, and removed again at the end. `folder` (what is written; it may be
  // a file), `what` ("another job writes its checkpoints into") and the process that has it stand in the
  // Error(kAddressInUse) that comes after `patience`. Error(kDiskFull) where it cannot be made.
  FolderLock(const std::filesystem::path& file, const std::filesystem::path& folder, std::string_view what,
             std::chrono::milliseconds patience = kPatience);
  FolderLock(FolderLock&&) = default;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock() { release(); }

  // Whether `file` is such a lock that a process of this host has left without its end: it was killed.
  static bool isAbandoned(const std::filesystem::path& file);

 private:
  bool tryTake();
  void release();

  std::filesystem::path file_;
  Descriptor descriptor_;
};

// A folder under construction, "TARGET.partial-PID", that is removed when destroyed, unless it got its name
// before. While it is there its process holds a lock on it, so that others can tell what a dead one has left.
class PartialFolder {
 public:
  // Empty. Error(kDiskFull), kConfiguration as makeFolder.
  explicit PartialFolder(std::filesystem::path target);
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  ~PartialFolder();

  const std::filesystem::path& path() const { return path_; }
  // All of it is durable, has the target's name, and the older one is gone; so is what dead processes have
  // left beside it. Error(kAddressInUse) when another process has been doing so for `patience`,
  // Error(kDiskFull).
  void publish(std::chrono::milliseconds patience = FolderLock::kPatience);

 private:
  void sweep() const;

  std::filesystem::path target_;
  std::filesystem::path path_;
  Descriptor lock_;
};

}  // namespace pipeshard
