#include "runtime/messages/control_types.h"

#include "transport/control/control_message.h"

namespace pipeshard {
namespace {

using enum ControlType;

// "store" goes both ways: what a worker leaves for the others, its address in hexadecimal.
const ControlForm kStoreForm{control::kStore, {{"key", kString}, {"value", kString}}};
// `is_cause`: whether it is no consequence of another's error; else the code says it.
const ControlForm kErrorForm{control::kError,
                             {{"code", kInt}, {"message", kString}, {"is_cause", kBoolean, kOptional}}};
// Of files of checkpoints, between hosts (runtime/disks/). `for`: the node that asks, where the coordinator
// hands it on.
const ControlForm kWantForm{control::kWant,
                            {{"directory", kString},
                             {"job", kString},
                             {"file", kString},
                             {"offset", kCount},
                             {"again", kBoolean, kOptional},
                             {"for", kIntCount, kOptional}}};
const ControlForm kPieceForm{control::kPiece,
                             {{"file", kString},
                              {"offset", kCount},
                              {"total", kCount},
                              {"error", kString, kOptional},
                              {"for", kIntCount, kOptional}},
                             ControlPayload::kAllowed};

}  // namespace

const ControlSchema& workerMessages() {
  static const std::vector<ControlField> memory{{"parameters", kCount}, {"states", kCount},
                                                {"gradients", kCount},  {"activations", kCount},
                                                {"workspace", kCount},  {"padding", kCount}};
  static const ControlSchema schema{
      // Of nodes too: they say where they are, which number in the cluster they want, and how many devices
      // they have, and the public key that their workers are known by. A worker says for which attempt to run
      // the job it was started.
      {kRegister,
       {{"pid", kIntCount},
        {"build", kObject, kOptional},
        {"host", kString, kOptional},
        {"index", kIntCount, kOptional},
        {"devices", kIntCount, kOptional},
        {"attempt", kIntCount, kOptional},
        {"key", kString, kOptional}}},
      {control::kHeartbeat,
       {{"where", kString},
        {"progress", kCount},
        {"computing", kBoolean},
        {"waiting", kBoolean},
        {"idle", kBoolean}}},
      kStoreForm,
      // Of nodes too: other nodes that have said where they are and do not answer there; of a worker, ranks.
      // What was said before does not count any more.
      {control::kUnreached,
       {{"peers", kArray, 0, {{"", kObject, 0, {{"number", kIntCount}, {"address", kString}}}}}}},
      {control::kLoaded,
       {{"programs", kString},
        {"arena_bytes", kCount},
        {"constant_bytes", kCount},
        {"communicator_bytes", kCount},
        {"device", kString, kOptional},
        {"transport", kString, kOptional},
        {"module", kObject, kOptional},   // of the device: its build
        {"library", kString, kOptional},  // likewise: what all ranks must have alike
        {"memory", kObject, 0, memory}}},
      // The loss is null when it is not finite.
      {control::kStep,
       {{"step", kCount},
        {"seconds", kNumber},
        {"compute_seconds", kNumber},
        {"transfer_seconds", kNumber},
        {"loss", kNumber, kOptional | kNullable},
        {"losses", kArray, kOptional, {{"", kNumber, kNullable}}},
        {"not_finite", kString, kOptional},
        {"last_batch", kBoolean, kOptional},  // StepSize's, unless it is false
        {"length", kCount, kOptional},        // likewise, unless it is 0
        {"measures",
         kArray,
         kOptional,
         {{"", kObject, 0, {{"name", kString}, {"value", kNumber, kNullable}}}}},
        {"resident_bytes", kCount, kOptional},
        {"dump", kString, kOptional}}},
      // Batches of held-out data up to `last`; their losses, weighted and summed, from the rank that has
      // them.
      {control::kEvaluated,
       {{"last", kCount},
        {"losses", kNumber, kOptional | kNullable},
        {"weight", kNumber, kOptional | kNullable}}},
      // What the rank's parts of parameters and states hash to, by part.
      {control::kHashes, {{"step", kCount}, {"parts", kArray, 0, {{"", kString}}}, {"last", kBoolean}}},
      // A rank's part of a checkpoint is on disk, or cannot be written.
      {control::kSaved,
       {{"step", kCount},
        {"file", kString},
        {"bytes", kCount},
        {"hash", kString},
        {"error", kString, kOptional},
        {"not_finite", kBoolean, kOptional}}},
      // Times of a rank's operators, in parts; "finished" follows the last one.
      {control::kOperators,
       {{"steps", kCount},
        {"seconds", kNumber},
        {"flops", kNumber},
        {"bytes", kNumber},
        {"nodes",
         kArray,
         0,
         {{"",
           kObject,
           0,
           {{"subgraph", kIntCount}, {"node", kCount}, {"runs", kCount}, {"seconds", kNumber}}}}}}},
      {control::kFinished, {{"peak_resident_bytes", kCount}, {"peak_device_bytes", kCount, kOptional}}},
      kErrorForm};
  return schema;
}

const ControlSchema& workerCommands() {
  static const ControlSchema schema{
      {control::kRun, {{"first", kCount}, {"last", kCount}}},
      // The rank's share (SaveShares), of some buffers so many rows; `last`: no step follows that could be
      // held up
      {control::kSave,
       {{"step", kCount},
        {"folder", kString},
        {"buffers",
         kArray,
         0,
         {{"",
           kObject,
           0,
           {{"buffer", kIntCount}, {"first", kCount, kOptional}, {"count", kCount, kOptional}}}}},
        {"last", kBoolean}}},
      // before the first step, where what ranks keep is to stay finite: CheckpointWriter::watch; `at_end`:
      // they look at it behind the last step, as nothing is saved
      {control::kWatch, {{"at_end", kBoolean}}},
      {control::kCheck, {{"step", kCount}}},
      {control::kEvaluate, {{"first", kCount}, {"last", kCount}}},
      {control::kFinish, {}},
      kStoreForm,
      {control::kStop, {}},
      {control::kAbort, {}}};
  return schema;
}

const ControlSchema& nodeMessages() {
  static const ControlSchema schema{
      // What it has read for its ranks (runtime/identity/job_identity.h), before it starts them; of a spare,
      // for
      // those of "compare".
      {control::kIdentity, {{"files", kArray}}},
      // Where its relay listens, and the key by which others know it.
      {control::kWire, {{"endpoint", kString}, {"key", kString}}},
      {control::kWired, {}},
      {control::kNotice, {{"message", kString}}},
      {control::kStarted, {{"pids", kArray, 0, {{"", kIntCount}}}}},
      // Of workers that look as if they did not run.
      {control::kAlive,
       {{"states", kArray, kOptional, {{"", kObject, 0, {{"rank", kIntCount}, {"state", kString}}}}}}},
      {control::kEnded, {{"rank", kIntCount}, {"description", kString}, {"code", kInt}}},
      {control::kClock, {{"asked", kInteger}, {"now", kInteger}}},
      // A piece of what a rank has recorded; the last one reaches `total`.
      {control::kTrace,
       {{"rank", kIntCount}, {"offset", kCount}, {"total", kCount}},
       ControlPayload::kAllowed},
      {control::kRested, {}},
      // Whether it sees the coordinator's folder of checkpoints; that it has committed one on its own disk.
      {control::kDisk, {{"shared", kBoolean}}},
      {control::kTook, {}},
      {control::kKept, {{"step", kCount}, {"error", kString, kOptional}}},
      kWantForm,
      kPieceForm,
      {control::kEnding, {{"signal", kIntCount}}},
      {control::kBye, {}},
      {control::kLeaving, {{"message", kString}}}};
  return schema;
}

const ControlSchema& nodeCommands() {
  static const ControlSchema schema{
      {control::kStart,
       {{"ranks", kArray, 0, {{"", kIntCount}}},
        {"threads", kIntCount},
        {"directory", kString},
        {"towards", kString},
        {"saves", kBoolean, kOptional},
        {"steps_done", kCount, kOptional},  // data come as "batch"
        {"disk",
         kObject,
         kOptional,
         {{"folder", kString}, {"probe", kString}, {"job", kString}, {"keep", kIntCount}}},
        {"arguments", kArray, 0, {{"", kString}}}}},
      // To a spare: what would it read for these ranks? Nothing is started.
      {control::kCompare,
       {{"ranks", kArray, 0, {{"", kIntCount}}},
        {"threads", kIntCount},
        {"directory", kString},
        {"arguments", kArray, 0, {{"", kString}}}}},
      {control::kWires,
       {{"hosts",
         kArray,
         0,
         {{"", kObject, 0, {{"host", kIntCount}, {"endpoint", kString}, {"key", kString}}}}}}},
      // How long the job waits for who does not answer, in milliseconds.
      {control::kAlive, {{"patience", kIntCount}}},
      // A piece of a checkpoint's manifest; that there is no checkpoint of a step.
      {control::kManifest, {{"offset", kCount}, {"total", kCount}, {"text", kString}, {"resumed", kBoolean}}},
      {control::kDrop, {{"step", kCount}}},
      // A piece of an input's batch (runtime/feed/); the step's last one.
      {control::kBatch,
       {{"step", kCount}, {"input", kCount}, {"offset", kCount}, {"length", kCount}, {"last", kBoolean}},
       ControlPayload::kAllowed},
      kWantForm,
      kPieceForm,
      {control::kClock, {{"asked", kInteger}}},
      {control::kTrace, {}},
      {control::kConnect, {}},
      {control::kKill, {}},
      {control::kLeave, {}},
      {control::kRest, {{"message", kString}}},
      {control::kStop, {{"code", kInt}, {"message", kString}}}};
  return schema;
}

}  // namespace pipeshard
