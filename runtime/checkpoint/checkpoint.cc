#include "runtime/checkpoint/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/json_reader.h"
#include "ir/base/text_file.h"
#include "runtime/files/content_hash.h"
#include "runtime/files/weight_check.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;
Json toJson(const CheckpointTensor& tensor) {
  Json slices = Json::array();
  for (const CheckpointSlice& slice : tensor.slices)
    slices.push_back({{"file", slice.file}, {"start", slice.start}, {"shape", slice.shape}});
  return {{"name", tensor.name},
          {"type", dataTypeName(tensor.data_type)},
          {"shape", tensor.shape},
          {"slices", std::move(slices)}};
}

CheckpointFile fileFromJson(const JsonReader& json) {
  json.expectObject({"name", "bytes", "xxh3"}, {"host"});
  const std::string name = json.at("name").string(), hash = json.at("xxh3").string();
  const std::optional<uint64_t> number = hashFromText(hash);
  if (name.empty() || name.find('/') != std::string::npos)
    fail(ErrorCode::kNoGoodCheckpoint, "'{}' is no file of the checkpoint's own folder", name);
  if (!number)
    fail(ErrorCode::kNoGoodCheckpoint, "'{}' of {} is no hash of 16 hexadecimal digits", hash, name);
  return {name, json.at("bytes").integer(0, INT64_MAX), *number,
          json.has("host") ? json.at("host").string() : ""};
}

CheckpointTensor tensorFromJson(const JsonReader& json, size_t files) {
  json.expectObject({"name", "type", "shape", "slices"});
  CheckpointTensor tensor{json.at("name").string(), json.at("type").dataType(), json.at("shape").shape(), {}};
  for (const JsonReader& slice : json.at("slices").elements()) {
    slice.expectObject({"file", "start", "shape"});
    const int64_t file = slice.at("file").integer(0, INT32_MAX);
    if (static_cast<size_t>(file) >= files)
      fail(ErrorCode::kNoGoodCheckpoint, "'{}' is in file {} of {}", tensor.name, file, files);
    tensor.slices.push_back({static_cast<int>(file), slice.at("start").shape(), slice.at("shape").shape()});
  }
  return tensor;
}

bool isWhole(const fs::path& directory) { return fs::exists(directory / kCommitFile); }

bool isDamaged(const fs::path& directory) {
  const std::string name =
      (directory.has_filename() ? directory : directory.parent_path()).filename().string();
  const std::optional<int64_t> step = stepOfCheckpoint(name);
  if (!step || name != checkpointName(*step) || !fs::is_directory(directory) || isWhole(directory))
    return false;
  try {
    return checkpointFromJson(requireTextFile((directory / kManifestFile).string())).step == *step;
  } catch (const Error&) {
    return false;  // somebody else's
  }
}

// Whatever of the folder `which` takes, newest first; or the folder itself.
std::vector<std::string> listWhere(const std::string& folder, bool (*which)(const fs::path&)) {
  if (which(folder)) return {folder};
  std::vector<std::pair<int64_t, std::string>> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::optional<int64_t> step = stepOfCheckpoint(entry.path().filename().string());
    if (step && entry.is_directory() && which(entry.path())) found.emplace_back(*step, entry.path().string());
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> directories;
  for (auto& [step, path] : found) directories.push_back(std::move(path));
  return directories;
}

[[noreturn]] void notGood(const std::string& directory, const std::string& what) {
  fail(ErrorCode::kNoGoodCheckpoint, "checkpoint {}: {}", directory, what);
}

}  // namespace

std::string checkpointToJson(const Checkpoint& checkpoint) {
  Json document = {{"version", kCheckpointVersion}, {"step", checkpoint.step}, {"job", checkpoint.job},
                   {"plan", checkpoint.plan},       {"data", checkpoint.data}, {"seed", checkpoint.seed},
                   {"files", Json::array()},        {"tensors", Json::array()}};
  if (checkpoint.extent) {
    document["examples_per_step"] = checkpoint.extent->examples;
    document["updates_per_step"] = checkpoint.extent->updates;
  }
  for (const CheckpointFile& file : checkpoint.files) {
    Json entry = {{"name", file.name}, {"bytes", file.bytes}, {"xxh3", hashText(file.hash)}};
    if (!file.host.empty()) entry["host"] = file.host;
    document["files"].push_back(std::move(entry));
  }
  for (const CheckpointTensor& tensor : checkpoint.tensors) document["tensors"].push_back(toJson(tensor));
  return document.dump(1) + "\n";
}

std::string manifestWithoutHosts(Checkpoint checkpoint) {
  for (CheckpointFile& file : checkpoint.files) file.host.clear();
  return checkpointToJson(checkpoint);
}

bool isInOneFolder(const Checkpoint& checkpoint) {
  return std::ranges::all_of(checkpoint.files, &std::string::empty, &CheckpointFile::host);
}

