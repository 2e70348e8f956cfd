#include "runtime/files/weight_check.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>

#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "runtime/files/posix_file.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kWholeBytes = uint64_t{64} << 20;  // files up to here are read from end to end
constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kBlocks = 1024;
constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

// FNV-1a over words of eight bytes, with a rotation so that high bits reach low ones.
class Hash {
 public:
  void add(std::span<const std::byte> bytes) {
    size_t i = 0;
    for (; i + sizeof(uint64_t) <= bytes.size(); i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, &bytes[i], sizeof word);
      addWord(word);
    }
    for (; i < bytes.size(); ++i) addWord(std::to_integer<uint64_t>(bytes[i]));
  }
  uint64_t value() const { return state_; }

 private:
  void addWord(uint64_t word) {
    state_ = (state_ ^ word) * 0x100000001b3ull;
    state_ ^= state_ >> 29;
  }
  uint64_t state_ = 0xcbf29ce484222325ull;
};

WeightFile::Content contentOf(const std::string& path) {
  const Descriptor file = openForReading(path);
  WeightFile::Content content{fileBytes(file, path), 0};
  Hash hash;
  std::vector<std::byte> buffer(kChunkBytes);
  const auto addRange = [&](uint64_t offset, uint64_t bytes) {
    const std::span<std::byte> part = std::span(buffer).first(bytes);
    readExactly(file, offset, part, path);
    hash.add(part);
  };
  if (content.bytes <= kWholeBytes) {
    for (uint64_t offset = 0; offset < content.bytes; offset += kChunkBytes)
      addRange(offset, std::min(kChunkBytes, content.bytes - offset));
  } else {
    const uint64_t last = content.bytes - kBlockBytes;
    for (uint64_t block = 0; block < kBlocks; ++block) {
      const auto place = static_cast<unsigned __int128>(last) * block / (kBlocks - 1);
      addRange(place, kBlockBytes);
    }
  }
  content.sample = hash.value();
  return content;
}

}  // namespace

std::vector<WeightFile> recordWeightFiles(const std::vector<const Program*>& programs,
                                          const std::string& directory) {
  std::map<std::string, uint64_t> needed;
  for (const Program* program : programs) {
    for (const Buffer& buffer : program->buffers) {
      const auto* weight = buffer.source ? std::get_if<WeightReference>(&*buffer.source) : nullptr;
      if (weight == nullptr || weight->drawn) continue;
      uint64_t& end = needed[weight->location];
      end = std::max(end, weight->offset + weight->length);
    }
  }
  std::vector<WeightFile> files;
  for (const auto& [path, end] : needed) {
    WeightFile& file = files.emplace_back(WeightFile{path, end, {}});
    std::error_code ignored;
    const fs::path place = fs::path(directory) / path;
    if (fs::exists(place, ignored)) file.content = contentOf(place.string());
  }
  return files;
}

void checkWeightFiles(const std::vector<WeightFile>& files, const std::string& directory,
                      const WeightRemedies& remedies) {
  for (const WeightFile& file : files) {
    std::error_code ignored;
    const std::string path = (fs::path(directory) / file.path).string();
    if (!fs::exists(path, ignored)) {
      fail(ErrorCode::kMissingInput, "the weight file {} does not exist; put it back, or {}", path,
           remedies.of_missing);
    }
    const uint64_t bytes = fileBytes(openForReading(path), path);
    if (!file.content) {
      if (bytes >= file.needed_bytes) continue;
      fail(ErrorCode::kMissingInput,
           "the weight file {} has {} bytes, but the model's weights need {}; it is cut off, or another file",
           path, bytes, file.needed_bytes);
    }
    if (bytes != file.content->bytes) {
      fail(ErrorCode::kConfiguration,
           "the weight file {} changed since planning: it had {} bytes and has {} now; {}", path,
           file.content->bytes, bytes, remedies.of_changed);
    }
    if (contentOf(path) != *file.content)
      fail(ErrorCode::kConfiguration, "the weight file {} has other content: it changed since planning; {}",
           path, remedies.of_changed);
  }
}

std::vector<WeightFile> readWeightFiles(const std::string& plan_directory) {
  const std::string path = (fs::path(plan_directory) / kWeightFilesName).string();
  if (!fs::exists(path)) return {};
  const std::string text = requireTextFile(path);
  try {
    return weightFilesFromJson(text);
  } catch (Error& error) {
    error.addContext(plan_directory);
    throw;
  }
}

void checkWeightFiles(const std::string& plan_directory,
                      const std::function<void(const std::string&)>& notice) {
  const std::vector<WeightFile> files = readWeightFiles(plan_directory);
  checkWeightFiles(files, plan_directory);
  if (!notice || files.empty()) return;
  std::error_code ignored;
  const fs::file_time_type recorded =
      fs::last_write_time(fs::path(plan_directory) / kWeightFilesName, ignored);
  for (const WeightFile& file : files) {
    if (!file.content || file.content->bytes <= kWholeBytes) continue;
    const fs::path path = fs::path(plan_directory) / file.path;
    const fs::file_time_type written = fs::last_write_time(path, ignored);
    if (ignored || written <= recorded) continue;
    notice(fmt::format(
        "the weight file {} was written after the plan was made; of its {} bytes {} samples of {} bytes are "
        "compared, which are as they were; plan again if its weights have changed",
        path.string(), file.content->bytes, kBlocks, kBlockBytes));
  }
}

}  // namespace pipeshard
