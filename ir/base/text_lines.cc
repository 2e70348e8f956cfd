#include "ir/base/text_lines.h"

#include <utility>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr size_t kBytesAtOnce = size_t{64} << 10;

}  // namespace

TextLines::TextLines(std::string path, std::string_view what) : TextLines(std::move(path), what, Limits()) {}

TextLines::TextLines(std::string path, std::string_view what, const Limits& limits)
    : path_(std::move(path)),
      what_(what),
      limits_(limits),
      file_(openPlainFile(path_, bytes_)),
      block_(kBytesAtOnce) {
  if (file_.descriptor < 0) failToRead(path_);
  refuseMore(bytes_);
  bytes_ = 0;
}

void TextLines::refuseMore(uint64_t bytes) const {
  if (bytes <= limits_.most_bytes) return;
  fail(ErrorCode::kBadModel, "{} is too large for {} ({} bytes, {} at most)", path_, what_, bytes,
       limits_.most_bytes);
}

bool TextLines::fill() {
  const size_t got = readSome(file_, block_, path_);
  bytes_ += got;
  refuseMore(bytes_);  // it may grow
  rest_ = {block_.data(), got};
  return got > 0;
}

bool TextLines::next(std::string& line) {
  line.clear();
  whole_ = false;
  while (!whole_ && (!rest_.empty() || fill())) {
    const size_t end = rest_.find('\n');
    const std::string_view part = rest_.substr(0, end);
    if (line.size() + part.size() > limits_.most_line_bytes) {
      fail(ErrorCode::kBadModel, "{}, line {}: has more than {} bytes, the most for a line of {}", path_,
           number_ + 1, limits_.most_line_bytes, what_);
    }
    line += part;
    whole_ = end != std::string_view::npos;
    rest_.remove_prefix(part.size() + (whole_ ? 1 : 0));
  }
  if (!whole_ && line.empty()) return false;
  ++number_;
  return true;
}

}  // namespace pipeshard
