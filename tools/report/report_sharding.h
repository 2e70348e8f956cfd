// The section of the report page about how stages are sharded.
#pragma once

#include <string>
#include <vector>

#include "tools/report/report.h"

namespace pipeshard {

// For every stage with a sharding: mesh, method, what was predicted, its parameters and other tensors with
// their specs. Each spec has one colour on the page.
std::string renderShardings(const Plan& plan, const std::vector<ReportedParameter>& parameters);

}  // namespace pipeshard
