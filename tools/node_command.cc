#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "ir/error.h"
#include "runtime/node.h"
#include "tools/commands.h"
#include "tools/option_checks.h"

namespace pipeshard {

CommandFunction addNodeCommand(CLI::App& app) {
  auto options = std::make_shared<NodeOptions>();
  CLI::App* sub = app.add_subcommand("node", "The daemon of one host: joins a coordinator and runs its share of the workers");
  sub->add_option("--join", options->join, "The coordinator (`run` or `validate` with --listen)")->type_name("tcp://HOST:PORT");
  sub->add_option("--key-file", options->key_file, "The job's keys, as the coordinator wrote them; says also where it is, without --join")
      ->type_name("FILE");
  sub->add_option("--index", options->index, "This node's place in the cluster, from 0 (default: the first that is free)")
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--host", options->host, "This machine as the other nodes reach it (default: its address towards the coordinator)");
  sub->add_option_function<int>(
         "--wait", [options](int seconds) { options->wait = std::chrono::seconds(seconds); },
         "How long to wait for the coordinator (default: 5 minutes)")
      ->type_name("SECONDS")
      ->check(positiveWhole());
  return [options] { return runNode(*options, [](const std::string& line) { fmt::print(stderr, "pipeshard node: {}\n", line); }); };
}

}  // namespace pipeshard
