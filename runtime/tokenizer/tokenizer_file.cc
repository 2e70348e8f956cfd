#include "runtime/tokenizer/tokenizer_file.h"

#include <algorithm>
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/json_reader.h"
#include "ir/base/text_file.h"

namespace pipeshard {
namespace {

// What tokenizers.pre_tokenizers.ByteLevel cuts by.
constexpr const char* kByteLevel =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string utf8Of(uint32_t character) {  // below 0x800
  if (character < 0x80) return {static_cast<char>(character)};
  return {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 0x3F))};
}

// How vocabularies write a byte: printable ones as they are, the others as characters from 256 on.
std::array<std::string, 256> writtenBytes() {
  std::array<std::string, 256> written;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    written[byte] = utf8Of(is_printable ? byte : next++);
  }
  return written;
}

// The bytes that a token of the vocabulary is written for; nothing for a text that is no such writing.
std::optional<std::string> bytesOf(const std::string& token) {
  static const std::map<std::string, char> bytes = [] {
    std::map<std::string, char> found;
    const auto written = writtenBytes();
    for (size_t byte = 0; byte < 256; ++byte) found[written[byte]] = static_cast<char>(byte);
    return found;
  }();
  std::string text;
  for (size_t at = 0; at < token.size();) {
    const size_t size = (token[at] & 0x80) != 0 ? 2 : 1;
    const auto found = bytes.find(token.substr(at, size));
    if (found == bytes.end()) return std::nullopt;
    text += found->second;
    at += size;
  }
  return text;
}

bool isNothing(const Json& object, const char* key) { return !object.contains(key) || object[key].is_null(); }
bool isTrue(const Json& object, const char* key) {
  return !isNothing(object, key) && object[key].get<bool>();
}

}  // namespace

class TokenizerFile {
 public:
  explicit TokenizerFile(const Json& document) : document_(document) {}

  Tokenizer make() {
    Tokenizer tokenizer(readPairs());
    readNormalizer(tokenizer);
    if (isNothing(document_, "pre_tokenizer")) refuse("pre_tokenizer", Json("none"), "ByteLevel");
    readPieces(document_["pre_tokenizer"], tokenizer, /*is_alone=*/true);
    if (!has_bytes_) refuse("pre_tokenizer", document_["pre_tokenizer"]["type"], "one with ByteLevel");
    readAdded(tokenizer);
    for (const auto& [token, number] : vocabulary_) tokenizer.largest_ = std::max(tokenizer.largest_, number);
    return tokenizer;
  }

 private:
  [[noreturn]] static void refuse(const std::string& field, const Json& found, const char* expected) {
    fail(ErrorCode::kBadModel,
         "{} is {}, expected {}; only byte-level BPE is read, as GPT-2, Llama 3 and Qwen have it. Write the "
         "numbers with the tokenizer's own library, as little-endian uint16 or uint32",
         field, found.dump(), expected);
  }

  static uint32_t numberFrom(const Json& number, const char* field) {
    const bool fits = number.is_number_unsigned() && number.get<uint64_t>() <= UINT32_MAX;
    if (!fits) fail(ErrorCode::kBadModel, "{}: {} is no number of a token", field, number.dump());
    return number.get<uint32_t>();
  }

  uint32_t numberOf(const std::string& token, const std::string& of) const {
    const auto found = vocabulary_.find(token);
    if (found == vocabulary_.end())
      fail(ErrorCode::kBadModel, "model.merges: '{}' of '{}' is not in model.vocab", token, of);
    return found->second;
  }

