#include "runtime/tokenizer/text_pieces.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/regex.h>
#include <unicode/uchar.h>
#include <unicode/utext.h>
#include <unicode/utf8.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

// Of one piece, in ICU's units of some thousand steps each: seconds. Expressions with look-ahead, which
// tokenizers have, may be exponential.
constexpr int32_t kLongestMatch = 2000;

void check(UErrorCode status, const char* what) {
  if (U_FAILURE(status)) fail(ErrorCode::kBadModel, "{}: {}", what, u_errorName(status));
}

// A view of UTF-8 whose positions are bytes.
class TextView {
 public:
  explicit TextView(std::string_view text) {
    UErrorCode status = U_ZERO_ERROR;
    utext_openUTF8(&view_, text.data(), static_cast<int64_t>(text.size()), &status);
    check(status, "a text");
  }
  TextView(const TextView&) = delete;
  TextView& operator=(const TextView&) = delete;
  ~TextView() { utext_close(&view_); }
  UText* get() { return &view_; }

 private:
  UText view_ = UTEXT_INITIALIZER;
};

}  // namespace

struct PieceRule::Compiled {
  std::unique_ptr<icu::RegexMatcher> matcher;
};

PieceRule::PieceRule(const std::string& expression) : compiled_(std::make_unique<Compiled>()) {
  UErrorCode status = U_ZERO_ERROR;
  compiled_->matcher =
      std::make_unique<icu::RegexMatcher>(icu::UnicodeString::fromUTF8(expression), 0, status);
  if (U_FAILURE(status))
    fail(ErrorCode::kBadModel, "the regular expression {} is not taken: {}", expression, u_errorName(status));
  compiled_->matcher->setStackLimit(0, status);
  compiled_->matcher->setTimeLimit(kLongestMatch, status);
  check(status, "a regular expression");
}

PieceRule::PieceRule(PieceRule&&) noexcept = default;
PieceRule& PieceRule::operator=(PieceRule&&) noexcept = default;
PieceRule::~PieceRule() = default;

void PieceRule::cut(std::string_view text, const PieceFunction& take) const {
  icu::RegexMatcher& matcher = *compiled_->matcher;
  TextView view(text);
  matcher.reset(view.get());
  size_t at = 0;
  const auto takeUntil = [&](size_t end) {
    if (end > at) take(text.substr(at, end - at));
    at = std::max(at, end);
  };
  UErrorCode status = U_ZERO_ERROR;
  while (matcher.find(status) && U_SUCCESS(status)) {
    takeUntil(static_cast<size_t>(matcher.start64(status)));
    takeUntil(static_cast<size_t>(matcher.end64(status)));
  }
  if (status == U_REGEX_TIME_OUT)
    fail(ErrorCode::kBadModel,
         "a regular expression of the tokenizer takes too long on this text; is it (a+)+ or such?");
  check(status, "cutting a text by a regular expression");
  takeUntil(text.size());
}

size_t findBadUtf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  const auto size = static_cast<int64_t>(text.size());
  for (int64_t at = 0; at < size;) {
    const int64_t start = at;
    UChar32 character = 0;
    U8_NEXT(bytes, at, size, character);
    if (character < 0) return static_cast<size_t>(start);
  }
  return std::string_view::npos;
}

std::string_view toNfc(std::string_view text, std::string& storage) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* const nfc = icu::Normalizer2::getNFCInstance(status);
  check(status, "NFC");
  if (text.size() > INT32_MAX)
    fail(ErrorCode::kBadModel, "NFC of more than 2 GiB without a special token; cut the text into several");
  const icu::StringPiece piece(text.data(), static_cast<int32_t>(text.size()));
  if (nfc->isNormalizedUTF8(piece, status)) return text;
  storage.clear();
  icu::StringByteSink<std::string> sink(&storage);
  nfc->normalizeUTF8(0, piece, sink, nullptr, status);
  check(status, "NFC");
  return storage;
}

size_t spaceAtEnd(std::string_view text) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  auto at = static_cast<int64_t>(text.size());
  while (at > 0) {
    int64_t start = at - 1;
    while (start > 0 && U8_IS_TRAIL(bytes[start])) --start;
    int64_t behind = start;
    UChar32 character = 0;
    U8_NEXT(bytes, behind, at, character);
    if (!u_isUWhiteSpace(character)) break;
    at = start;
  }
  return text.size() - static_cast<size_t>(at);
}

size_t spaceAtStart(std::string_view text) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  const auto size = static_cast<int64_t>(text.size());
  int64_t at = 0;
  while (at < size) {
    int64_t behind = at;
    UChar32 character = 0;
    U8_NEXT(bytes, behind, size, character);
    if (!u_isUWhiteSpace(character)) break;
    at = behind;
  }
  return static_cast<size_t>(at);
}

}  // namespace pipeshard
