// Plans of the same training step for fewer devices than a plan has, so that a job which has lost devices can
// go on from its checkpoint:
//
//   PLAN/fewer/3/          a plan directory for 3 devices
//   PLAN/fewer/plans.json  of which plan they were made, and which cannot be made
#pragma once

#include <string>
#include <vector>

#include "planning/request/progress.h"

namespace pipeshard {

inline constexpr const char* kFewerFolder = "fewer";

struct PlanForFewer {
  int devices = 0;
  std::string directory;  // "": there is none
  std::string why;        // there is none
  // Values of --boundary at which it is not cut, having fewer stages.
  std::vector<std::string> uncut;
  // Of --balance and --layers (or the stage file that said so much), what it has not kept: "--balance 2,1".
  std::string dropped = "";
};

// What they keep of the plan: the mathematics, the schedule and the method where these go with fewer devices,
// --layers and --balance, the cuts of --boundary, of --balance N,N and of stage files (where stages are
// fewer, as many of these cuts as they need), the largest recomputation and --memory of its stages. Where
// nothing goes with these cuts, stages are balanced by FLOPs. What the search of --stages auto has found is
// searched anew.
//
// For one and two devices fewer, and for those of the largest node fewer; most devices first. Makes those
// that are not there yet; the plan itself must have its programs. Errors: as readPlanDirectory; what
// `progress` throws.
std::vector<PlanForFewer> prepareFewerPlans(const std::string& directory, const ProgressCallback& progress);

}  // namespace pipeshard
