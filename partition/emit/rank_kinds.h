// The programs of a schedule's ranks, one emission for each kind. Internal to partition/emit/.
#pragma once

#include <functional>
#include <vector>

#include "ir/program/program_set.h"
#include "partition/emit/emission_context.h"
#include "partition/emit/rank_builder.h"
#include "partition/emit/sharded_pieces.h"

namespace pipeshard {

// What becomes of every program behind its emission, before frees are inserted. Whatever it asks about the
// rank it asks the questions.
using Completion = std::function<void(EmittedRank& rank)>;

// Emits the first rank of each kind, binds the others and inserts frees. What differs between two ranks
// differs in an answer (rank_questions.h), or in where buffers end: then they are of two kinds. The result is
// to be verified (verifyProgramSet).
// `pieces`: by group of devices; what is made of their stages stays there, for another emission of them.
// `progress`: as emitProgramSet.
EmittedPrograms emitKinds(const EmissionContext& context, IdVector<PipelineRankId, ShardedPieces>& pieces,
                          const Completion& complete, const std::function<void(double)>& progress = {});

}  // namespace pipeshard
