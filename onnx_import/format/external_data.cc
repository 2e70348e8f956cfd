#include "onnx_import/format/external_data.h"

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

std::optional<std::string> resolve(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr), &std::free);
  if (!real) return std::nullopt;
  return std::string(real.get());
}

bool isInside(const std::string& path, const std::string& directory) {
  if (directory == "/") return true;
  return path.size() > directory.size() && path.starts_with(directory) && path[directory.size()] == '/';
}

void checkLocation(const std::string& location, const std::string& what) {
  if (location.empty()) fail(ErrorCode::kBadModel, "{} has external data without a location", what);
  if (location.find('\0') != std::string::npos)
    fail(ErrorCode::kBadModel, "{} has an external location with a NUL byte", what);
  if (location.front() == '/') {
    fail(ErrorCode::kBadModel,
         "{} has the absolute external location '{}'; only paths relative to the model are allowed", what,
         location);
  }
  if (location.find("_ORT_MEM_ADDR_") != std::string::npos || location.front() == '*') {
    fail(ErrorCode::kBadModel, "{} has the external location '{}', which is an address in memory and no file",
         what, location);
  }
  for (const auto& part : std::filesystem::path(location)) {
    if (part == "..")
      fail(ErrorCode::kBadModel, "{} has the external location '{}'; '..' is not allowed", what, location);
  }
}

uint64_t parseNumber(const std::string& text, const char* key, const std::string& what) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
    fail(ErrorCode::kBadModel, "{} has the external {} '{}', which is no unsigned 64-bit number", what, key,
         text);
  }
  return number;
}

struct Entries {
  std::string location;
  uint64_t offset = 0;
  std::optional<uint64_t> length;
};

Entries parseEntries(const onnx::TensorProto& tensor, const std::string& what) {
  Entries entries;
  std::set<std::string> seen;
  for (const auto& entry : tensor.external_data()) {
    if (!seen.insert(entry.key()).second)
      fail(ErrorCode::kBadModel, "{} repeats the external data key '{}'", what, entry.key());
    if (entry.key() == "location") {
      entries.location = entry.value();
    } else if (entry.key() == "offset") {
      entries.offset = parseNumber(entry.value(), "offset", what);
    } else if (entry.key() == "length") {
      entries.length = parseNumber(entry.value(), "length", what);
    } else if (entry.key() != "checksum") {
      fail(ErrorCode::kBadModel,
           "{} has the external data key '{}'; location, offset, length and checksum are known", what,
           entry.key());
    }
  }
  checkLocation(entries.location, what);
  return entries;
}

}  // namespace

ExternalData::ExternalData(const std::string& directory, const std::string& real_directory,
                           const std::string& root, bool required)
    : required_(required) {
  for (const std::string& candidate :
       {directory.empty() ? std::string(".") : directory, real_directory, root}) {
    if (candidate.empty()) continue;
    if (std::optional<std::string> real = resolve(candidate)) {
      allowed_.push_back(*real);
    } else if (candidate == root) {
      fail(ErrorCode::kMissingInput, "the external data folder '{}' does not exist", root);
    }
    candidates_.push_back(std::filesystem::absolute(candidate).lexically_normal().string());
    while (candidates_.back().size() > 1 && candidates_.back().back() == '/') candidates_.back().pop_back();
  }
  base_ = candidates_.front();
}

ExternalData::File ExternalData::inspect(const std::string& location, const std::string& what) {
  // The first file decides where all of them are.
  std::optional<std::string> target;
  for (const std::string& candidate : base_fixed_ ? std::vector<std::string>{base_} : candidates_) {
    target = resolve(candidate + "/" + location);
    if (!target) continue;
    base_ = candidate;
    base_fixed_ = true;
    break;
  }
  if (!target) {
    if (!required_) return File{};
    fail(ErrorCode::kMissingInput,
         "{} needs the external data file '{}', which is not in '{}'; copy it there or name its folder", what,
         location, base_);
  }
  bool inside = false;
  for (const std::string& directory : allowed_) inside = inside || isInside(*target, directory);
  if (!inside) {
    fail(ErrorCode::kBadModel,
         "{} has the external location '{}', which leads to '{}', outside of the model's folder", what,
         location, *target);
  }
  const int descriptor = ::open(target->c_str(), O_PATH | O_CLOEXEC | O_NOFOLLOW);
  struct stat status = {};
  const bool known = descriptor >= 0 && ::fstat(descriptor, &status) == 0;
  if (descriptor >= 0) ::close(descriptor);
  if (!known)
    fail(ErrorCode::kMissingInput, "{}: cannot look at '{}': {}", what, *target, std::strerror(errno));
  if (!S_ISREG(status.st_mode))
    fail(ErrorCode::kBadModel, "{} has the external location '{}', which is no regular file", what, location);
  if (owner_ && status.st_nlink > 1 && status.st_uid != *owner_) {
    fail(ErrorCode::kBadModel,
         "{} has the external location '{}', which is a hard link to a file of another user (number {}; the "
         "model is of {}); put a copy of the file in its place",
         what, location, status.st_uid, *owner_);
  }
  if (::access(target->c_str(), R_OK) != 0)
    fail(ErrorCode::kMissingInput, "{}: '{}' cannot be read: {}", what, *target, std::strerror(errno));
  return File{true, static_cast<uint64_t>(status.st_size)};
}

const ExternalData::File& ExternalData::file(const std::string& location, const std::string& what) {
  const auto it = files_.find(location);
  if (it != files_.end()) return it->second;
  return files_.emplace(location, inspect(location, what)).first->second;
}

WeightReference ExternalData::check(const onnx::TensorProto& tensor, uint64_t byte_count,
                                    const std::string& what) {
  const Entries entries = parseEntries(tensor, what);
  if (entries.length && *entries.length != byte_count) {
    fail(ErrorCode::kBadModel, "{} has {} bytes of external data, but its type and shape need {}", what,
         *entries.length, byte_count);
  }
  const File& data = file(entries.location, what);
  if (data.exists) {
    if (entries.offset > data.size || byte_count > data.size - entries.offset) {
      fail(ErrorCode::kBadModel, "{} needs bytes [{}, {} + {}) of '{}', which has only {}", what,
           entries.offset, entries.offset, byte_count, entries.location, data.size);
    }
    if (!entries.length && data.size - entries.offset != byte_count) {
      fail(ErrorCode::kBadModel,
           "{} gives no length, so that all {} bytes of '{}' after offset {} belong to it, but its type and "
           "shape need {}",
           what, data.size - entries.offset, entries.location, entries.offset, byte_count);
    }
  }
  return WeightReference{entries.location, entries.offset, byte_count};
}

}  // namespace pipeshard
