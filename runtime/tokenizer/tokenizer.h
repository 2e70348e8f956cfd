// Hugging Face's tokenizer.json, of the kind that GPT-2, Llama 3 and Qwen have: byte pairs, on pieces that
// regular expressions cut. A text becomes the numbers that `tokenizers` gives it with
// add_special_tokens=False: special tokens that stand in the text are found, none is added, nothing is cut
// off or filled up.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/byte_pairs.h"
#include "runtime/tokenizer/text_pieces.h"

namespace pipeshard {

// Tokens that stand for a text of their own.
class AddedTokens {
 public:
  struct Token {
    std::string text;
    uint32_t number = 0;
    bool takes_space_before = false;
    bool takes_space_behind = false;
  };
  void add(Token token);
  bool empty() const { return tokens_.empty(); }
  const std::vector<Token>& tokens() const { return tokens_; }

  // The text in order: what is between them, which is not empty, and them; the longest where several begin.
  void find(std::string_view text, const PieceFunction& between,
            const std::function<void(uint32_t)>& take) const;

 private:
  const Token* findAt(std::string_view text) const;

  std::vector<Token> tokens_;
  std::vector<std::vector<size_t>> by_first_byte_ = std::vector<std::vector<size_t>>(256);  // longest first
};

class Tokenizer {
 public:
  uint32_t largest() const { return largest_; }  // number of a token
  // Those that stand for a text of their own, such as the end of a text.
  std::vector<AddedTokens::Token> addedTokens() const;

  // Tells the tokens of a text, some at a time. Error(kBadModel) for bytes that are no UTF-8.
  void encode(std::string_view text, const std::function<void(std::span<const uint32_t>)>& take);

 private:
  friend class TokenizerFile;
  Tokenizer(BytePairs pairs) : pairs_(std::move(pairs)) {}
  using TakeFunction = std::function<void(std::span<const uint32_t>)>;
  void encodeSegment(std::string_view text, const TakeFunction& take);
  void encodePieces(std::string_view text, size_t rule, const TakeFunction& take);
  void tell(size_t least, const TakeFunction& take);

  BytePairs pairs_;
  std::vector<PieceRule> rules_;    // each cuts what those before it have left
  bool normalizes_ = false;         // NFC
  bool adds_space_ = false;         // before a segment that does not begin with one
  AddedTokens added_, normalized_;  // looked for before normalization, and after it
  uint32_t largest_ = 0;
  std::vector<uint32_t> tokens_;  // of the text that is being encoded, not told yet
};

}  // namespace pipeshard
