#include "runtime/disks/disk_exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/messages/control_types.h"

namespace pipeshard {
namespace {

// In a list of nodes.
constexpr int kOwnDisk = -1;

// What nodes are told of a checkpoint that is all in the coordinator's folder: those on disks of their own
// have no part of it, or not all, and must not say that they have.
std::string withHost(std::string manifest, const std::string& host) {
  if (manifest.empty()) return manifest;
  Checkpoint checkpoint = checkpointFromJson(manifest);
  if (!isInOneFolder(checkpoint)) return manifest;
  for (CheckpointFile& file : checkpoint.files) file.host = host;
  return checkpointToJson(checkpoint);
}

}  // namespace

DiskExchange::DiskExchange(CheckpointPlace place, Surroundings surroundings)
    : place_(std::move(place)), surroundings_(std::move(surroundings)), probe_(place_.folder) {
  place_.resumed = withHost(std::move(place_.resumed), place_.host);
}

nlohmann::json DiskExchange::introduce(int node, const std::string& host) {
  hosts_[node] = host;
  if (!place_.resumed.empty()) {
    for (nlohmann::json& piece : piecesOf(place_.resumed, {{"resumed", true}}))
      surroundings_.send(node, control::kManifest, std::move(piece), {});
  }
  return diskRequestJson({place_.folder, probe_.name(), place_.job, place_.keep});
}

bool DiskExchange::hear(int node, std::string_view type, const nlohmann::json& body,
                        std::span<const std::byte> payload) {
  if (type == control::kDisk) {
    hearDisk(node, body.at("shared").get<bool>());
  } else if (type == control::kWant) {
    hearWant(node, wantFromJson(body));
  } else if (type == control::kPiece) {
    hearPiece(node, body, payload);
  } else if (type == control::kKept) {
    if (awaited_.erase({node, body.at("step").get<int64_t>()}) == 0 || !body.contains("error")) return true;
    surroundings_.notice(
        fmt::format("warning: host {} has its part of the checkpoint of step {}, but not yet "
                    "as a checkpoint of its own: {}",
                    hosts_[node], body.at("step").get<int64_t>(), body.at("error").get<std::string>()));
  } else {
    return false;
  }
  return true;
}

void DiskExchange::hearDisk(int node, bool is_shared) {
  answered_.insert(node);
  if (!is_shared) own_.insert(node);
  if (answered_.size() < hosts_.size()) return;
  std::vector<std::string> own;
  for (const int other : own_) own.push_back(hosts_[other]);
  if (own.empty() && hosts_.size() == 1)
    return surroundings_.notice(fmt::format("checkpoints: host {} writes all of them, into {}",
                                            hosts_.begin()->second, place_.folder));
  if (own.empty())
    return surroundings_.notice(
        fmt::format("checkpoints: all hosts write into one folder, {}", place_.folder));
  surroundings_.notice(
      fmt::format("checkpoints: {} is on each host's own disk; apart from the coordinator's: {}. What one of "
                  "them has alone is lost with it: no other can go on without it",
                  place_.folder, fmt::join(own, ", ")));
}

// This host's disk first.
void DiskExchange::hearWant(int node, const FileWant& want) {
  Request& request = requests_[node];
  if (request.want.file != want.file) {
    request.sources = surroundings_.nodes();
    std::erase(request.sources, node);
    request.sources.push_back(kOwnDisk);
  } else if (want.again && !request.sources.empty()) {
    request.sources.pop_back();
    request.error = "what others have is not that, either";
  }
  request.want = want;
  ask(node);
}

void DiskExchange::ask(int node) {
  Request& request = requests_[node];
  FilePiece piece{request.want.file, request.want.offset};
  if (!request.sources.empty() && request.sources.back() == kOwnDisk) {
    piece = readPiece(request.want);
    if (piece.error.empty()) return surroundings_.send(node, control::kPiece, pieceJson(piece), piece.bytes);
    request.error = piece.error;
    request.sources.pop_back();
  }
  if (request.sources.empty()) {
    piece.error = request.error;
    return surroundings_.send(node, control::kPiece, pieceJson(piece), {});
  }
  nlohmann::json want = wantJson(request.want);
  want["for"] = node;
  surroundings_.send(request.sources.back(), control::kWant, std::move(want), {});
}

void DiskExchange::hearPiece(int node, const nlohmann::json& body, std::span<const std::byte> payload) {
  const auto found = requests_.find(body.value("for", -1));
  if (found == requests_.end()) return;
  Request& request = found->second;
  if (request.sources.empty() || request.sources.back() != node || body.at("file") != request.want.file ||
      body.at("offset") != request.want.offset)
    return;
  if (body.contains("error")) {
    request.error = body["error"].get<std::string>();
    request.sources.pop_back();
    return ask(found->first);
  }
  surroundings_.send(found->first, control::kPiece, body, payload);
}

DiskOfNode DiskExchange::diskOf(int node) const {
  if (own_.empty()) return {};
  if (own_.contains(node)) return {hosts_.at(node), false};
  return {place_.host, true};
}

void DiskExchange::publish(const Checkpoint& checkpoint) {
  for (const int node : own_) {
    awaited_.emplace(node, checkpoint.step);
    for (nlohmann::json& piece : piecesOf(checkpointToJson(checkpoint), {{"resumed", false}}))
      surroundings_.send(node, control::kManifest, std::move(piece), {});
  }
}

void DiskExchange::drop(int64_t step) {
  for (const int node : own_) surroundings_.send(node, control::kDrop, {{"step", step}}, {});
}

}  // namespace pipeshard
