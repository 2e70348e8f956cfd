// Numbers as text, an example a line. Read whole: tables are for what fits into memory; a line has at most
// 64 MiB, a table 32 GiB (ir/base/text_lines.h).
//
//   CSV (UTF-8, fields between commas): the first line names the columns. An input with one number per
//   example is the column of its name; one with more is the columns NAME[0], NAME[1], ... (row-major, side by
//   side or not) or all columns called NAME, from left to right.
//     x[0],x[1],label
//     0.5,1e-3,7
//   JSON Lines: an object a line; an input is the value of its name: a number, or lists as deep as the
//   input's shape without the batch.
//     {"x": [0.5, 1e-3], "label": 7}
//
// Where sequences have several lengths (row_lengths.h), lists of JSON Lines along their axes may be shorter
// than the longest; what is missing is padding.
//
// Other columns, and other keys of the first line, are unused(). Inputs of integers and bools take whole
// numbers alone (7, also written as 7.0), and in JSON true and false.
#pragma once

#include <memory>
#include <string>

#include "runtime/data/stored_array.h"

namespace pipeshard {

// Errors, naming the line, and the column of a number: kMissingInput (no plain file, no such column or key),
// kBadModel (empty, too long, UTF-16, a line with more or fewer fields than the first, no JSON object, values
// in more than 64 others), kConfiguration (found no number of the input's kind, or not as many as the input
// has).
std::unique_ptr<ArrayStore> openCsvTable(const std::string& path);
// `lengths` outlives the store.
std::unique_ptr<ArrayStore> openJsonLines(const std::string& path, const RowLengths& lengths);

}  // namespace pipeshard
