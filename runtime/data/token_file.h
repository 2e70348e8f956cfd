// A flat file of tokens: numbers of 16 or 32 bits, little-endian, one behind the other, nothing else.
//
// A model of sequence length T sees it as rows: row r is tokens [rT, rT + T), and what is left at the end is
// not used. Where a token ends documents (DataDescription::end_of_text), rows are parts of one
// (token_documents.h). Inputs are filled by what their names say:
//   ids, tokens, idx, inputs   the row
//   labels, targets            the row, as models shift it themselves that come from transformers; with
//                              `shift_labels` tokens [rT + 1, rT + T + 1)
//   ... mask                   ones
//   ... position ...           0, 1, ..., T-1
// Behind the end of a row that is shorter than T stands what RowLengths says.
#pragma once

#include <memory>
#include <string>

#include "runtime/data/stored_array.h"

namespace pipeshard {

// The type of a token in a file of this name: uint16 (.u16, .bin), uint32 (.u32), kUndefined (not one of
// those).
DataType tokenTypeOf(const std::string& path);

// Errors: kMissingInput, kBadModel (empty, a last token that is cut off); of open(): kConfiguration (an input
// that tokens do not fill; lengths that differ), as findDocuments, kUsage of decisions(): shift_labels
// without labels. `lengths` must outlive it.
std::unique_ptr<ArrayStore> openTokenFile(const DataDescription& description, const RowLengths& lengths);

}  // namespace pipeshard
