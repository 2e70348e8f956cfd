#include "runtime/disks/file_pieces.h"

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/files/weight_check.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPieceBytes = uint64_t{1} << 20;  // as long as a payload may be
constexpr size_t kTextBytes = size_t{256} << 10;     // of a text, of which quoting may make more
constexpr const char* kPlanFile = "plan.json";

bool isPartOfCheckpoint(const fs::path& directory, const std::string& file) {
  const bool is_rank = file.starts_with("rank-") && file.ends_with(".safetensors");
  return directory.is_absolute() && stepOfCheckpoint(directory.filename().string()) &&
         file.find('/') == std::string::npos && (is_rank || file == kPlanFile || file == kWeightFilesName);
}

}  // namespace

nlohmann::json wantJson(const FileWant& want) {
  nlohmann::json json = {
      {"directory", want.directory}, {"job", want.job}, {"file", want.file}, {"offset", want.offset}};
  if (want.again) json["again"] = true;
  return json;
}

FileWant wantFromJson(const nlohmann::json& json) {
  return {json.at("directory").get<std::string>(), json.at("job").get<std::string>(),
          json.at("file").get<std::string>(), json.at("offset").get<uint64_t>(), json.value("again", false)};
}

nlohmann::json pieceJson(const FilePiece& piece) {
  nlohmann::json json = {{"file", piece.file}, {"offset", piece.offset}, {"total", piece.total}};
  if (!piece.error.empty()) json["error"] = piece.error;
  return json;
}

FilePiece pieceFromJson(const nlohmann::json& json, std::span<const std::byte> payload) {
  return {json.at("file").get<std::string>(),
          json.at("offset").get<uint64_t>(),
          json.at("total").get<uint64_t>(),
          json.value("error", ""),
          {payload.begin(), payload.end()}};
}

FilePiece readPiece(const FileWant& want) {
  FilePiece piece{want.file, want.offset};
  if (!isPartOfCheckpoint(want.directory, want.file)) {
    piece.error = "that is no file of a checkpoint";
    return piece;
  }
  fs::path path = fs::path(want.directory) / want.file;
  if (!fs::exists(path)) path = fs::path(partialName(want.directory, want.job)) / want.file;
  try {
    const Descriptor file = openForReading(path.string());
    piece.total = fileBytes(file, path.string());
    if (want.offset > piece.total) fail(ErrorCode::kMissingInput, "it ends before");
    piece.bytes.resize(std::min(kPieceBytes, piece.total - want.offset));
    readExactly(file, want.offset, piece.bytes, path.string());
  } catch (const Error& error) {
    piece.bytes.clear();
    piece.error = error.message();
  }
  return piece;
}

std::vector<nlohmann::json> piecesOf(const std::string& text, const nlohmann::json& body) {
  std::vector<nlohmann::json> pieces;
  for (size_t offset = 0; offset == 0 || offset < text.size(); offset += kTextBytes) {
    nlohmann::json& piece = pieces.emplace_back(body);
    piece.update({{"offset", offset}, {"total", text.size()}, {"text", text.substr(offset, kTextBytes)}});
  }
  return pieces;
}

FileFetch::FileFetch(Checkpoint checkpoint, const LackedFiles& lacked) : checkpoint_(std::move(checkpoint)) {
  for (const auto& [index, damage] : lacked)
    waiting_.push_back({checkpoint_.files.at(index).name, index, damage});
  for (const char* name : {kPlanFile, kWeightFilesName}) {
    if (!fs::exists(fs::path(checkpoint_.directory) / name)) waiting_.push_back({name, -1, ""});
  }
}

FileWant FileFetch::want() const {
  return {checkpoint_.directory, checkpoint_.job, waiting_.back().name, offset_, again_};
}

void FileFetch::beginFile() {
  pending_.reset();
  hash_.reset();
  offset_ = 0;
  again_ = false;
}

void FileFetch::failWithout(const File& file, const std::string& error) const {
  if (!file.damage.empty()) {
    fail(ErrorCode::kNoGoodCheckpoint, "checkpoint {}: {}; no other host that takes part has it whole ({})",
         checkpoint_.directory, file.damage, error);
  }
  fail(ErrorCode::kMissingInput,
       "no host that takes part has {} of checkpoint {} ({}); its ranks go on from it. It was written here: "
       "{}",
       file.name, checkpoint_.directory, error, describeElsewhere(checkpoint_, {file.index}));
}

void FileFetch::take(const FilePiece& piece) {
  if (isDone() || piece.file != waiting_.back().name || piece.offset != offset_) return;
  const File& file = waiting_.back();
  if (!piece.error.empty()) {
    if (file.index >= 0) failWithout(file, piece.error);
    beginFile();
    return waiting_.pop_back();
  }
  if (!pending_) {
    beginFile();
    pending_ = std::make_unique<PendingFile>((fs::path(checkpoint_.directory) / file.name).string(),
                                             FileAccess::kOwner);
    hash_ = std::make_unique<RunningHash>();
  }
  pending_->append(piece.bytes.data(), piece.bytes.size());
  hash_->add(piece.bytes.data(), piece.bytes.size());
  offset_ += piece.bytes.size();
  if (offset_ == piece.total || piece.bytes.empty()) finishFile();
}

// What is not the file that was written does not take the place of anything.
void FileFetch::finishFile() {
  File& file = waiting_.back();
  if (file.index >= 0 && hash_->value() != checkpoint_.files[file.index].hash) {
    if (file.damage.empty()) file.damage = describeHash(checkpoint_.files[file.index], hash_->value());
    beginFile();
    again_ = true;
    return;
  }
  pending_->commit(true);
  (file.damage.empty() ? fetched_ : replaced_).push_back(file.damage.empty() ? file.name : file.damage);
  beginFile();
  waiting_.pop_back();
}

}  // namespace pipeshard
