#include "runtime/data/token_documents.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "ir/base/convert.h"
#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr int64_t kTokensAtOnce = 1 << 19;

// Makes rows of documents as they end.
class DocumentCutter {
 public:
  DocumentCutter(int64_t longest, bool shift_labels) : longest_(longest), shift_labels_(shift_labels) {}

  // A document of tokens [begin, end).
  void add(int64_t begin, int64_t end) {
    ++found_.documents;
    const int64_t used = end - begin - (shift_labels_ ? 1 : 0), least = shift_labels_ ? 1 : 2;
    if (used == 0) ++found_.left_out;  // a token that has none behind it
    for (int64_t at = 0; at < used; at += longest_) {
      const int64_t length = std::min(longest_, used - at);
      if (length < least) {
        ++found_.left_out;
        continue;
      }
      found_.starts.push_back(begin + at);
      found_.lengths.push_back(length);
    }
  }
  TokenDocuments take() { return std::move(found_); }

 private:
  int64_t longest_;
  bool shift_labels_;
  TokenDocuments found_;
};

class DocumentArray : public StoredArray {
 public:
  DocumentArray(std::shared_ptr<const TokenDocuments> documents, DataType type, int64_t longest,
                double padding, RowNumbers numbers)
      : StoredArray(type, {documents->rows(), longest}),
        documents_(std::move(documents)),
        padding_(padding),
        numbers_(std::move(numbers)) {}

  std::span<const int64_t> lengths() const override { return documents_->lengths; }

  void read(int64_t first, std::span<std::byte> out) const override {
    const size_t each = dataTypeSize(dataType());
    const int64_t longest = shape()[1];
    std::vector<int64_t> numbers;
    std::vector<std::byte> content;
    while (!out.empty()) {
      const int64_t row = first / longest, begin = first % longest;
      const int64_t count = std::min<int64_t>(static_cast<int64_t>(out.size() / each), longest - begin);
      const int64_t own = std::clamp<int64_t>(documents_->lengths[row] - begin, 0, count);
      numbers.resize(own);
      if (own > 0) numbers_(row, begin, numbers);
      content.resize(own * each);
      convertElements(DataType::kInt64, numbers.data(), dataType(), content.data(), own);
      writePadded(dataType(), padding_, {count}, {{0}, {own}}, content, out.first(count * each));
      out = out.subspan(count * each);
      first += count;
    }
  }

 private:
  std::shared_ptr<const TokenDocuments> documents_;
  double padding_;
  RowNumbers numbers_;
};

template <typename T>
std::vector<uint32_t> readTokens(const TokenSequence& sequence, int64_t first, int64_t count) {
  std::vector<T> tokens(count);
  readExactly(*sequence.file, first * sizeof(T), std::as_writable_bytes(std::span(tokens)), sequence.path);
  return {tokens.begin(), tokens.end()};
}

}  // namespace

std::vector<uint32_t> TokenSequence::read(int64_t first, int64_t count) const {
  return type == DataType::kUint16 ? readTokens<uint16_t>(*this, first, count)
                                   : readTokens<uint32_t>(*this, first, count);
}

TokenDocuments findDocuments(const TokenSequence& sequence, int64_t end, int64_t longest, bool shift_labels) {
  const int64_t largest = sequence.type == DataType::kUint16 ? std::numeric_limits<uint16_t>::max()
                                                             : std::numeric_limits<uint32_t>::max();
  if (end < 0 || end > largest) {
    fail(ErrorCode::kUsage, "--end-of-text {}: tokens of {} ({}) are from 0 to {}", end, sequence.path,
         dataTypeName(sequence.type), largest);
  }
  DocumentCutter cutter(longest, shift_labels);
  int64_t begin = 0;
  for (int64_t at = 0; at < sequence.tokens; at += kTokensAtOnce) {
    const std::vector<uint32_t> tokens = sequence.read(at, std::min(kTokensAtOnce, sequence.tokens - at));
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] != static_cast<uint32_t>(end)) continue;
      const int64_t behind = at + static_cast<int64_t>(i) + 1;
      cutter.add(std::exchange(begin, behind), behind);
    }
  }
  if (begin == 0) {
    fail(ErrorCode::kConfiguration,
         "{}: none of its {} tokens is {}, which --end-of-text says ends a document", sequence.path,
         sequence.tokens, end);
  }
  if (begin < sequence.tokens) cutter.add(begin, sequence.tokens);
  TokenDocuments found = cutter.take();
  if (found.rows() == 0) {
    fail(ErrorCode::kConfiguration, "{}: its {} documents have one token each; nothing is left to train on",
         sequence.path, found.documents);
  }
  return found;
}

std::unique_ptr<StoredArray> documentArray(std::shared_ptr<const TokenDocuments> documents, DataType type,
                                           int64_t longest, double padding, RowNumbers numbers) {
  return std::make_unique<DocumentArray>(std::move(documents), type, longest, padding, std::move(numbers));
}

}  // namespace pipeshard
