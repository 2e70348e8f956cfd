#include "ir/base/text_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "ir/base/error.h"

namespace pipeshard {

std::optional<std::string> readTextFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (!file || (file.peek() != std::ifstream::traits_type::eof() && !(text << file.rdbuf())))
    return std::nullopt;
  return std::move(text).str();
}

std::optional<std::string> readTextFile(const std::string& path, uint64_t most_bytes, std::string_view what) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return std::nullopt;
  if (size > most_bytes)
    fail(ErrorCode::kConfiguration, "{} is too large for {} ({} bytes)", path, what, size);
  return readTextFile(path);
}

std::string requireTextFile(const std::string& path) {
  if (std::optional<std::string> text = readTextFile(path)) return *std::move(text);
  fail(ErrorCode::kMissingInput, "{} cannot be read", path);
}

void failToWrite(const std::string& path, int error_number) {
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  std::error_code ignored;
  if (!std::filesystem::exists(folder, ignored)) {
    fail(ErrorCode::kMissingInput,
         "{} cannot be written: there is no folder {}; make it, or choose another path", path,
         folder.string());
  }
  if (std::filesystem::is_directory(path, ignored)) {
    fail(ErrorCode::kConfiguration, "{} cannot be written: it is a folder; choose the path of a file", path);
  }
  if (error_number == EACCES || error_number == EPERM || error_number == ENOTDIR) {
    fail(ErrorCode::kConfiguration, "{} cannot be written: {}; choose another path", path,
         std::strerror(error_number));
  }
  fail(ErrorCode::kDiskFull, "{} cannot be written: {}", path,
       error_number == 0 ? "is the disk full?" : std::strerror(error_number));
}

void requireWritable(const std::string& path) {
  errno = 0;
  if (!std::ofstream(path, std::ios::binary | std::ios::app)) failToWrite(path, errno);
}

void writeTextFile(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) failToWrite(path, errno);
}

}  // namespace pipeshard
