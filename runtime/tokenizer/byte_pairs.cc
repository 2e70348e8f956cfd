#include "runtime/tokenizer/byte_pairs.h"

#include <queue>
#include <tuple>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr size_t kMostKnown = 100'000;
constexpr size_t kLongestKnown = 64;  // bytes
constexpr size_t kLongestWord = size_t{1} << 24;

// A token of a word under construction, in a list.
struct Symbol {
  uint32_t token;
  int previous;
  int next;       // -1: none
  bool is_there;  // false: merged into the one before
};

struct Candidate {
  uint32_t rank;
  int position;  // of the left one
  uint32_t merged;
  bool operator>(const Candidate& other) const {
    return std::tie(rank, position) > std::tie(other.rank, other.position);
  }
};

uint64_t pairOf(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

}  // namespace

BytePairs::BytePairs(const std::array<int64_t, 256>& bytes, const std::vector<Merge>& merges,
                     std::unordered_map<std::string, uint32_t> words)
    : bytes_(bytes), words_(std::move(words)) {
  uint32_t rank = 0;
  for (const Merge& merge : merges) rules_[pairOf(merge.left, merge.right)] = {rank++, merge.merged};
}

const BytePairs::Rule* BytePairs::find(uint32_t left, uint32_t right) const {
  const auto found = rules_.find(pairOf(left, right));
  return found == rules_.end() ? nullptr : &found->second;
}

void BytePairs::encode(std::string_view word, std::vector<uint32_t>& tokens) {
  const std::string text(word);
  if (const auto whole = words_.find(text); whole != words_.end()) {
    tokens.push_back(whole->second);
    return;
  }
  const auto known = known_.find(text);
  if (known != known_.end()) {
    tokens.insert(tokens.end(), known->second.begin(), known->second.end());
    return;
  }
  std::vector<uint32_t> merged = merge(word);
  tokens.insert(tokens.end(), merged.begin(), merged.end());
  if (known_.size() < kMostKnown && word.size() <= kLongestKnown) known_.emplace(text, std::move(merged));
}

// A heap of the pairs that may be merged. Those that are no more are found out when their turn comes.
std::vector<uint32_t> BytePairs::merge(std::string_view word) const {
  if (word.size() > kLongestWord) {
    fail(ErrorCode::kBadModel,
         "a word of {} bytes, {} at most: the tokenizer finds no place to cut it; is this a text?",
         word.size(), kLongestWord);
  }
  const int size = static_cast<int>(word.size());
  std::vector<Symbol> symbols;
  for (int i = 0; i < size; ++i) {
    const auto byte = static_cast<unsigned char>(word[i]);
    if (bytes_[byte] == kNone)
      fail(ErrorCode::kBadModel, "the tokenizer has no token for the byte {:#04x}", byte);
    symbols.push_back({static_cast<uint32_t>(bytes_[byte]), i - 1, i + 1 < size ? i + 1 : -1, true});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto propose = [&](int left) {
    if (left < 0 || symbols[left].next < 0) return;
    if (const Rule* rule = find(symbols[left].token, symbols[symbols[left].next].token))
      candidates.push({rule->rank, left, rule->merged});
  };
  for (int i = 0; i + 1 < size; ++i) propose(i);
  while (!candidates.empty()) {
    const Candidate candidate = candidates.top();
    candidates.pop();
    Symbol& left = symbols[candidate.position];
    if (!left.is_there || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    const Rule* rule = find(left.token, right.token);
    if (rule == nullptr || rule->merged != candidate.merged) continue;
    left.token = candidate.merged;
    right.is_there = false;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].previous = candidate.position;
    propose(left.previous);
    propose(candidate.position);
  }
  std::vector<uint32_t> tokens;
  for (int i = size > 0 ? 0 : -1; i >= 0; i = symbols[i].next) tokens.push_back(symbols[i].token);
  return tokens;
}

}  // namespace pipeshard
