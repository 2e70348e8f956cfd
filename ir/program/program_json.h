// program.json: a Program as text and back. kinds/NNNN.json: a kind of ranks, which is the same and, of every
// buffer whose part begins elsewhere on other ranks, which entry of their starts says where; likewise of
// constants of subgraphs. What it says of one microbatch after the other is a loop (ir/program/list_json.h);
// program.json, which is for people and other runtimes, has every instruction.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "ir/program/loops.h"
#include "ir/program/program.h"
#include "ir/program/program_set.h"

namespace pipeshard {

// of kinds/NNNN.json and ranks.json; program.json has kProgramVersion
inline constexpr int kKindVersion = 6;

// A tensor that a buffer starts from may have so many bytes in the text. Larger ones lie in a file: writing a
// program that holds one throws Error(kConfiguration).
inline constexpr size_t kMostInlineBytes = 64 * 1024;

// program.json. parse throws Error(kConfiguration) naming the field; version mismatch:
// Error(kVersionMismatch).
std::string programToJson(const Program& program);
Program programFromJson(std::string_view text);

// Of a kind of a ProgramSet. Errors likewise.
std::string kindToJson(const ProgramKind& kind, LoopBudget loops = LoopBudget());
ProgramKind kindFromJson(std::string_view text, LoopBudget loops = LoopBudget());

}  // namespace pipeshard
