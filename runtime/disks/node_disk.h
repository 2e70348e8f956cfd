// A node's side of checkpoints: whether it sees the coordinator's folder, and if it does not, the folder on
// its own disk, which the ranks here write into.
//
// What the coordinator says, in this order (its side: disk_exchange.h):
//
//   manifest {offset, total, text, resumed: true}   of what the job goes on from, in pieces, if there is any
//   start {disk: {...}, ...}                        disk {shared} is the answer; what is missing here, or not
//                                                   what was written, is fetched (want, piece: file_pieces.h)
//   manifest {..., resumed: false}                  a checkpoint is whole: it is committed here, too
//   drop {step}                                     one is not
//   want {...}                                      another host asks for a file
//
// Used by one thread, the daemon's; commits are done on one of their own.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/checkpoint/checkpoint_committer.h"
#include "runtime/disks/disk_check.h"
#include "runtime/disks/file_pieces.h"

namespace pipeshard {

// The fields of "start" that say where checkpoints are.
struct DiskRequest {
  std::string folder;  // absolute
  std::string probe;   // a file that the coordinator has put there
  std::string job;     // by whose name ranks write
  int keep = 2;        // as CheckpointFolder
};
nlohmann::json diskRequestJson(const DiskRequest& request);
DiskRequest diskRequestFromJson(const nlohmann::json& json);

// Of a message of the coordinator: whether NodeDisk::hear takes it.
bool isForDisk(std::string_view type);

class NodeDisk {
 public:
  using Tell =
      std::function<void(std::string_view type, nlohmann::json body, std::span<const std::byte> payload)>;

  explicit NodeDisk(Tell tell) : tell_(std::move(tell)) {}

  // True once: it has heard "start", and all that ranks go on from is here.
  bool takeReady();

  // A message that isForDisk, or "start". Errors: as FileFetch::take, and those of open().
  void hear(std::string_view type, const nlohmann::json& body, std::span<const std::byte> payload);
  // Called often: asks for what was found to be lacking, and says what has been committed here: kept {step},
  // or kept {step, error}.
  void look();

 private:
  // "start": looks for the probe, and says what it found. On a disk of its own it makes the folder ready.
  // Then it looks for the files that `ranks` of the plan go on from. Errors: as CheckpointFolder and
  // readManifest; kConfiguration where the folder has checkpoints and the coordinator has none, or where it
  // has a whole one that is newer than that which the job goes on from; those of the programs.
  void open(const DiskRequest& request, const std::string& plan_directory, const std::vector<RankId>& ranks);
  bool isLacking() const { return check_ || (fetch_ && !fetch_->isDone()); }
  void openFolder(const DiskRequest& request, const std::string& plan_directory);
  void askForNext();
  void takeManifest(const nlohmann::json& piece);
  void takePiece(const FilePiece& piece);

  Tell tell_;
  bool starting_ = false;
  std::string manifest_;  // as far as it has come
  std::string resumed_;   // manifest; "": the job begins anew
  std::optional<CheckpointFolder> folder_;
  std::optional<CheckpointCommitter> committer_;
  std::unique_ptr<DiskCheck> check_;  // while it is under way
  std::optional<FileFetch> fetch_;
};

}  // namespace pipeshard
