#include <memory>
#include <string>
#include <vector>

#include "runtime/job/worker.h"
#include "tools/commands.h"

namespace pipeshard {

CommandFunction addWorkerCommand(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("worker", "One rank of a job; the coordinator starts it")->group("");
  sub->prefix_command();  // the options are runtime/job/worker.h's
  return [sub] { return workerMain(sub->remaining()); };
}

}  // namespace pipeshard
