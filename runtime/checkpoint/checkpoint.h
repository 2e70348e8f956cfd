// A checkpoint: what a job leaves on disk so that it, or any other plan of the same model, can go on from
// there.
//
//   DIR/step-000120/               whole: it has COMMIT
//     rank-0003.safetensors        what rank 3 holds of it (rank_state.h)
//     plan.json, weights.json      of the plan directory: which model this is, and what its files were
//     manifest.json                a Checkpoint: step, files, tensors, which file has which part
//     COMMIT                       the hash of manifest.json; written last
//   DIR/step-000140.partial-4f2a/  being written by job 4f2a, or left by it when it died
//   DIR/LATEST                     name of the newest one, for people and scripts; nothing here reads it
//   DIR/lock                       held by the job that writes here
//
// On several hosts DIR is one folder that all of them see, or one on each host's own disk. Then each disk has
// the files of the ranks that ran there, with a copy of the manifest, which says which host has what.
//
// Random numbers and the place in the data are functions of seed and step, so the two are all that is kept of
// them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/files/joined_tensors.h"

namespace pipeshard {

inline constexpr int kCheckpointVersion = 1;
inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kCommitFile = "COMMIT";
// What names of tensors begin with.
inline constexpr std::string_view kParameterPrefix = "parameter/";
inline constexpr std::string_view kStatePrefix = "state/";
inline constexpr std::string_view kForwardStatePrefix = "forward_state/";

struct CheckpointFile {
  std::string name;  // in the checkpoint's folder
  int64_t bytes = 0;
  uint64_t hash = 0;  // XXH3 of all bytes
  // On whose disk it is, where hosts have written on disks of their own; "": all is in one folder.
  std::string host = {};
  friend bool operator==(const CheckpointFile&, const CheckpointFile&) = default;
};

struct CheckpointSlice {
  int file = 0;  // index into Checkpoint::files
  Shape start;   // in the whole tensor
  Shape shape;   // of the part
  friend bool operator==(const CheckpointSlice&, const CheckpointSlice&) = default;
};

struct CheckpointTensor {
  std::string name;  // "parameter/wte", "state/wte.first_moment", "forward_state/bn.running_mean"
  DataType data_type = DataType::kUndefined;
  Shape shape;
  std::vector<CheckpointSlice> slices;  // every element once
  friend bool operator==(const CheckpointTensor&, const CheckpointTensor&) = default;
};

// What a step takes and does. The place in the data and the learning rate follow from the steps that are done
// and from this.
//   a batch of 8, a window of 4 updates: {32, 4}
struct StepExtent {
  int64_t examples = 0;  // rows of the whole batch; 0: inputs have none
  int64_t updates = 1;
  friend bool operator==(const StepExtent&, const StepExtent&) = default;
};

struct Checkpoint {
  std::string directory;  // not in the file
  int64_t step = 0;       // done
  std::string job;        // that wrote it
  std::string plan;       // hash of its plan.json: to tell, never to refuse (another plan may load it)
  std::string data;       // path; "": synthetic
  uint64_t seed = 0;
  std::optional<StepExtent> extent = {};  // of the plan's steps; nothing: an older pipeshard wrote it
  std::vector<CheckpointFile> files;      // by rank
  std::vector<CheckpointTensor> tensors;
  // Not in the file: those of `files` that are on another host's disk, and not in `directory`; ascending.
  std::vector<int> elsewhere = {};
};

std::string checkpointToJson(const Checkpoint& checkpoint);
// The same without hosts: equal of two copies of one checkpoint, whatever they say of where its files are.
std::string manifestWithoutHosts(Checkpoint checkpoint);
// Whether it says that all of it is in one folder.
bool isInOneFolder(const Checkpoint& checkpoint);
// Error(kNoGoodCheckpoint) naming the field; Error(kVersionMismatch).
Checkpoint checkpointFromJson(std::string_view text);

// "step-000120".
std::string checkpointName(int64_t step);
std::optional<int64_t> stepOfCheckpoint(std::string_view name);  // nothing for any other name
// "rank-0003.safetensors".
std::string checkpointFileName(RankId rank);

// The whole checkpoints of a folder, newest first; also that of the folder itself, where it is one. Those
// that are being written are not listed. Error(kMissingInput) when there is no such folder.
std::vector<std::string> listCheckpoints(const std::string& folder);
// The first of them; "" where there is none, or no such folder.
std::string newestCheckpoint(const std::string& folder);
// Whether the folder is one checkpoint, and no folder of them.
bool isCheckpoint(const std::string& folder);
// Folders that are named as checkpoints and have a manifest, and no COMMIT: copies that were cut off. Newest
// first; also the folder itself, where it is one. None where there is no such folder.
std::vector<std::string> listDamaged(const std::string& folder);
// What people are told of one.
std::string describeDamaged(const std::string& directory);
// Reads the manifest, and checks COMMIT and the sizes of the files that are here. Error(kNoGoodCheckpoint)
// naming what is wrong.
Checkpoint readCheckpoint(const std::string& directory);
// The same without a look at the files: `elsewhere` is empty.
Checkpoint readManifest(const std::string& directory);
// What is wrong with a file's size ("rank-0000.safetensors has 10 bytes, it was written with 400"), or that
// it cannot be looked at; "" if it is right. Of a file that is not there: nothing.
std::optional<std::string> faultOfSize(const Checkpoint& checkpoint, int index);
// The same of its content, of which every byte is read. `stop`: as contentHashOfFile.
std::string faultOfContent(const Checkpoint& checkpoint, int index, const std::atomic<bool>* stop = nullptr);
// "NAME has the hash ..., it was written with ...; the disk or somebody has changed it".
std::string describeHash(const CheckpointFile& file, uint64_t found);
// Reads every file that is here and compares its hash. Error(kNoGoodCheckpoint) naming the file, expected and
// found. `done`: told after each file, and asked by throwing to stop.
void verifyCheckpoint(const Checkpoint& checkpoint, const std::function<void(size_t files)>& done = {});
// Looks at what `export` reads beside the tensors, and no job does: plan.json is the one that the manifest
// has the hash of, and weights.json, where there is one, can be read. Error(kNoGoodCheckpoint) naming the
// file.
void verifyPlanFiles(const Checkpoint& checkpoint);
// The newest one that can be read and verified, of a step before `before`; what is wrong with newer ones goes
// to `notice`, with whatever listDamaged finds. Nothing if the folder holds none, or does not exist.
// Error(kNoGoodCheckpoint) if it has some, and none is good.
std::optional<Checkpoint> newestGoodCheckpoint(const std::string& folder,
                                               const std::function<void(const std::string&)>& notice,
                                               int64_t before = std::numeric_limits<int64_t>::max());

// Of these of its files, which are on other hosts' disks: where they are, and the command that copies them.
std::string describeElsewhere(const Checkpoint& checkpoint, const std::vector<int>& files);

// All that it holds. Errors as JoinedTensors::open; kMissingInput where some of it is elsewhere.
JoinedTensors openTensors(const Checkpoint& checkpoint);
// What the manifest says of them.
std::vector<CheckpointTensor> describeTensors(const JoinedTensors& tensors);

}  // namespace pipeshard
