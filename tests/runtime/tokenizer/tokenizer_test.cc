// What Hugging Face's own tokenizers say of the same files is in tests/oracle/tokenizers_agree.py.
#include "runtime/tokenizer/text_pieces.h"
#include "runtime/tokenizer/tokenizer_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

class TokenizerTest : public ::testing::Test {
 protected:
  // Bytes that are written as they are, a space and a newline; "ab", "abc", "Ġa", and a special token.
  static json small() {
    json vocabulary;
    int next = 0;
    for (const char* token : {"a", "b", "c", "d", "Ġ", "Ċ", "ab", "abc", "Ġa", "bc", "<s>"})
      vocabulary[token] = next++;
    return {{"added_tokens", {{{"id", 10}, {"content", "<s>"}, {"normalized", false}}}},
            {"normalizer", nullptr},
            {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
            {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"a b", "ab c", "Ġ a", "b c"}}}}};
  }

  Tokenizer read(const json& file) const {
    return readTokenizer(folder_.write("tokenizer.json", file.dump()));
  }
  static std::vector<uint32_t> encode(Tokenizer tokenizer, const std::string& text) {
    std::vector<uint32_t> tokens;
    tokenizer.encode(
        text, [&](std::span<const uint32_t> some) { tokens.insert(tokens.end(), some.begin(), some.end()); });
    return tokens;
  }

  TemporaryFolder folder_;
};

TEST_F(TokenizerTest, MergesWhatWasLearnedFirst) {
  EXPECT_THAT(encode(read(small()), "abc"), ElementsAre(7));
  EXPECT_THAT(encode(read(small()), "dbc"), ElementsAre(3, 9));
  EXPECT_THAT(encode(read(small()), "abab"), ElementsAre(6, 6));
  EXPECT_EQ(read(small()).largest(), 10u);
}

TEST_F(TokenizerTest, CutsWordsWithTheSpaceBeforeThem) {
  // the first space of two is a piece of its own, and nothing is merged across a cut
  EXPECT_THAT(encode(read(small()), "a  a\nab b"), ElementsAre(0, 4, 8, 5, 6, 4, 1));
  json file = small();
  file["model"]["merges"] = {"Ċ a"};
  file["model"]["vocab"]["Ċa"] = 11;
  EXPECT_THAT(encode(read(file), "b\na"), ElementsAre(1, 5, 0));
  EXPECT_THAT(encode(read(small()), "<s>a<s><s>"), ElementsAre(10, 0, 10, 10));
}

TEST_F(TokenizerTest, TakesWholeWordsWhereMergesAreIgnored) {
  json file = small();
  file["model"]["merges"] = json::array();
  EXPECT_THAT(encode(read(file), "abc"), ElementsAre(0, 1, 2));
  file["model"]["ignore_merges"] = true;
  EXPECT_THAT(encode(read(file), "abc"), ElementsAre(7));
}

TEST_F(TokenizerTest, ALongTextIsToldInParts) {
  size_t parts = 0, tokens = 0;
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "c d\n";
  read(small()).encode(text, [&](std::span<const uint32_t> some) {
    ++parts;
    tokens += some.size();
  });
  EXPECT_EQ(tokens, text.size());
  EXPECT_GT(parts, 3u);
}

TEST_F(TokenizerTest, SaysWhereATextIsNoUtf8OrHasNoToken) {
  EXPECT_ERROR(encode(read(small()), "ab\xff"), ErrorCode::kBadModel, "byte 2 (0xff) is not UTF-8");
  EXPECT_ERROR(encode(read(small()), "az"), ErrorCode::kBadModel, "no token for the byte 0x7a");
}

TEST_F(TokenizerTest, OthersAreRefusedByTheirField) {
  const auto refuses = [&](const char* pointer, json value, const std::string& message) {
    json file = small();
    file[json::json_pointer(pointer)] = std::move(value);
    SCOPED_TRACE(pointer);
    EXPECT_ERROR(read(file), ErrorCode::kBadModel, message);
  };
  refuses("/model/type", "WordPiece", "model.type is \"WordPiece\", expected \"BPE\"");
  refuses("/model/byte_fallback", true, "model.byte_fallback");
  refuses("/model/continuing_subword_prefix", "##", "model.continuing_subword_prefix");
  refuses("/model/dropout", 0.1, "model.dropout");
  refuses("/model/merges", {"a z"}, "model.merges: 'z' of 'a z' is not in model.vocab");
  refuses("/normalizer", {{"type", "Lowercase"}}, "normalizer is \"Lowercase\"");
  refuses("/pre_tokenizer", nullptr, "pre_tokenizer");
  refuses("/pre_tokenizer/type", "Metaspace", "pre_tokenizer is \"Metaspace\"");
  refuses("/pre_tokenizer",
          {{"type", "Split"}, {"pattern", {{"Regex", "("}}}, {"behavior", "Isolated"}, {"invert", false}},
          "the regular expression ( is not taken");
  refuses("/pre_tokenizer",
          {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Removed"}, {"invert", false}},
          "pre_tokenizer.behavior is \"Removed\"");
  refuses("/added_tokens/0/single_word", true, "added_tokens.single_word");
  refuses("/added_tokens/0", {{"id", 10}, {"single_word", true}}, "key 'content' not found");
  refuses("/model/vocab/a", "text", "model.vocab: \"text\" is no number of a token");
  refuses("/model/vocab/a", 1e300, "model.vocab: 1e+300 is no number of a token");
  refuses("/model/vocab/a", 4294967296, "model.vocab: 4294967296 is no number of a token");
  refuses("/model/vocab/a", -1, "model.vocab: -1 is no number of a token");
  refuses("/added_tokens/0/id", 1e300, "added_tokens.id: 1e+300 is no number of a token");
  EXPECT_ERROR(readTokenizer(folder_.write("cut.json", "{\"model\": ")), ErrorCode::kBadModel, "cut.json");
  EXPECT_ERROR(readTokenizer(folder_.file("none.json")), ErrorCode::kMissingInput, "none.json");
}

// A file of zeros, say: each of its bytes takes some dozen of memory.
TEST_F(TokenizerTest, RefusesWordsOfMegabytes) {
  EXPECT_EQ(encode(read(small()), std::string(100'000, 'd')).size(), 100'000u);
  EXPECT_ERROR(encode(read(small()), std::string((1 << 24) + 1, 'd')), ErrorCode::kBadModel,
               "a word of 16777217 bytes, 16777216 at most");
}

// 2^40 steps without a limit.
TEST(PieceRule, ThatIsExponentialIsGivenUp) {
  const PieceRule rule("(a|aa)+$");
  EXPECT_ERROR(rule.cut(std::string(40, 'a') + "!", [](std::string_view) {}), ErrorCode::kBadModel,
               "takes too long");
}

}  // namespace
}  // namespace pipeshard
