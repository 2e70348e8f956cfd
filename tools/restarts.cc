#include "tools/restarts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/counted.h"
#include "planning/directory/plan_directory.h"
#include "planning/fewer/fewer_plans.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/execute/rank_image.h"
#include "runtime/job/child_process.h"
#include "tools/console.h"

namespace pipeshard {

RestartOptions prepareRestarts(int restarts, const std::string& directory, const std::string& checkpoints,
                               bool on_nodes) {
  RestartOptions options;
  options.restarts = restarts;
  if (restarts == 0 || !on_nodes) return options;
  std::vector<PlanForFewer> plans;
  {
    SignalWatch signals;  // a half-written folder is removed before the command ends
    Progress progress;
    plans = prepareFewerPlans(directory, [&](const std::string& phase) {
      if (const int signal = signals.take(); signal != 0)
        throw JobInterrupted(signal, newestCheckpoint(checkpoints));
      progress.phase(phase);
    });
  }
  std::string made;
  for (const PlanForFewer& plan : plans) {
    if (plan.directory.empty()) {
      fmt::print(stderr, "note: there is no plan for {}: {}\n", counted(plan.devices, "device"), plan.why);
      continue;
    }
    if (!plan.uncut.empty()) {
      fmt::print(stderr, "note: the plan for {} has fewer stages; it is not cut at {} (--boundary)\n",
                 counted(plan.devices, "device"), fmt::join(plan.uncut, ", "));
    }
    if (!plan.dropped.empty()) {
      fmt::print(stderr, "note: the plan for {} does not have {}\n", counted(plan.devices, "device"),
                 plan.dropped);
    }
    made += fmt::format("{}{}", made.empty() ? "" : ", ", plan.devices);
    FewerPlan& fewer = options.fewer.emplace_back();
    fewer.directory = plan.directory;
    const Plan read = readPlanDirectory(plan.directory);
    for (RankId rank : idsBelow<RankId>(countRanks(plan.directory)))
      fewer.node_of_rank.push_back(read.cluster.nodeOf(rank.index()));
  }
  if (!made.empty())
    fmt::print(
        "should devices be lost: plans for {} are ready in {}/fewer; a host that does not share the folder "
        "makes its own when it needs one. Where {} is on each host's own disk, and a lost host alone has a "
        "part of the newest checkpoint, the run waits for that host instead\n",
        made, directory, checkpoints);
  return options;
}

}  // namespace pipeshard
