// A second opinion on the programs of all ranks: every one is run in full, without data, as program.h says,
// and nothing is shared with the verifier or asked of it. Slow and plain: messages lie in queues until they
// are taken, and who meets in a collective waits until all of its group are there. Of a buffer it follows
// what others can see: its name, type, shape, and which part of a tensor it is. What a program does with its
// own buffers (lifetimes, versions) it does not look at.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/program/program.h"
#include "ir/program/program_set.h"

namespace pipeshard {

// What is wrong with the programs of ranks 0, 1, ...; nothing: they run to their end and fit together.
std::optional<std::string> plainRunFault(const std::vector<Program>& programs);

// The same of a set, of which every rank's program is made; also whether there are such programs at all: as
// many peers, groups and starts as the kind has, of ranks and groups that exist.
std::optional<std::string> plainRunFault(const ProgramSet& set);

}  // namespace pipeshard
