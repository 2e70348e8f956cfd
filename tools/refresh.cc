#include "tools/refresh.h"

#include <cstdio>

#include <fmt/format.h>

#include "planning/directory/refresh_programs.h"
#include "tools/report/report_files.h"

namespace pipeshard {

void refreshEdited(const std::string& directory, const ProgressCallback& progress) {
  const ProgramsMade made = refreshPrograms(directory, progress);
  if (made != ProgramsMade::kNone) writeReport(directory);
  if (made == ProgramsMade::kAgain)
    fmt::print(stderr, "note: {}/plan.json was edited: its programs were made again\n", directory);
}

}  // namespace pipeshard
