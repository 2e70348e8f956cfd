// The messages between the coordinator and its workers, as the table that transport/control checks in both directions.
// Whoever adds a message or a field adds it here first: the transport drops what is not in the table and reports its sender.
#pragma once

#include "transport/control.h"

namespace pipeshard {

// From workers to the coordinator.
inline ControlSchema workerMessages() {
  using enum ControlType;
  return {
      {kRegister, {{"pid", kCount}}},
      // Where the worker is, in words; every second.
      {"heartbeat", {{"where", kString}}},
      {"loaded",
       {{"arena_bytes", kCount},
        {"constant_bytes", kCount},
        {"memory",
         kObject,
         0,
         {{"parameters", kCount},
          {"states", kCount},
          {"gradients", kCount},
          {"activations", kCount},
          {"workspace", kCount},
          {"padding", kCount}}}}},
      // One step is done. `loss` only from ranks that have one, null when it is not finite; `dump` is the path of a file.
      {"step",
       {{"step", kCount},
        {"seconds", kNumber},
        {"compute_seconds", kNumber},
        {"transfer_seconds", kNumber},
        {"loss", kNumber, kOptional | kNullable},
        {"dump", kString, kOptional}}},
      {"finished", {{"peak_resident_bytes", kCount}}},
      {"error", {{"code", kInteger}, {"message", kString}}},
  };
}

// From the coordinator to workers.
inline ControlSchema coordinatorMessages() {
  using enum ControlType;
  return {{"run", {{"first", kCount}, {"last", kCount}}}, {"stop", {}}};
}

}  // namespace pipeshard
