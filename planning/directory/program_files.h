// Writing folders of programs (runtime/execute/rank_image.h reads them).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "ir/program/step_size.h"
#include "partition/emit/rank_program.h"
#include "planning/directory/ort_dialect.h"
#include "planning/request/progress.h"

namespace pipeshard {

// Those of a folder: of whole batches, and of what other sizes there are; of shorter sequences all from
// length 1 on.
using ProgramsBySize = std::map<StepSize, EmittedPrograms>;

// What was written to a folder.
struct WrittenPrograms {
  std::map<StepSize, ProgramSet> sets;      // as they are in the files
  std::map<std::string, uint64_t> digests;  // contentHash of the files, by path in the folder
};

// ranks.json, kinds/ and subgraphs/ (and stored_constants.h), into a folder that is made. Programs of all
// sizes share subgraphs where the contents are equal; graphs are let go as they are written. `progress`:
// told, between files, how far it has come; what it throws ends the work. Errors as writeTextFile.
WrittenPrograms writePrograms(ProgramsBySize programs, const std::string& folder,
                              const ProgressCallback& progress = {});

// A program of one rank as a set of its own.
EmittedPrograms aloneProgram(RankProgram rank);

// A rank's own program, for people and for other runtimes: program.json, and its subgraphs by their names
// ("forward.onnx"), into a folder that is made; that of the last batch in a folder last_batch/ inside, those
// of shorter sequences in shorter1/ and so on. Copied weights of the rank and stored constants come along.
// Returns what a dialect has changed. Errors: those of ProgramFolder; kUsage where the plan has no such rank.
DialectChanges expandRank(const std::string& plan_directory, RankId rank, const std::string& folder,
                          Dialect dialect = Dialect::kPipeshard);

}  // namespace pipeshard
