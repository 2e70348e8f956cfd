#include "tools/output/log_lines.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <span>

#include "ir/base/plain_file.h"
#include "ir/base/text_file.h"

namespace pipeshard {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{64} << 10;
constexpr uint64_t kStartBytes = 64;  // of a line: more than its step has

// The step that a line begins with, of JSON or of a table; nothing for a heading, or a line that was cut off.
std::optional<int64_t> stepOfLine(std::string_view line) {
  constexpr std::string_view kStart = R"({"step":)";
  if (line.starts_with(kStart)) line.remove_prefix(kStart.size());
  int64_t step = 0;
  const char* const last = line.data() + line.size();
  const auto [end, error] = std::from_chars(line.data(), last, step);
  if (error != std::errc() || end == last || *end != ',') return std::nullopt;
  return step;
}

// A file whose lines are found from its end on.
class LinesFromBehind {
 public:
  explicit LinesFromBehind(const std::string& path) : path_(path), file_(openPlainFile(path, bytes_)) {}

  bool isThere() const { return file_.descriptor >= 0; }
  uint64_t bytes() const { return bytes_; }

  // Where the byte behind the last line feed before `end` is: a line begins there. 0: there is none.
  uint64_t beginOfLine(uint64_t end) {
    while (end > 0) {
      if (end <= block_at_ || end > block_at_ + block_.size())
        load(end > kBlockBytes ? end - kBlockBytes : 0);
      const size_t found = std::string_view(block_).substr(0, end - block_at_).rfind('\n');
      if (found != std::string_view::npos) return block_at_ + found + 1;
      end = block_at_;
    }
    return 0;
  }

  std::string_view textAt(uint64_t at, uint64_t length) {
    length = std::min(length, bytes_ - at);
    if (at < block_at_ || at + length > block_at_ + block_.size()) load(at);
    return std::string_view(block_).substr(at - block_at_, length);
  }

 private:
  void load(uint64_t at) {
    block_.resize(std::min(kBlockBytes + kStartBytes, bytes_ - at));
    block_at_ = at;
    if (::lseek(file_.descriptor, static_cast<off_t>(at), SEEK_SET) < 0) failToRead(path_);
    size_t have = 0;
    while (have < block_.size()) {
      const size_t got = readSome(file_, std::span(block_).subspan(have), path_);
      if (got == 0) break;
      have += got;
    }
    block_.resize(have);
  }

  const std::string& path_;
  uint64_t bytes_ = 0;
  OpenFile file_;
  uint64_t block_at_ = 0;
  std::string block_;
};

uint64_t bytesToKeep(LinesFromBehind& lines, int64_t step, std::string_view heading,
                     std::optional<int64_t>& last_cut) {
  // what stands behind the last line feed was cut off
  uint64_t end = lines.beginOfLine(lines.bytes());
  while (end > 0) {
    const uint64_t begin = lines.beginOfLine(end - 1);
    const std::optional<int64_t> of_line =
        stepOfLine(lines.textAt(begin, std::min(kStartBytes, end - begin)));
    if (of_line && *of_line <= step) return end;
    if (!last_cut) last_cut = of_line;
    end = begin;
  }
  return !heading.empty() && lines.textAt(0, heading.size()) == heading ? heading.size() : 0;
}

}  // namespace

std::optional<int64_t> cutLogBehind(const std::string& path, int64_t step, std::string_view heading) {
  std::optional<int64_t> last_cut;
  LinesFromBehind lines(path);
  if (!lines.isThere()) return last_cut;
  const uint64_t kept = bytesToKeep(lines, step, heading, last_cut);
  if (kept < lines.bytes() && ::truncate(path.c_str(), static_cast<off_t>(kept)) != 0)
    failToWrite(path, errno);
  return last_cut;
}

std::optional<std::string> firstLineOf(const std::string& path, size_t most_bytes) {
  uint64_t bytes = 0;
  const OpenFile file(openPlainFile(path, bytes));
  if (file.descriptor < 0) return std::nullopt;
  std::string text(most_bytes, '\0');
  text.resize(readSome(file, text, path));
  if (text.empty()) return std::nullopt;
  return text.substr(0, text.find('\n'));
}

}  // namespace pipeshard
