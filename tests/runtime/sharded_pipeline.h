// The step of pipeline_program.h with its hidden axis cut over the ranks: rank r holds columns of w0 and the
// same rows of w1, and y is summed over the ranks. Shares of 5 are uneven.
#pragma once

#include <vector>

#include "tests/runtime/pipeline_program.h"

namespace pipeshard {

std::vector<RankImage> shardedPipelineImages(int ranks, const PipelineOptions& options = {});

}  // namespace pipeshard
