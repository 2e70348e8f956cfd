// Plan directories that people have edited.
#pragma once

#include <string>

#include "planning/request/progress.h"

namespace pipeshard {

// Before a plan is run, simulated or shown: makes its programs where there are none or plan.json was edited
// (planning/directory/refresh_programs.h), and the report with them. Says on standard error that they were
// made again.
void refreshEdited(const std::string& directory, const ProgressCallback& progress);

}  // namespace pipeshard
