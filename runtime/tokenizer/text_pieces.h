// What a text is cut into before it is encoded, by the rules of Unicode: ICU ends here.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace pipeshard {

using PieceFunction = std::function<void(std::string_view piece)>;

// Cuts texts by a regular expression: each match is a piece, and so is what lies between two of them.
class PieceRule {
 public:
  // As tokenizers write them for Oniguruma: what they use means the same to ICU. Error(kBadModel) naming what
  // ICU does not take.
  explicit PieceRule(const std::string& expression);
  PieceRule(PieceRule&&) noexcept;
  PieceRule& operator=(PieceRule&&) noexcept;
  ~PieceRule();

  // `text` is UTF-8. Pieces are those of the text, in order, and all of it. Error(kBadModel) where the
  // expression takes seconds for one of them, as exponential ones do.
  void cut(std::string_view text, const PieceFunction& take) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

// The first byte that is no UTF-8; npos: all of it is.
size_t findBadUtf8(std::string_view text);

// In Unicode's normal form NFC; `storage` holds it where it differs from the text.
std::string_view toNfc(std::string_view text, std::string& storage);

// Of the white space at the end of a text, and at its start: bytes.
size_t spaceAtEnd(std::string_view text);
size_t spaceAtStart(std::string_view text);

}  // namespace pipeshard