  BytePairs readPairs() {
    const Json& model = document_.at("model");
    if (model.value("type", "BPE") != "BPE") refuse("model.type", model["type"], "\"BPE\"");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!isNothing(model, key) && !model[key].get<std::string>().empty())
        refuse(std::string("model.") + key, model[key], "none");
    }
    for (const char* key : {"byte_fallback"}) {
      if (isTrue(model, key)) refuse(std::string("model.") + key, model[key], "false");
    }
    if (!isNothing(model, "dropout") && model["dropout"].get<double>() != 0)
      refuse("model.dropout", model["dropout"], "none");
    for (const auto& [token, number] : model.at("vocab").items())
      vocabulary_[token] = numberFrom(number, "model.vocab");
    std::array<int64_t, 256> bytes{};
    const auto written = writtenBytes();
    for (size_t byte = 0; byte < 256; ++byte) {
      const auto found = vocabulary_.find(written[byte]);
      bytes[byte] = found == vocabulary_.end() ? BytePairs::kNone : found->second;
    }
    std::vector<BytePairs::Merge> merges;
    for (const Json& merge : model.at("merges")) merges.push_back(mergeOf(merge));
    std::unordered_map<std::string, uint32_t> words;
    if (isTrue(model, "ignore_merges")) {
      for (const auto& [token, number] : vocabulary_) {
        if (const std::optional<std::string> text = bytesOf(token)) words.emplace(*text, number);
      }
    }
    return {bytes, merges, std::move(words)};
  }

  // "Ġ t", or ["Ġ", "t"] since tokens may have spaces.
  BytePairs::Merge mergeOf(const Json& merge) const {
    std::string left, right;
    if (merge.is_string()) {
      const auto text = merge.get<std::string>();
      const size_t space = text.find(' ');
      if (space == std::string::npos) fail(ErrorCode::kBadModel, "model.merges: '{}' is no pair", text);
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else {
      left = merge.at(0).get<std::string>();
      right = merge.at(1).get<std::string>();
    }
    const std::string of = left + " " + right;
    return {numberOf(left, of), numberOf(right, of), numberOf(left + right, of)};
  }

  void readNormalizer(Tokenizer& tokenizer) const {
    if (isNothing(document_, "normalizer")) return;
    const Json& normalizer = document_["normalizer"];
    if (normalizer.at("type") != "NFC") refuse("normalizer", normalizer["type"], "none or \"NFC\"");
    tokenizer.normalizes_ = true;
  }

  void readPieces(const Json& step, Tokenizer& tokenizer, bool is_alone) {
    const auto type = step.at("type").get<std::string>();
    if (has_bytes_) refuse("pre_tokenizer", step["type"], "nothing behind ByteLevel");
    if (type == "Sequence") {
      for (const Json& part : step.at("pretokenizers")) readPieces(part, tokenizer, false);
    } else if (type == "Split") {
      readSplit(step, tokenizer);
    } else if (type == "Digits") {
      tokenizer.rules_.emplace_back(isTrue(step, "individual_digits") ? "\\p{N}" : "\\p{N}+");
    } else if (type == "ByteLevel") {
      has_bytes_ = true;
      tokenizer.adds_space_ = isTrue(step, "add_prefix_space");
      if (tokenizer.adds_space_ && !is_alone)
        refuse("pre_tokenizer.add_prefix_space", step["add_prefix_space"], "false behind another step");
      if (step.value("use_regex", true)) tokenizer.rules_.emplace_back(kByteLevel);
    } else {
      refuse("pre_tokenizer", step["type"], "ByteLevel, Split, Digits or a Sequence of them");
    }
  }

  static void readSplit(const Json& step, Tokenizer& tokenizer) {
    if (step.at("behavior") != "Isolated") refuse("pre_tokenizer.behavior", step["behavior"], "\"Isolated\"");
    if (isTrue(step, "invert")) refuse("pre_tokenizer.invert", step["invert"], "false");
    const Json& pattern = step.at("pattern");
    tokenizer.rules_.emplace_back(pattern.contains("Regex")
                                      ? pattern["Regex"].get<std::string>()
                                      : "\\Q" + pattern.at("String").get<std::string>() + "\\E");
  }

  void readAdded(Tokenizer& tokenizer) const {
    if (isNothing(document_, "added_tokens")) return;
    for (const Json& token : document_["added_tokens"]) {
      if (isTrue(token, "single_word")) refuse("added_tokens.single_word", token.at("content"), "false");
      AddedTokens& added = isTrue(token, "normalized") ? tokenizer.normalized_ : tokenizer.added_;
      const auto number = numberFrom(token.at("id"), "added_tokens.id");
      tokenizer.largest_ = std::max(tokenizer.largest_, number);
      added.add(
          {token.at("content").get<std::string>(), number, isTrue(token, "lstrip"), isTrue(token, "rstrip")});
    }
  }

  const Json& document_;
  std::unordered_map<std::string, uint32_t> vocabulary_;
  bool has_bytes_ = false;
};

Tokenizer readTokenizer(const std::string& path) {
  constexpr uint64_t kMostBytes = uint64_t{1} << 28;
  const std::string text = requireTextFile(path, kMostBytes, "a tokenizer.json");
  try {
    const Json document = parseJson(text, "tokenizer.json");
    return TokenizerFile(document).make();
  } catch (const Json::exception& error) {
    fail(ErrorCode::kBadModel, "{} is no tokenizer.json: {}", path, error.what());
  } catch (const Error& error) {
    fail(ErrorCode::kBadModel, "{}: {}", path, error.message());
  }
}

}  // namespace pipeshard
