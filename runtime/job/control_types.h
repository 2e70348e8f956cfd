// What the processes of a job say to each other: the fields of every control message, checked on arrival
// (transport/control/control_schema.h). A registered process that sends what is not in the receiver's table
// is named as a fault of the job (kFault); strangers are counted. A new field or type begins here.
#pragma once

#include "transport/control/control_schema.h"

namespace pipeshard {

// A worker to its coordinator.
const ControlSchema& workerMessages();
// The coordinator to a worker.
const ControlSchema& workerCommands();
// A node daemon to its coordinator; the conversation is drawn in runtime/job/node_placement.cc.
const ControlSchema& nodeMessages();
// The coordinator to a node daemon.
const ControlSchema& nodeCommands();

}  // namespace pipeshard
