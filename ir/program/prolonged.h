// Longer lists from short ones that grow evenly. Of three lists each has, of every loop (ir/program/loops.h),
// some iterations more than the one before; what is the same number in all three, or grows by the same amount
// from each to the next, does so for ever: that says what the list with many more iterations is.
//
//   a: run 3 -> 4; run 5 -> 6; run 7 -> 8; add 4, 6, 8          (one loop, then an item behind it)
//   b: run 3 -> 4; ...; run 9 -> 10; ...       one iteration more, c: two
//   what comes behind the loop has numbers that are greater by 2 in b, by 4 in c, by 2 n with n more
//
// Whether the longer list is right, its reader verifies: nothing says that a list must go on so.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "ir/program/loops.h"

namespace pipeshard {

// A loop, or an item that stands alone (period and count 1), of a list that is prolonged.
struct ProlongedPart {
  size_t first = 0;  // of the items in the first list
  size_t period = 1;
  size_t count = 1;
  std::vector<std::vector<int64_t>> numbers;  // by item: in the first iteration
  std::vector<std::vector<int64_t>> steps;    // by item: from each iteration to the next
};

// The list that has `more` times as many iterations more than the first as the second one has: 0 is the
// first, 2 the third. The lists share their forms. Nothing: they do not grow evenly.
std::optional<std::vector<ProlongedPart>> prolonged(const std::array<NumberedList, 3>& lists, int64_t more);

}  // namespace pipeshard
