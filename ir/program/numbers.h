// The numbers of a program's items that differ between microbatches: what a loop counts (ir/program/loops.h).
// All are 0 or greater. What else an item says is the same in every iteration.
//
//   instruction   its microbatch (where it has one), offset, inputs, outputs
//   buffer        in its name, the number behind the last '@' that has one: 3 of "h@3[0:4]", "h@3@again"
//   result        its microbatch (where it has one), buffer
//   numbers       themselves
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/program/program.h"

namespace pipeshard {

std::vector<int64_t> numbersOf(const Instruction& instruction);
std::vector<int64_t> numbersOf(const Buffer& buffer);
std::vector<int64_t> numbersOf(const Result& result);
std::vector<int64_t> numbersOf(const std::vector<int64_t>& numbers);

// As many as numbersOf has, each within its limits.
void setNumbers(Instruction& instruction, std::span<const int64_t> numbers);
void setNumbers(Buffer& buffer, std::span<const int64_t> numbers);
void setNumbers(Result& result, std::span<const int64_t> numbers);
void setNumbers(std::vector<int64_t>& item, std::span<const int64_t> numbers);

// All that an item says beside its numbers, as bytes: equal for two items where what is written of them is,
// once all numbers are 0. Empty: only the text tells (a buffer with a source).
std::string formOf(const Instruction& instruction);
std::string formOf(const Buffer& buffer);
std::string formOf(const Result& result);
std::string formOf(const std::vector<int64_t>& numbers);

// The greatest that each may be in this program.
std::vector<int64_t> limitsOf(const Instruction& instruction, const Program& program);
std::vector<int64_t> limitsOf(const Buffer& buffer, const Program& program);
std::vector<int64_t> limitsOf(const Result& result, const Program& program);
std::vector<int64_t> limitsOf(const std::vector<int64_t>& numbers, const Program& program);

}  // namespace pipeshard
