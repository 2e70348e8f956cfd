// Workers on nodes that have joined: what the coordinator says to node daemons, and what it makes of their
// answers.
//
//   node                                 coordinator
//   REGISTER {host, pid, index?}        ──►  (waits until all have come)
//                                       ◄──  start {ranks, threads, directory, arguments, towards, saves,
//                                       disk?,
//                                                   steps_done?}
//                                       ◄──  batch {...}    (with a pipe: runtime/feed/batch_pieces.h)
//   took {}                             ──►
//   disk {shared} ...                   ──►  (with checkpoints: runtime/disks/ has what follows of it)
//   identity {files}                    ──►  (digests of what its ranks are to read)
//                                       ◄──  compare {ranks, threads, directory, arguments}  (to a spare,
//                                            once in an attempt, when all ranks are started; it answers
//                                            identity or error, and starts nothing)
//   wire {endpoint, key}                ──►  (of its relay, where several hosts have ranks)
//                                       ◄──  wires {hosts}  (all of them, when all have come)
//   wired {}                            ──►  (its relay lets them in)
//                                       ◄──  connect {}  (when all do)
//   notice {message}                    ──►  (strangers at its relay)
//   unreached {peers}                   ──►  (what of this concerns relays: runtime/rendezvous/host_wire.h)
//   started {pids}                      ──►
//   alive {states?} twice a second      ──►  (of workers that look as if they did not run)
//                                       ◄──  alive {} twice a second
//   ended {rank, description}           ──►
//   error {code, message}               ──►  (it cannot start its workers)
//                                       ◄──  clock {asked}  (when its trace is wanted: some times before
//                                                            and some times after the job)
//   clock {asked, now}                  ──►
//                                       ◄──  trace {}       (when all workers have ended)
//   trace {rank, offset, total, bytes}  ──►  (pieces of what each rank has recorded)
//                                       ◄──  leave {}, then rest {message} where the job is started again
//                                            (the pool's, which outlives this conversation), else kill {} and
//                                            stop {code, message}
//   rested {}                           ──►
//   ending {signal}                     ──►  (it was asked to end, and the job keeps checkpoints)
//   bye {}                              ──►  (a socket that was closed before would lose what it had not
//                                             delivered yet)
//
// Internal to the coordinator.
#pragma once

#include <memory>
#include <optional>

#include "runtime/feed/loader_feed.h"
#include "runtime/job/job.h"
#include "runtime/job/worker_group.h"
#include "runtime/job/worker_placement.h"

namespace pipeshard {

// On the nodes of spec.nodes, as spec.node_of_rank says. `workers.ranks` is filled in per node.
// `checkpoints`: nothing where the job keeps none. `feed`: of a job whose data come through a pipe, else
// nullptr; it outlives the placement.
std::unique_ptr<WorkerPlacement> placeOnNodes(const JobSpec& spec, WorkerGroupSpec workers,
                                              const JobProgressCallback& progress,
                                              const std::optional<CheckpointPlace>& checkpoints,
                                              const LoaderFeed* feed);

}  // namespace pipeshard
