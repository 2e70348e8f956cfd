// Options of the commands that run a job, for running it on nodes that join.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "ir/base/error.h"
#include "ir/plan/plan.h"
#include "runtime/job/child_process.h"
#include "runtime/job/job.h"
#include "runtime/job/node_pool.h"

namespace pipeshard {

struct ListenOptions {
  std::string listen;  // "": the job runs on this machine
  DataPlane data_plane = DataPlane::kCurve;
  int launched_nodes = 0;  // how many daemons a launcher has started; 0: not known
  NodePoolOptions pool;
};

// --listen, --advertise, --key-file, --insecure, --data-plane, --node-timeout, --patience.
void addListenOptions(CLI::App& command, ListenOptions& options);

// Error(kUsage) for those that are given without --listen.
void refuseListenOptionsInVain(const CLI::App& command, const ListenOptions& options);

// With --listen: listens, says on standard error what to start on the hosts, and has `job` use it; nullptr
// without. Ranks are placed as the plan's cluster says: each node has as many as the cluster has devices
// there. `takes_spares`: more nodes may join than the cluster has, to take the place of one that is lost.
// job.signals is set, where it listens: no signal may end the command before the key file is removed.
std::unique_ptr<NodePool> listenForNodes(const ListenOptions& options, const Cluster& cluster, JobSpec& job,
                                         bool takes_spares = false);

// Behind the end of a command that was told to listen: where nodes may still come (it refused before it
// listened, or had nothing to do), they are told its exit code and why, for a short while. `pool`: as
// listenForNodes gave it; nullptr: it was not called, or refused. `signals`: made where there is none yet;
// one that comes ends the telling (but SIGPIPE). Gives up without a word where it cannot listen, or the key
// file may be another job's.
void tellNodesOfEnd(const ListenOptions& options, std::unique_ptr<NodePool> pool,
                    std::optional<SignalWatch>& signals, int exit_code, const std::string& why);

// A command (its whole run) with tellNodesOfEnd behind it, if --listen is given. Of a signal that ends it,
// nodes that have not come are not told. `report`: says an error that ends it, and returns the exit code; it
// is called before nodes are told, as that takes its time. `signals`: the command's watch, from before it
// listens; it outlives the pool.
int runWithNodes(const ListenOptions& options, std::optional<SignalWatch>& signals,
                 std::unique_ptr<NodePool>& pool, const std::function<int()>& command,
                 const std::function<int(const Error&)>& report);

// A line on standard error for every node that joins, for every rank that computes on a GPU: which one, and
// for notices.
void showNodes(const JobProgress& event);

}  // namespace pipeshard
