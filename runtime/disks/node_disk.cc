#include "runtime/disks/node_disk.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "runtime/checkpoint/rank_state.h"
#include "runtime/disks/disk_probe.h"
#include "runtime/messages/control_types.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

// For a daemon before this one to go; the coordinator waits no longer for a sign of life.
constexpr std::chrono::milliseconds kPatienceWithOthers{2'000};

// Files that are not here; another host has them, or a crash has kept them from being written.
std::vector<int> filesNotIn(const Checkpoint& checkpoint, const fs::path& directory) {
  std::vector<int> missing;
  for (size_t i = 0; i < checkpoint.files.size(); ++i) {
    if (!fs::exists(directory / checkpoint.files[i].name)) missing.push_back(static_cast<int>(i));
  }
  return missing;
}

// Of these checkpoints, newest first. One that a run on this host alone has saved is refused: it is all
// there, and this job would replace it. Returns those of several hosts: parts, which go on with their
// coordinator's disk. That one may be lost, or has found them bad.
std::vector<std::string> partsNewerThan(int64_t step, const std::vector<std::string>& found) {
  std::vector<std::string> parts;
  for (const std::string& directory : found) {
    if (stepOfCheckpoint(fs::path(directory).filename().string()).value_or(0) <= step) continue;
    try {
      if (!isInOneFolder(readCheckpoint(directory))) {
        parts.push_back(directory);
        continue;
      }
    } catch (const Error&) {
      continue;  // it is no good
    }
    fail(ErrorCode::kConfiguration,
         "there is a whole checkpoint on this host's own disk, {}, and the coordinator's disk has none newer "
         "than step {}: start the run on this host, copy that one to the coordinator's disk, remove it here, "
         "or name another folder",
         directory, step);
  }
  return parts;
}

}  // namespace

nlohmann::json diskRequestJson(const DiskRequest& request) {
  return {{"folder", request.folder}, {"probe", request.probe}, {"job", request.job}, {"keep", request.keep}};
}

DiskRequest diskRequestFromJson(const nlohmann::json& json) {
  return {json.at("folder").get<std::string>(), json.at("probe").get<std::string>(),
          json.at("job").get<std::string>(), json.at("keep").get<int>()};
}

void NodeDisk::open(const DiskRequest& request, const std::string& plan_directory,
                    const std::vector<RankId>& ranks) {
  const bool is_shared = seesProbe(request.folder, request.probe);
  tell_(control::kDisk, {{"shared", is_shared}}, {});
  if (!is_shared) openFolder(request, plan_directory);
  if (resumed_.empty()) return;
  const int64_t step = checkpointFromJson(resumed_).step;
  if (folder_) folder_->goOnAfter(step, CheckpointFolder::Later::kStay);
  const Checkpoint checkpoint = readManifest((fs::path(request.folder) / checkpointName(step)).string());
  if (is_shared && isInOneFolder(checkpoint)) return;
  std::set<int> needed;
  for (const RankId rank : ranks) {
    const std::vector<int> files = filesFor(loadProgram(plan_directory, rank), checkpoint);
    needed.insert(files.begin(), files.end());
  }
  // Where the coordinator sees the files it has read them.
  check_ = std::make_unique<DiskCheck>(checkpoint, std::vector<int>(needed.begin(), needed.end()),
                                       is_shared ? DiskCheck::Content::kTrusted : DiskCheck::Content::kRead);
}

void NodeDisk::openFolder(const DiskRequest& request, const std::string& plan_directory) {
  folder_.emplace(request.folder, request.job, std::max(2, request.keep), companionsOf(plan_directory),
                  kPatienceWithOthers, resumed_);
  committer_.emplace(*folder_);
  const std::vector<std::string> found = listCheckpoints(request.folder);
  if (!resumed_.empty()) {
    const int64_t step = checkpointFromJson(resumed_).step;
    const std::vector<std::string> parts = partsNewerThan(step, found);
    if (parts.empty()) return;
    std::string text = fmt::format(
        "{} on this host's own disk is a part of a newer checkpoint than that of step {}, which the "
        "coordinator's disk has as its newest good one; it stays until one of its step or later is saved",
        parts.front(), step);
    tell_(control::kNotice, {{"message", std::move(text)}}, {});
    return;
  }
  if (found.empty()) return;
  fail(ErrorCode::kConfiguration,
       "there is a checkpoint on this host's own disk, {}, and none on the coordinator's: start the run on "
       "the host that it ran on, copy {} there, or name another folder",
       found.front(), request.folder);
}

void NodeDisk::askForNext() {
  if (!fetch_->isDone()) tell_(control::kWant, wantJson(fetch_->want()), {});
}

void NodeDisk::takePiece(const FilePiece& piece) {
  if (!fetch_ || fetch_->isDone()) return;
  fetch_->take(piece);
  askForNext();
  if (isLacking()) return;
  const auto notice = [&](std::string text) { tell_(control::kNotice, {{"message", std::move(text)}}, {}); };
  if (!fetch_->fetched().empty()) {
    notice(fmt::format("has got {} of the checkpoint from other hosts", fmt::join(fetch_->fetched(), ", ")));
  }
  for (const std::string& damage : fetch_->replaced())
    notice(fmt::format("{}; it has come whole from another host", damage));
}

void NodeDisk::takeManifest(const nlohmann::json& piece) {
  if (piece.at("offset").get<size_t>() == 0) manifest_.clear();
  manifest_ += piece.at("text").get<std::string>();
  if (manifest_.size() < piece.at("total").get<size_t>()) return;
  if (piece.at("resumed").get<bool>()) {
    resumed_ = std::move(manifest_);
    return;
  }
  if (!committer_) return;
  Checkpoint checkpoint = checkpointFromJson(manifest_);
  checkpoint.elsewhere = filesNotIn(checkpoint, folder_->partialOf(checkpoint.step));
  committer_->commit(std::move(checkpoint));
}

bool isForDisk(std::string_view type) {
  return type == control::kManifest || type == control::kDrop || type == control::kWant ||
         type == control::kPiece;
}

void NodeDisk::hear(std::string_view type, const nlohmann::json& body, std::span<const std::byte> payload) {
  if (type == control::kStart) {
    if (body.contains("disk")) {
      open(diskRequestFromJson(body["disk"]), body.at("directory").get<std::string>(),
           idsAt<RankId>(body.at("ranks").get<std::vector<size_t>>()));
    }
    starting_ = true;
  }
  if (type == control::kManifest) takeManifest(body);
  if (type == control::kPiece) takePiece(pieceFromJson(body, payload));
  if (type == control::kDrop && committer_) committer_->discard(body.at("step").get<int64_t>(), "dropped");
  if (type == control::kWant) {
    const FilePiece piece = readPiece(wantFromJson(body));
    nlohmann::json answer = pieceJson(piece);
    answer["for"] = body.at("for");
    tell_(control::kPiece, std::move(answer), piece.bytes);
  }
}

bool NodeDisk::takeReady() { return !isLacking() && std::exchange(starting_, false); }

void NodeDisk::look() {
  if (check_ && check_->isDone()) {
    fetch_.emplace(check_->checkpoint(), check_->take());
    check_.reset();
    askForNext();
  }
  if (!committer_) return;
  for (const CheckpointCommitter::Outcome& outcome : committer_->take()) {
    nlohmann::json body = {{"step", outcome.step}};
    if (!outcome.error.empty()) body["error"] = outcome.error;
    tell_(control::kKept, std::move(body), {});
  }
}

}  // namespace pipeshard
