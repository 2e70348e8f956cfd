// What the processes of a job say to each other: the types of control messages, and their fields, checked on
// arrival (transport/control/control_schema.h). A registered process that sends what is not in the receiver's
// table is named as a fault of the job (kFault); strangers are counted. A new field or type begins here.
//
// Both ends name a type by its constant alone: another word there would be silence, not an error.
#pragma once

#include <string_view>

#include "transport/control/control_schema.h"

namespace pipeshard {

// Types of messages; what they mean is in the tables of control_types.cc. One word may go both ways.
namespace control {
// Between workers and the coordinator.
inline constexpr std::string_view kHeartbeat = "heartbeat";
inline constexpr std::string_view kStore = "store";
inline constexpr std::string_view kUnreached = "unreached";
inline constexpr std::string_view kLoaded = "loaded";
inline constexpr std::string_view kStep = "step";
inline constexpr std::string_view kEvaluated = "evaluated";
inline constexpr std::string_view kHashes = "hashes";
inline constexpr std::string_view kSaved = "saved";
inline constexpr std::string_view kOperators = "operators";
inline constexpr std::string_view kFinished = "finished";
inline constexpr std::string_view kError = "error";
inline constexpr std::string_view kRun = "run";
inline constexpr std::string_view kSave = "save";
inline constexpr std::string_view kWatch = "watch";
inline constexpr std::string_view kCheck = "check";
inline constexpr std::string_view kEvaluate = "evaluate";
inline constexpr std::string_view kFinish = "finish";
inline constexpr std::string_view kStop = "stop";
inline constexpr std::string_view kAbort = "abort";
// Between node daemons and the coordinator.
inline constexpr std::string_view kStart = "start";
inline constexpr std::string_view kStarted = "started";
inline constexpr std::string_view kIdentity = "identity";
inline constexpr std::string_view kCompare = "compare";
inline constexpr std::string_view kNotice = "notice";
inline constexpr std::string_view kAlive = "alive";
inline constexpr std::string_view kEnded = "ended";
inline constexpr std::string_view kClock = "clock";
inline constexpr std::string_view kTrace = "trace";
inline constexpr std::string_view kKill = "kill";
inline constexpr std::string_view kLeave = "leave";
inline constexpr std::string_view kRest = "rest";
inline constexpr std::string_view kRested = "rested";
inline constexpr std::string_view kEnding = "ending";
inline constexpr std::string_view kLeaving = "leaving";
inline constexpr std::string_view kBye = "bye";
// Of the connections between hosts (runtime/rendezvous/host_wire.h).
inline constexpr std::string_view kWire = "wire";
inline constexpr std::string_view kWires = "wires";
inline constexpr std::string_view kWired = "wired";
inline constexpr std::string_view kConnect = "connect";
// Of checkpoints on disks of several hosts (runtime/disks/node_disk.h).
inline constexpr std::string_view kManifest = "manifest";
inline constexpr std::string_view kDisk = "disk";
inline constexpr std::string_view kWant = "want";
inline constexpr std::string_view kPiece = "piece";
inline constexpr std::string_view kKept = "kept";
inline constexpr std::string_view kDrop = "drop";
// Of batches that come through a pipe (runtime/feed/batch_pieces.h).
inline constexpr std::string_view kBatch = "batch";
inline constexpr std::string_view kTook = "took";
}  // namespace control

// A worker to its coordinator.
const ControlSchema& workerMessages();
// The coordinator to a worker.
const ControlSchema& workerCommands();
// A node daemon to its coordinator; the conversation is drawn in runtime/job/node_placement.cc.
const ControlSchema& nodeMessages();
// The coordinator to a node daemon.
const ControlSchema& nodeCommands();

}  // namespace pipeshard