Checkpoint checkpointFromJson(std::string_view text) {
  try {
    const Json document = parseJson(text, "manifest.json");
    checkJsonVersion(document, "manifest.json", kCheckpointVersion, "use the pipeshard that wrote it");
    const JsonReader json(document, "manifest.json");
    json.expectObject({"version", "step", "job", "plan", "data", "seed", "files", "tensors"},
                      {"examples_per_step", "updates_per_step"});
    Checkpoint checkpoint;
    checkpoint.step = json.at("step").integer(0, INT64_MAX);
    checkpoint.job = json.at("job").string();
    checkpoint.plan = json.at("plan").string();
    checkpoint.data = json.at("data").string();
    if (!document["seed"].is_number_unsigned()) json.at("seed").failExpected("an integer of at least 0");
    checkpoint.seed = document["seed"].get<uint64_t>();
    if (json.has("examples_per_step") || json.has("updates_per_step")) {
      checkpoint.extent = StepExtent{json.at("examples_per_step").integer(0, INT64_MAX),
                                     json.at("updates_per_step").integer(1, INT64_MAX)};
    }
    for (const JsonReader& file : json.at("files").elements()) checkpoint.files.push_back(fileFromJson(file));
    for (const JsonReader& tensor : json.at("tensors").elements())
      checkpoint.tensors.push_back(tensorFromJson(tensor, checkpoint.files.size()));
    return checkpoint;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfiguration) throw;
    fail(ErrorCode::kNoGoodCheckpoint, "the manifest is damaged: {}", error.message());
  }
}

std::string checkpointName(int64_t step) { return fmt::format("step-{:06}", step); }

std::optional<int64_t> stepOfCheckpoint(std::string_view name) {
  constexpr std::string_view kStart = "step-";
  if (!name.starts_with(kStart)) return std::nullopt;
  name.remove_prefix(kStart.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

std::string checkpointFileName(RankId rank) { return fmt::format("rank-{:04}.safetensors", rank.index()); }

std::vector<std::string> listCheckpoints(const std::string& folder) {
  if (!fs::is_directory(folder))
    fail(
        ErrorCode::kMissingInput,
        "there is no folder '{}'; checkpoints are in the folder that `pipeshard run --checkpoint DIR` writes",
        folder);
  return listWhere(folder, isWhole);
}

std::string newestCheckpoint(const std::string& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) return "";
  const std::vector<std::string> found = listCheckpoints(folder);
  return found.empty() ? "" : found.front();
}

bool isCheckpoint(const std::string& folder) { return isWhole(folder) || isDamaged(folder); }

std::vector<std::string> listDamaged(const std::string& folder) {
  if (!fs::is_directory(folder)) return {};
  return listWhere(folder, isDamaged);
}

std::string describeDamaged(const std::string& directory) {
  return fmt::format(
      "checkpoint {} is not whole: it has no {}, which is written last; was a copy of it cut off? Copy it "
      "again; it stays as it is until its step is saved again",
      directory, kCommitFile);
}

Checkpoint readManifest(const std::string& directory) {
  const fs::path path(directory);
  Checkpoint checkpoint;
  try {
    const std::string manifest = requireTextFile((path / kManifestFile).string());
    std::string commit = requireTextFile((path / kCommitFile).string());
    commit.erase(commit.find_last_not_of(" \n") + 1);
    const std::string found = hashText(contentHash(manifest));
    if (commit != found) {
      fail(ErrorCode::kNoGoodCheckpoint, "{} has the hash {}, {} says {}", kManifestFile, found, kCommitFile,
           commit);
    }
    checkpoint = checkpointFromJson(manifest);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kVersionMismatch) throw;
    notGood(directory, error.message());
  }
  checkpoint.directory = directory;
  return checkpoint;
}

std::optional<std::string> faultOfSize(const Checkpoint& checkpoint, int index) {
  const CheckpointFile& file = checkpoint.files.at(index);
  std::error_code error;
  const auto bytes = fs::file_size(fs::path(checkpoint.directory) / file.name, error);
  if (error == std::errc::no_such_file_or_directory) return std::nullopt;
  if (error) return fmt::format("{}: {}", file.name, error.message());
  if (bytes == static_cast<uint64_t>(file.bytes)) return "";
  return fmt::format("{} has {} bytes, it was written with {}", file.name, bytes, file.bytes);
}

std::string describeHash(const CheckpointFile& file, uint64_t found) {
  return fmt::format("{} has the hash {}, it was written with {}; the disk or somebody has changed it",
                     file.name, hashText(found), hashText(file.hash));
}

std::string faultOfContent(const Checkpoint& checkpoint, int index, const std::atomic<bool>* stop) {
  const CheckpointFile& file = checkpoint.files.at(index);
  const uint64_t found = contentHashOfFile((fs::path(checkpoint.directory) / file.name).string(), stop);
  return found == file.hash ? "" : describeHash(file, found);
}

