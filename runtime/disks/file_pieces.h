// Files of checkpoints as pieces of control messages: from a host that has one on its own disk to one that
// lacks it, by way of the coordinator.
//
//   want {directory, job, file, offset}            ──►
//                                      ◄──  piece {file, offset, total, bytes}, or piece {file, error}
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/files/posix_file.h"

namespace pipeshard {

// A piece of a file of a checkpoint, from `offset` on. `directory` is the checkpoint's; before a host has
// committed it, its files are in `job`'s partial folder beside it.
struct FileWant {
  std::string directory, job, file;
  uint64_t offset = 0;
};
nlohmann::json wantJson(const FileWant& want);
FileWant wantFromJson(const nlohmann::json& json);

// The answer, of this host's disk. With "error" where there is no such file, or where anything but a part of
// a checkpoint is asked for.
nlohmann::json readPiece(const FileWant& want);

// A text in pieces: bodies with the fields of `body`, and offset, total and text.
std::vector<nlohmann::json> piecesOf(const std::string& text, const nlohmann::json& body);

// Gets files of a checkpoint that are not in its folder here, one after the other.
class FileFetch {
 public:
  // `files`: of the checkpoint's; those that it has beside them (plan.json, weights.json) are asked for, too,
  // where they are not there. A rank's file must come, one of the others need not.
  FileFetch(Checkpoint checkpoint, const std::vector<int>& files);

  bool isDone() const { return waiting_.empty(); }
  const std::vector<std::string>& fetched() const { return fetched_; }  // names
  FileWant want() const;                                                // the next; !isDone()
  // The answer to it. Errors: kMissingInput (nobody has the file; the command that copies it),
  // kNoGoodCheckpoint (it has another content than it was written with), kDiskFull.
  void take(const nlohmann::json& piece);

 private:
  struct File {
    std::string name;
    int index = -1;  // in Checkpoint::files; -1: a companion
  };
  void finishFile();

  Checkpoint checkpoint_;
  std::vector<File> waiting_;  // the last is being read
  std::vector<std::string> fetched_;
  std::unique_ptr<PendingFile> pending_;
  uint64_t offset_ = 0;
};

}  // namespace pipeshard
