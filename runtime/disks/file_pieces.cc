#include "runtime/disks/file_pieces.h"

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/files/hex.h"
#include "runtime/files/weight_check.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

// Twice that in hexadecimal, well below kMaxControlBytes.
constexpr uint64_t kPieceBytes = uint64_t{256} << 10;
constexpr const char* kPlanFile = "plan.json";

bool isPartOfCheckpoint(const fs::path& directory, const std::string& file) {
  const bool is_rank = file.starts_with("rank-") && file.ends_with(".safetensors");
  return directory.is_absolute() && stepOfCheckpoint(directory.filename().string()) &&
         file.find('/') == std::string::npos && (is_rank || file == kPlanFile || file == kWeightFilesName);
}

}  // namespace

nlohmann::json wantJson(const FileWant& want) {
  return {{"directory", want.directory}, {"job", want.job}, {"file", want.file}, {"offset", want.offset}};
}

FileWant wantFromJson(const nlohmann::json& json) {
  return {json.at("directory").get<std::string>(), json.at("job").get<std::string>(),
          json.at("file").get<std::string>(), json.at("offset").get<uint64_t>()};
}

nlohmann::json readPiece(const FileWant& want) {
  const auto failed = [&](const std::string& why) -> nlohmann::json {
    return {{"file", want.file}, {"offset", want.offset}, {"error", why}};
  };
  if (!isPartOfCheckpoint(want.directory, want.file)) return failed("that is no file of a checkpoint");
  fs::path path = fs::path(want.directory) / want.file;
  if (!fs::exists(path)) path = fs::path(partialName(want.directory, want.job)) / want.file;
  try {
    const Descriptor file = openForReading(path.string());
    const uint64_t total = fileBytes(file, path.string());
    if (want.offset > total) return failed("it ends before");
    std::vector<std::byte> bytes(std::min(kPieceBytes, total - want.offset));
    readExactly(file, want.offset, bytes, path.string());
    return {{"file", want.file}, {"offset", want.offset}, {"total", total}, {"bytes", toHex(bytes)}};
  } catch (const Error& error) {
    return failed(error.message());
  }
}

std::vector<nlohmann::json> piecesOf(const std::string& text, const nlohmann::json& body) {
  std::vector<nlohmann::json> pieces;
  for (size_t offset = 0; offset == 0 || offset < text.size(); offset += kPieceBytes) {
    nlohmann::json& piece = pieces.emplace_back(body);
    piece.update({{"offset", offset}, {"total", text.size()}, {"text", text.substr(offset, kPieceBytes)}});
  }
  return pieces;
}

FileFetch::FileFetch(Checkpoint checkpoint, const std::vector<int>& files)
    : checkpoint_(std::move(checkpoint)) {
  for (const int index : files) {
    if (std::ranges::binary_search(checkpoint_.elsewhere, index))
      waiting_.push_back({checkpoint_.files.at(index).name, index});
  }
  for (const char* name : {kPlanFile, kWeightFilesName}) {
    if (!fs::exists(fs::path(checkpoint_.directory) / name)) waiting_.push_back({name, -1});
  }
}

FileWant FileFetch::want() const {
  return {checkpoint_.directory, checkpoint_.job, waiting_.back().name, offset_};
}

void FileFetch::take(const nlohmann::json& piece) {
  if (isDone() || piece.at("file") != waiting_.back().name || piece.at("offset") != offset_) return;
  const File& file = waiting_.back();
  if (piece.contains("error")) {
    if (file.index >= 0) {
      fail(ErrorCode::kMissingInput,
           "no host that takes part has {} of checkpoint {} ({}); its ranks go on from it. It was written "
           "here: {}",
           file.name, checkpoint_.directory, piece.at("error").get<std::string>(),
           describeElsewhere(checkpoint_, {file.index}));
    }
    pending_.reset();
    offset_ = 0;
    return waiting_.pop_back();
  }
  if (!pending_)
    pending_ = std::make_unique<PendingFile>((fs::path(checkpoint_.directory) / file.name).string());
  const std::vector<std::byte> bytes = fromHex(piece.at("bytes").get<std::string>());
  pending_->append(bytes.data(), bytes.size());
  offset_ += bytes.size();
  if (offset_ == piece.at("total").get<uint64_t>() || bytes.empty()) finishFile();
}

void FileFetch::finishFile() {
  const File file = waiting_.back();
  pending_->commit(true);
  pending_.reset();
  offset_ = 0;
  waiting_.pop_back();
  fetched_.push_back(file.name);
  if (file.index < 0) return;
  try {
    verifyFile(checkpoint_, file.index);
  } catch (const Error&) {
    std::error_code ignored;
    fs::remove(fs::path(checkpoint_.directory) / file.name, ignored);
    throw;
  }
}

}  // namespace pipeshard