Checkpoint readCheckpoint(const std::string& directory) {
  Checkpoint checkpoint = readManifest(directory);
  for (int i = 0; i < std::ssize(checkpoint.files); ++i) {
    const std::optional<std::string> fault = faultOfSize(checkpoint, i);
    if (!fault && checkpoint.files[i].host.empty())
      notGood(directory, fmt::format("{} is not there", checkpoint.files[i].name));
    if (!fault) checkpoint.elsewhere.push_back(i);
    if (fault && !fault->empty()) notGood(directory, *fault);
  }
  return checkpoint;
}

void verifyCheckpoint(const Checkpoint& checkpoint, const std::function<void(size_t files)>& done) {
  size_t files = 0;
  for (int i = 0; i < std::ssize(checkpoint.files); ++i) {
    if (!std::ranges::binary_search(checkpoint.elsewhere, i)) {
      if (const std::string fault = faultOfContent(checkpoint, i); !fault.empty())
        notGood(checkpoint.directory, fault);
    }
    if (done) done(++files);
  }
}

void verifyPlanFiles(const Checkpoint& checkpoint) {
  try {
    const std::optional<std::string> plan =
        readTextFile((fs::path(checkpoint.directory) / "plan.json").string());
    const std::string found = hashText(contentHash(plan.value_or("")));
    if (!checkpoint.plan.empty() && found != checkpoint.plan) {
      fail(ErrorCode::kNoGoodCheckpoint, "plan.json {}",
           plan ? fmt::format("has the hash {}, it was written with {}; the disk or somebody has changed it",
                              found, checkpoint.plan)
                : "is not there");
    }
    readWeightFiles(checkpoint.directory);
  } catch (const Error& error) {
    notGood(checkpoint.directory, fmt::format("`export` needs what is damaged: {}", error.message()));
  }
}

std::optional<Checkpoint> newestGoodCheckpoint(const std::string& folder,
                                               const std::function<void(const std::string&)>& notice,
                                               int64_t before) {
  if (!fs::exists(folder)) return std::nullopt;
  const std::vector<std::string> directories = listCheckpoints(folder), damaged = listDamaged(folder);
  const auto isTooNew = [&](const std::string& directory) {
    return stepOfCheckpoint(fs::path(directory).filename().string()).value_or(0) >= before;
  };
  for (const std::string& directory : damaged) {
    if (!isTooNew(directory)) notice(fmt::format("warning: {}", describeDamaged(directory)));
  }
  for (const std::string& directory : directories) {
    if (isTooNew(directory)) continue;
    try {
      Checkpoint checkpoint = readCheckpoint(directory);
      verifyCheckpoint(checkpoint);
      return checkpoint;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNoGoodCheckpoint && error.code() != ErrorCode::kMissingInput) throw;
      notice(fmt::format("{}; looking for an older one", error.message()));
    }
  }
  if (directories.empty() && damaged.empty()) return std::nullopt;
  fail(ErrorCode::kNoGoodCheckpoint,
       "none of the {} checkpoints in {} is good; name another folder to start anew",
       directories.size() + damaged.size(), folder);
}

std::string describeElsewhere(const Checkpoint& checkpoint, const std::vector<int>& files) {
  std::map<std::string, std::string> by_host;
  for (const int index : files) {
    const CheckpointFile& file = checkpoint.files.at(index);
    std::string& names = by_host[file.host];
    names += fmt::format("{}{}", names.empty() ? "" : ", ", file.name);
  }
  const std::string directory = fs::absolute(checkpoint.directory).string();
  std::string text;
  for (const auto& [host, names] : by_host) {
    text += fmt::format(
        "{}{} on host {} (rsync -a --ignore-existing {}:{}/ {}/; after a crash {}.partial-{}/ there)",
        text.empty() ? "" : "; ", names, host, host, directory, directory, directory, checkpoint.job);
  }
  return text;
}

JoinedTensors openTensors(const Checkpoint& checkpoint) {
  if (!checkpoint.elsewhere.empty()) {
    fail(ErrorCode::kMissingInput, "checkpoint {} is not all on this host's disk; copy the rest: {}",
         checkpoint.directory, describeElsewhere(checkpoint, checkpoint.elsewhere));
  }
  std::vector<std::string> paths;
  for (const CheckpointFile& file : checkpoint.files)
    paths.push_back((fs::path(checkpoint.directory) / file.name).string());
  return JoinedTensors::open(paths, fmt::format("checkpoint {}", checkpoint.directory));
}

std::vector<CheckpointTensor> describeTensors(const JoinedTensors& tensors) {
  std::vector<CheckpointTensor> described;
  for (const std::string& name : tensors.names()) {
    const JoinedTensors::Pieces& found = tensors.find(name);
    CheckpointTensor& tensor =
        described.emplace_back(CheckpointTensor{name, found.data_type, found.whole, {}});
    for (const JoinedTensors::Piece& piece : found.pieces) {
      const Shard box = tensors.boxOf(piece, name);
      tensor.slices.push_back({piece.file, box.start, box.size});
    }
  }
  return described;
}

}  // namespace pipeshard
