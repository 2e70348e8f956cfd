// Where the parts are of the checkpoint that a job goes on from, when its hosts have disks of their own and
// some of them are gone. Every plan of the model needs all parts; any node that is here hands on what it has
// (runtime/disks/), also one without ranks.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/job/job.h"

namespace pipeshard {

class NodePool;  // runtime/job/node_pool.h

// What a job goes on from, as this host's disk has it; its directory is absolute.
struct NextCheckpoint {
  Checkpoint checkpoint;
  std::vector<int> elsewhere;  // of its files, those that have anything and are not on this disk; ascending
};
// The newest one of the folder that is older than CheckpointSpec::before. Sizes are looked at, contents are
// not. Nothing: there is none that can be read.
std::optional<NextCheckpoint> nextCheckpoint(const CheckpointSpec& spec);

// Its files that are neither on this disk nor, by its manifest, on that of one of these hosts.
std::vector<int> lackedWith(const NextCheckpoint& next, const std::set<std::string>& hosts);

// Between attempts: asks the nodes that are here, and gives back those files that none of them has whole.
std::vector<int> lackedByNodes(const NextCheckpoint& next, NodePool& nodes,
                               const JobProgressCallback& progress);

// "checkpoint /a/step-000050 is in part on the own disk of host b alone (rank-0002.safetensors)".
std::string describeLacked(const Checkpoint& checkpoint, const std::vector<int>& lacked);

}  // namespace pipeshard
