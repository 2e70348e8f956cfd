// Writing folders of programs (runtime/execute/rank_image.h reads them).
#pragma once

#include <functional>
#include <string>

#include "partition/emit/rank_program.h"
#include "planning/directory/ort_dialect.h"
#include "planning/request/progress.h"

namespace pipeshard {

// ranks.json, kinds/ and subgraphs/, into a folder that is made. `last`: the programs of the last batch, or
// null; they share subgraphs with `whole` where the contents are equal. `progress`: told, between files, how
// far it has come; what it throws ends the work. Errors as writeTextFile.
void writePrograms(const EmittedPrograms& whole, const EmittedPrograms* last, const std::string& folder,
                   const ProgressCallback& progress = {});

// A program of one rank as a set of its own.
EmittedPrograms aloneProgram(const RankProgram& rank);

// A rank's own program, for people and for other runtimes: program.json, and its subgraphs by their names
// ("forward.onnx"), into a folder that is made; that of the last batch in a folder last_batch/ inside. Copied
// weights of the rank come along. Returns what a dialect has changed. Errors: those of ProgramFolder; kUsage
// where the plan has no such rank.
DialectChanges expandRank(const std::string& plan_directory, RankId rank, const std::string& folder,
                          Dialect dialect = Dialect::kPipeshard);

}  // namespace pipeshard
