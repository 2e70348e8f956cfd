// Byte pair encoding: the tokens of a word, which is some bytes. At first each byte is a token; of all pairs
// of neighbours that may be merged, the one whose merge was learned first is, the leftmost of equal ones,
// until none is left. (Neural Machine Translation of Rare Words with Subword Units, algorithm 1, over bytes.)
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace pipeshard {

class BytePairs {
 public:
  static constexpr int64_t kNone = -1;

  struct Merge {
    uint32_t left = 0;
    uint32_t right = 0;
    uint32_t merged = 0;
  };
  // `bytes`: the token of each, or kNone. `merges` in the order in which they were learned. `words`: those
  // that are one token, whatever merges say.
  BytePairs(const std::array<int64_t, 256>& bytes, const std::vector<Merge>& merges,
            std::unordered_map<std::string, uint32_t> words = {});

  // Appends the word's tokens. Error(kBadModel) for a byte that has no token.
  void encode(std::string_view word, std::vector<uint32_t>& tokens);

 private:
  struct Rule {
    uint32_t rank = 0;
    uint32_t merged = 0;
  };
  const Rule* find(uint32_t left, uint32_t right) const;
  std::vector<uint32_t> merge(std::string_view word) const;

  std::array<int64_t, 256> bytes_;
  std::unordered_map<uint64_t, Rule> rules_;  // by both tokens
  std::unordered_map<std::string, uint32_t> words_;
  std::unordered_map<std::string, std::vector<uint32_t>> known_;  // words that have been encoded before
};

}  // namespace pipeshard
