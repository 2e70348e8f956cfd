#include "runtime/tokenizer/tokenizer.h"

#include <algorithm>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr size_t kToldAtOnce = 65'536;

}  // namespace

void AddedTokens::add(Token token) {
  if (token.text.empty()) return;
  std::vector<size_t>& places = by_first_byte_[static_cast<unsigned char>(token.text[0])];
  const auto shorter = [&](size_t place) { return tokens_[place].text.size() < token.text.size(); };
  places.insert(std::find_if(places.begin(), places.end(), shorter), tokens_.size());
  tokens_.push_back(std::move(token));
}

const AddedTokens::Token* AddedTokens::findAt(std::string_view text) const {
  for (const size_t place : by_first_byte_[static_cast<unsigned char>(text[0])]) {
    if (text.starts_with(tokens_[place].text)) return &tokens_[place];
  }
  return nullptr;
}

void AddedTokens::find(std::string_view text, const PieceFunction& between,
                       const std::function<void(uint32_t)>& take) const {
  size_t taken = 0;
  for (size_t at = 0; at < text.size() && !empty();) {
    const Token* const token = findAt(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::string_view before = text.substr(taken, at - taken);
    if (token->takes_space_before) before.remove_suffix(spaceAtEnd(before));
    if (!before.empty()) between(before);
    take(token->number);
    at += token->text.size();
    if (token->takes_space_behind) at += spaceAtStart(text.substr(at));
    taken = at;
  }
  if (taken < text.size()) between(text.substr(taken));
}

std::vector<AddedTokens::Token> Tokenizer::addedTokens() const {
  std::vector<AddedTokens::Token> tokens = added_.tokens();
  tokens.insert(tokens.end(), normalized_.tokens().begin(), normalized_.tokens().end());
  return tokens;
}

void Tokenizer::encode(std::string_view text, const std::function<void(std::span<const uint32_t>)>& take) {
  if (const size_t bad = findBadUtf8(text); bad != std::string_view::npos) {
    fail(ErrorCode::kBadModel, "byte {} ({:#04x}) is not UTF-8, which a tokenizer needs", bad,
         static_cast<unsigned char>(text[bad]));
  }
  tokens_.clear();
  const auto addToken = [&](uint32_t number) { tokens_.push_back(number); };
  const auto addSegment = [&](std::string_view segment) { encodeSegment(segment, take); };
  std::string storage;
  added_.find(
      text,
      [&](std::string_view raw) {
        normalized_.find(normalizes_ ? toNfc(raw, storage) : raw, addSegment, addToken);
      },
      addToken);
  tell(1, take);
}

void Tokenizer::tell(size_t least, const TakeFunction& take) {
  if (tokens_.size() < least) return;
  take(tokens_);
  tokens_.clear();
}

void Tokenizer::encodeSegment(std::string_view text, const TakeFunction& take) {
  if (!adds_space_ || text.starts_with(' ')) return encodePieces(text, 0, take);
  const std::string spaced = " " + std::string(text);
  encodePieces(spaced, 0, take);
}

void Tokenizer::encodePieces(std::string_view text, size_t rule, const TakeFunction& take) {
  if (rule < rules_.size()) {
    rules_[rule].cut(text, [&](std::string_view piece) { encodePieces(piece, rule + 1, take); });
    return;
  }
  pairs_.encode(text, tokens_);
  tell(kToldAtOnce, take);
}

}  // namespace pipeshard
