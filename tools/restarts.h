// What `run --restarts` prepares before it begins.
#pragma once

#include <string>

#include "runtime/recovery/restarts.h"

namespace pipeshard {

// `on_nodes`: nodes may be lost, so plans for fewer devices are made where they are not there yet
// (planning/fewer/fewer_plans.h); a line says for how many devices there is one, and why not for others.
// `checkpoints`: the run's folder of them. Errors: JobInterrupted.
RestartOptions prepareRestarts(int restarts, const std::string& directory, const std::string& checkpoints,
                               bool on_nodes);

}  // namespace pipeshard
