// Documents in a file of tokens: a document is what stands up to a token that ends one, and with it. A model
// of sequence length T sees it as rows of up to T tokens, the last one shorter; no row has tokens of two.
//
//   1 2 0 3 4 5 6 7 0 0, 0 ends a document, T is 3:  1 2 0 | 3 4 5 | 6 7 0; the last document is one token
//
// A row of one token is left out, and counted: it has nothing that it could be trained on. Where labels are
// shifted a row needs a token behind it, too, of the same document.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/stored_array.h"
#include "runtime/files/posix_file.h"

namespace pipeshard {

// A file of nothing but tokens.
struct TokenSequence {
  std::shared_ptr<const Descriptor> file;
  std::string path;
  DataType type = DataType::kUint16;  // or kUint32
  int64_t tokens = 0;

  // Tokens [first, first + count). Error(kMissingInput) where the file has shrunk.
  std::vector<uint32_t> read(int64_t first, int64_t count) const;
};

// Takes 16 bytes a row.
struct TokenDocuments {
  int64_t documents = 0;
  int64_t left_out = 0;          // rows of one token
  std::vector<int64_t> starts;   // of every row: its first token
  std::vector<int64_t> lengths;  // and how many are its own

  int64_t rows() const { return static_cast<int64_t>(starts.size()); }
};

// Reads all of the file. `end`: the token that ends a document. Errors: kUsage (a number that is no such
// token), kConfiguration (no token is, or no document has a row).
TokenDocuments findDocuments(const TokenSequence& sequence, int64_t end, int64_t longest, bool shift_labels);

// An array [rows, longest] of `type`: numbers(row, begin, out) gives elements [begin, begin + n) of a row,
// which are inside it; behind its end is `padding`.
using RowNumbers = std::function<void(int64_t row, int64_t begin, std::span<int64_t> out)>;
std::unique_ptr<StoredArray> documentArray(std::shared_ptr<const TokenDocuments> documents, DataType type,
                                           int64_t longest, double padding, RowNumbers numbers);

}  // namespace pipeshard
