// The parts of verifyPrograms that look at several ranks; for ir/program/program_verify.cc only.
#pragma once

#include <vector>

#include "ir/program/program.h"

namespace pipeshard {

// Between ranks: sends and receives match in order, type and shape.
void verifyMessages(const std::vector<Program>& programs);

// Executes all programs abstractly; when nothing can go on, names the cycle of waits. Needs the above to
// hold, and programs that are sound one by one.
void verifyProgress(const std::vector<Program>& programs);

}  // namespace pipeshard
