#include "runtime/job/control_types.h"

#include "transport/control/control_message.h"

namespace pipeshard {
namespace {

using enum ControlType;

// "store" goes both ways: what a worker leaves for the others, its address in hexadecimal.
const ControlForm kStore{"store", {{"key", kString}, {"value", kString}}};
const ControlForm kError{"error", {{"code", kInteger}, {"message", kString}}};

}  // namespace

const ControlSchema& workerMessages() {
  static const std::vector<ControlField> memory{{"parameters", kCount}, {"states", kCount},
                                                {"gradients", kCount},  {"activations", kCount},
                                                {"workspace", kCount},  {"padding", kCount}};
  static const ControlSchema schema{
      // Of nodes too: they say where they are, and which place in the cluster they want.
      {kRegister, {{"pid", kCount}, {"host", kString, kOptional}, {"index", kCount, kOptional}}},
      {"heartbeat", {{"where", kString}, {"progress", kCount}, {"computing", kBoolean}}},
      kStore,
      {"loaded",
       {{"arena_bytes", kCount},
        {"constant_bytes", kCount},
        {"communicator_bytes", kCount},
        {"memory", kObject, 0, memory}}},
      // The loss is null when it is not finite.
      {"step",
       {{"step", kCount},
        {"seconds", kNumber},
        {"compute_seconds", kNumber},
        {"transfer_seconds", kNumber},
        {"loss", kNumber, kOptional | kNullable},
        {"losses", kArray, kOptional, {{"", kNumber, kNullable}}},
        {"dump", kString, kOptional}}},
      // A rank's part of a checkpoint is on disk, or cannot be written.
      {"saved",
       {{"step", kCount},
        {"file", kString},
        {"bytes", kCount},
        {"hash", kString},
        {"error", kString, kOptional}}},
      {"finished", {{"peak_resident_bytes", kCount}}},
      kError};
  return schema;
}

const ControlSchema& workerCommands() {
  static const ControlSchema schema{{"run", {{"first", kCount}, {"last", kCount}}},
                                    {"save", {{"step", kCount}, {"folder", kString}}},
                                    {"finish", {}},
                                    kStore,
                                    {"stop", {}},
                                    {"abort", {}}};
  return schema;
}

const ControlSchema& nodeMessages() {
  static const ControlSchema schema{
      {"started", {{"pids", kArray, 0, {{"", kCount}}}}},
      {"alive", {}},
      {"ended", {{"rank", kCount}, {"description", kString}}},
      {"clock", {{"asked", kInteger}, {"now", kInteger}}},
      // A piece of what a rank has recorded, in hexadecimal; the last one reaches `total`.
      {"trace", {{"rank", kCount}, {"offset", kCount}, {"total", kCount}, {"bytes", kString}}},
      {"bye", {}},
      {"leaving", {{"message", kString}}}};
  return schema;
}

const ControlSchema& nodeCommands() {
  static const ControlSchema schema{{"start",
                                     {{"ranks", kArray, 0, {{"", kCount}}},
                                      {"threads", kCount},
                                      {"directory", kString},
                                      {"towards", kString},
                                      {"arguments", kArray, 0, {{"", kString}}}}},
                                    {"alive", {}},
                                    {"clock", {{"asked", kInteger}}},
                                    {"trace", {}},
                                    {"kill", {}},
                                    {"stop", {{"code", kInteger}, {"message", kString}}}};
  return schema;
}

}  // namespace pipeshard
