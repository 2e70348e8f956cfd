// Files of checkpoints as pieces of control messages: from a host that has one on its own disk to one that
// lacks it, by way of the coordinator.
//
//   want {directory, job, file, offset, again}     ──►
//                                      ◄──  piece {file, offset, total} + bytes, or piece {file, error}
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/files/content_hash.h"
#include "runtime/files/posix_file.h"

namespace pipeshard {

// A piece of a file of a checkpoint, from `offset` on. `directory` is the checkpoint's; before a host has
// committed it, its files are in `job`'s partial folder beside it.
struct FileWant {
  std::string directory, job, file;
  uint64_t offset = 0;
  bool again = false;  // what has come of this file was not what was written: from the next host that has it
};
nlohmann::json wantJson(const FileWant& want);
FileWant wantFromJson(const nlohmann::json& json);

// The answer.
struct FilePiece {
  std::string file;
  uint64_t offset = 0;
  uint64_t total = 0;      // bytes of the file
  std::string error = {};  // why there is none; "": it is here
  std::vector<std::byte> bytes = {};
};
// What a message says of it: its bytes are the payload.
nlohmann::json pieceJson(const FilePiece& piece);
FilePiece pieceFromJson(const nlohmann::json& json, std::span<const std::byte> payload);

// Of this host's disk. With `error` where there is no such file, or where anything but a part of a checkpoint
// is asked for.
FilePiece readPiece(const FileWant& want);

// A text in pieces: bodies with the fields of `body`, and offset, total and text.
std::vector<nlohmann::json> piecesOf(const std::string& text, const nlohmann::json& body);

// Files of a checkpoint that a host is to get, by index: what is wrong with the one that is here; "": there
// is none.
using LackedFiles = std::map<int, std::string>;

// Gets files of a checkpoint, one after the other. One that is here stays until a whole one has come.
class FileFetch {
 public:
  // What the checkpoint has beside its files (plan.json, weights.json) is asked for, too, where it is not
  // there. A rank's file must come, one of the others need not.
  FileFetch(Checkpoint checkpoint, const LackedFiles& lacked);

  bool isDone() const { return waiting_.empty(); }
  // What has come, for people; what of it takes the place of a damaged file, with what was wrong.
  const std::vector<std::string>& fetched() const { return fetched_; }
  const std::vector<std::string>& replaced() const { return replaced_; }
  FileWant want() const;  // the next; !isDone()
  // The answer to it. Errors, where no host has the file whole: kNoGoodCheckpoint where one has another
  // content than it was written with, else kMissingInput (with the command that copies it); kDiskFull.
  void take(const FilePiece& piece);

 private:
  struct File {
    std::string name;
    int index = -1;      // in Checkpoint::files; -1: a companion
    std::string damage;  // of one that was found, here or elsewhere
  };
  void finishFile();
  void beginFile();
  [[noreturn]] void failWithout(const File& file, const std::string& error) const;

  Checkpoint checkpoint_;
  std::vector<File> waiting_;  // the last is being read
  std::vector<std::string> fetched_, replaced_;
  std::unique_ptr<PendingFile> pending_;
  std::unique_ptr<RunningHash> hash_;  // of what has come of it
  uint64_t offset_ = 0;
  bool again_ = false;
};

}  // namespace pipeshard
