// One Trace from what the ranks have recorded: instructions get their names from the Programs, clocks are
// aligned, messages find their partners.
//
// A send lasts until its receiver has the message, which is taken from the receiver's record (as exact as the
// clocks are aligned); one without a receiver's record ends when it was posted. A run with collectives inside
// becomes a part before, the collective, a part behind, and so on, as in what
// partition/simulation/program_simulation.h makes. An instruction that had not ended (the job failed) ends
// with the trace, and says so in its name. Instructions that take no time (frees, accumulations done by
// kernels) are left out.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ir/program/program.h"
#include "ir/trace/trace_event.h"
#include "runtime/trace/clock_alignment.h"
#include "runtime/trace/trace_recorder.h"

namespace pipeshard {

class ProgramFolder;  // runtime/execute/rank_image.h

struct RankRecording {
  TraceRecords records;
  std::vector<Program> programs;  // of every size of step (ProgramFolder::sizes), then those that evaluate
  ClockAlignment clock;           // from its machine's to the trace's
};

// The steps that are there of every rank, and the batches of evaluations before, between and behind them; of
// a rank that had not come so far, what it did. Times begin with the first one's start. Ranks that left
// nothing have no recording; a receive whose sender's record is missing has no number. The result passes
// verifyTrace. Error (kConfiguration) when a recording and its programs do not belong together.
Trace mergeTrace(int ranks, const std::vector<RankRecording>& recordings);

// Those of a job's programs, read whole: training's and, where the job evaluates, those that do it. Errors as
// ProgramFolder.
std::vector<ProgramFolder> foldersToTrace(const ProgramFolder& training, bool evaluates);

// Of a job: recorded bytes by rank (empty: none), clocks by rank; `folders`: foldersToTrace. Errors as above
// and ProgramFolder's.
Trace mergeTrace(std::vector<ProgramFolder>& folders, const IdVector<RankId, std::vector<std::byte>>& bytes,
                 const IdVector<RankId, ClockAlignment>& clocks);

}  // namespace pipeshard
