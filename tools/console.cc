#include "tools/console.h"

#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr std::chrono::seconds kQuiet{2};

std::string formatScaled(double amount, double step, const std::array<const char*, 6>& units) {
  size_t unit = 0;
  while (amount >= step && unit + 1 < units.size()) {
    amount /= step;
    ++unit;
  }
  const int decimals = unit == 0 || amount >= 99.95 ? 0 : amount >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", amount, decimals, units[unit]);
}

bool looksNumeric(const std::string& cell) {
  return !cell.empty() &&
         (std::isdigit(static_cast<unsigned char>(cell[0])) != 0 || (cell[0] == '-' && cell.size() > 1));
}

}  // namespace

Progress::Progress()
    : terminal_(isatty(STDERR_FILENO) == 1), last_output_(std::chrono::steady_clock::now()) {}

Progress::~Progress() { clear(); }

void Progress::clear() {
  if (terminal_ && shown_) fmt::print(stderr, "\r\033[K");
  shown_ = false;
}

void Progress::phase(const std::string& text) {
  const auto now = std::chrono::steady_clock::now();
  if (terminal_) {
    fmt::print(stderr, "\r\033[K{} ...", text);
    shown_ = true;
  } else if (now - last_output_ >= kQuiet) {
    fmt::print(stderr, "{} ...\n", text);
  } else {
    return;
  }
  std::fflush(stderr);
  last_output_ = now;
}

std::string formatTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t column = 0; column < row.size(); ++column)
      widths[column] = std::max(widths[column], row[column].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t column = 0; column < row.size(); ++column) {
      const bool right = &row != &rows[0] && looksNumeric(row[column]);
      line += right ? fmt::format("{:>{}}", row[column], widths[column])
                    : fmt::format("{:<{}}", row[column], widths[column]);
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string formatBytes(int64_t bytes) {
  return formatScaled(static_cast<double>(bytes), 1024, {"B", "KiB", "MiB", "GiB", "TiB", "PiB"});
}

std::string formatFlops(int64_t flops) {
  return formatScaled(static_cast<double>(flops), 1000,
                      {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"});
}

void noteCrowding(int workers) {
  const auto processors = static_cast<int>(std::thread::hardware_concurrency());
  if (processors == 0 || workers <= 2 * processors) return;
  fmt::print(stderr,
             "note: {} workers share the {} processor{} of this machine: they take turns, and the times say "
             "nothing about a cluster\n",
             workers, processors, processors == 1 ? "" : "s");
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

void writeOutputFile(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) failToWrite(path, errno);
}

}  // namespace pipeshard
