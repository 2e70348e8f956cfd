// The coordinator's side of checkpoints with nodes: which of them write into its own folder and which on
// disks of their own, and what those are told. A node that lacks a file gets it from here, or through here
// from a node that has it. The messages: node_disk.h, file_pieces.h.
//
// Used by one thread, the coordinator's.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/disks/disk_probe.h"
#include "runtime/disks/node_disk.h"

namespace pipeshard {

// Where a job has its checkpoints on the coordinator's host.
struct CheckpointPlace {
  std::string folder;  // absolute; "": the job keeps none
  std::string host;    // the coordinator's
  std::string job;     // by whose name ranks write
  int keep = 2;        // CheckpointSpec::keep
  // The manifest of the checkpoint that the job goes on from; "": it begins anew. Where it says that all is
  // in one folder nodes are told that it is on `host`.
  std::string resumed;
};

// Where a node's ranks write.
struct DiskOfNode {
  std::string host = {};  // "": all hosts write into one folder
  bool is_ours = true;    // the coordinator sees it
};

class DiskExchange {
 public:
  struct Surroundings {
    std::function<void(int node, std::string_view type, nlohmann::json body,
                       std::span<const std::byte> payload)>
        send;
    std::function<std::vector<int>()> nodes;  // that are there now
    std::function<void(const std::string&)> notice;
  };

  // Error(kDiskFull) where the probe cannot be written.
  DiskExchange(CheckpointPlace place, Surroundings surroundings);
  DiskExchange(const DiskExchange&) = delete;
  DiskExchange& operator=(const DiskExchange&) = delete;

  // Before the node is told to start: what it is to know. The result is for "start".
  nlohmann::json introduce(int node, const std::string& host);
  // A message of a node, of any type; false: it is none of those that are for this.
  bool hear(int node, std::string_view type, const nlohmann::json& body, std::span<const std::byte> payload);

  DiskOfNode diskOf(int node) const;
  // A checkpoint is there, or will not be: said to those with ranks' files on disks of their own.
  void publish(const Checkpoint& checkpoint);
  void drop(int64_t step);
  // Some have not committed yet what was published.
  bool isAwaited() const { return !awaited_.empty(); }

 private:
  struct Request {
    FileWant want = {};
    std::vector<int> sources;  // that have not been found to lack the file; the last is asked
    std::string error = {};    // of the one that was found so last
  };
  void hearDisk(int node, bool is_shared);
  void hearWant(int node, const FileWant& want);
  void ask(int node);
  void hearPiece(int node, const nlohmann::json& body, std::span<const std::byte> payload);

  CheckpointPlace place_;
  Surroundings surroundings_;
  DiskProbe probe_;
  std::map<int, std::string> hosts_;           // of those that were introduced
  std::set<int> answered_;                     // of these
  std::set<int> own_;                          // of these: on disks of their own
  std::map<int, Request> requests_;            // by who asks
  std::set<std::pair<int, int64_t>> awaited_;  // node and step
};

}  // namespace pipeshard
