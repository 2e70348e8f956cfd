// The section of the report page about how stages are sharded.
#pragma once

#include <string>
#include <vector>

#include "ir/program/program_set.h"
#include "tools/report/report.h"

namespace pipeshard {

// Of the stages that are sharded, as the programs of their first devices say, or of those that stand for
// them.
std::vector<ReportedParameter> parametersOf(const Plan& plan, const IdVector<RankId, Program>& programs,
                                            const RankSample& sample);

// For every stage with a sharding: mesh, method, what was predicted, its parameters and other tensors with
// their specs. Each spec has one colour on the page.
std::string renderShardings(const Plan& plan, const std::vector<ReportedParameter>& parameters);

}  // namespace pipeshard
