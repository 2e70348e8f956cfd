#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "planning/fewer/host_plan.h"
#include "runtime/job/child_process.h"
#include "runtime/job/job.h"
#include "runtime/job/launcher_environment.h"
#include "runtime/job/node.h"
#include "tools/commands.h"
#include "tools/options/node_options.h"
#include "tools/options/option_checks.h"

namespace pipeshard {
namespace {

constexpr const char* kNodeHelp = R"(pipeshard node [OPTIONS] [COMMAND ...]

By hand, on any machines:
  host a:     pipeshard run gpt2.plan --steps 100 --listen tcp://10.0.0.1:7000 --key-file job.key
  all hosts:  pipeshard node --join tcp://10.0.0.1:7000 --key-file job.key        (a copy of job.key, or a folder that all share)

Under Slurm, Open MPI, torchrun and the like, one line does both: the daemon of the first host runs COMMAND as the coordinator, the
others join it. The key file is made in ~/.cache/pipeshard/jobs, which the hosts must share, or where --key-file says.
  srun --ntasks-per-node=1 pipeshard node run gpt2.plan --steps 100
  mpirun --map-by ppr:1:node pipeshard node validate gpt2.plan

Plan, model and data must have the same path on all hosts. Exit code: the command's, or 69 when the coordinator is lost.)";

struct NodeCommand {
  NodeOptions options;
  std::vector<std::string> command;

  int run() {
    const std::optional<LauncherPlace> place = detectLauncher(currentEnvironment());
    const auto say = [](const std::string& line) { fmt::print(stderr, "pipeshard node: {}\n", line); };
    if (place) {
      if (place->local_rank > 0) {
        say(fmt::format("nothing to do for local rank {}: the daemon of local rank 0 serves this host",
                        place->local_rank));
        return 0;
      }
      say(fmt::format("started by {} ({})", place->launcher, fmt::join(place->evidence, ", ")));
      useLauncher(*place);
    }
    if (options.insecure && !options.key_file.empty()) {
      fail(ErrorCode::kUsage, "--insecure joins without keys, and the key file {} has keys; leave out {}",
           options.key_file, place ? "--insecure" : "one of them");
    }
    if (!command.empty()) prepareCommand(place);
    options.complete_plan = [](const std::string& directory, int64_t held_out_rows, const auto& goes_on) {
      completePlan(directory, held_out_rows, [&](const std::string& phase) {
        if (!goes_on(phase)) throw JobInterrupted(SIGTERM);  // not an error of the plan, which would be kept
      });
    };
    const NodeEnd end = runNode(options, say);
    if (!options.command.empty() && !end.has_joined) tellOthers(end.exit_code, place);
    return end.exit_code;
  }

 private:
  // The command has ended before it listened: nodes of other hosts wait for it.
  void tellOthers(int exit_code, const std::optional<LauncherPlace>& place) const {
    ListenOptions listen;
    listen.listen = options.join.empty() ? "tcp://0.0.0.0:*" : options.join;
    listen.pool.key_file = options.key_file;
    listen.pool.generation = options.generation;
    listen.pool.wait = options.wait;
    if (place && place->nodes) listen.launched_nodes = *place->nodes - 1;  // this one is here
    if (place && place->nodes == 1) return;
    std::optional<SignalWatch> signals;
    tellNodesOfEnd(listen, nullptr, signals, exit_code,
                   exit_code == 0
                       ? ""
                       : fmt::format("`{}` has ended with {} before nodes could join; the output of "
                                     "the first node says why",
                                     command.front(), exit_code));
  }

  // What was given on the command line stays.
  void useLauncher(const LauncherPlace& place) {
    if (!options.index) options.index = place.node;
    options.generation = place.generation;
    if (options.key_file.empty() && options.join.empty() && !command.empty())
      options.key_file = defaultKeyFile(place);
  }

  static std::string defaultKeyFile(const LauncherPlace& place) {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    if (cache == nullptr && home == nullptr)
      fail(ErrorCode::kConfiguration,
           "HOME is not set; say with --key-file where the job's keys may be written");
    const std::filesystem::path folder =
        (cache != nullptr ? std::filesystem::path(cache) : std::filesystem::path(home) / ".cache") /
        "pipeshard/jobs";
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error)
      fail(ErrorCode::kDiskFull,
           "cannot make the folder {}: {}; say with --key-file where the job's keys may be written",
           folder.string(), error.message());
    return (folder / fmt::format("{}-{}.key", place.job, place.generation)).string();
  }

  // The first node runs it; elsewhere it is not used.
  void prepareCommand(const std::optional<LauncherPlace>& place) {
    if (place && !options.index) {
      fail(ErrorCode::kConfiguration,
           "{} does not tell which node this is; start the daemons with --index 0, 1, ...", place->launcher);
    }
    if (options.index.value_or(0) != 0) return;
    options.command = command;
    if (command.front() != "run" && command.front() != "validate") {
      fail(ErrorCode::kUsage, "'{}' cannot be run on nodes; expected `run` or `validate` with their options",
           command.front());
    }
    if (options.key_file.empty()) {
      fail(ErrorCode::kUsage,
           "{}the keys of the job need a place that all hosts share: give --key-file FILE before `{}`, as "
           "`pipeshard node --key-file FILE {} ...`",
           place ? "" : "no launcher (srun, mpirun, torchrun, ...) was recognised; ", command.front(),
           command.front());
    }
    const std::string port =
        place && place->coordinator_port ? std::to_string(*place->coordinator_port) : "*";
    const std::string listen = options.join.empty() ? "tcp://0.0.0.0:" + port : options.join;
    options.command.insert(options.command.end(), {"--listen", listen, "--key-file", options.key_file,
                                                   "--generation", std::to_string(options.generation)});
    // As long as its daemons wait for it, unless it is told itself.
    const auto is_told = [](const std::string& word) {
      return word == "--node-timeout" || word.starts_with("--node-timeout=");
    };
    if (std::none_of(command.begin(), command.end(), is_told))
      options.command.insert(options.command.end(), {"--node-timeout", std::to_string(options.wait.count())});
    if (place && place->nodes)
      options.command.insert(options.command.end(), {"--launched-nodes", std::to_string(*place->nodes)});
  }
};

}  // namespace

CommandFunction addNodeCommand(CLI::App& app) {
  auto node = std::make_shared<NodeCommand>();
  NodeOptions& options = node->options;
  CLI::App* sub = app.add_subcommand("node",
                                     "The daemon of one host: joins a coordinator, or starts COMMAND as one, "
                                     "and runs its share of the workers");
  sub->add_option("--join", options.join, "The coordinator (`run` or `validate` with --listen)")
      ->type_name("tcp://HOST:PORT");
  sub->add_option("--key-file", options.key_file,
                  "The job's keys, as the coordinator writes them; says also where it is, without --join")
      ->type_name("FILE");
  sub->add_flag(
      "--insecure", options.insecure,
      "Join another machine without keys: whoever is between the two can read and change everything");
  sub->add_option(
         "--index", options.index,
         "This node's place in the cluster, from 0\n(default: the launcher's, or the first that is free)")
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--host", options.host,
                  "This machine as the other nodes reach it (default: its address towards them)");
  sub->add_option_function<std::string>(
         "--data-ports",
         [node](const std::string& text) {
           const auto [first, last] = parsePorts("--data-ports", text);
           node->options.data_ports = {first, last};
         },
         "Listen for other nodes' tensors at the first of these ports that is free, one for each job\n"
         "(default: any free port)")
      ->type_name("FIRST-LAST");
  sub->add_option_function<int>(
         "--wait", [node](int seconds) { node->options.wait = std::chrono::seconds(seconds); },
         "How long to wait for the coordinator (default: 5 minutes)")
      ->type_name("SECONDS")
      ->check(positiveWhole());
  sub->add_option("--devices", options.devices,
                  "How many devices this host has for the job, where a run with --restarts chooses among "
                  "nodes\n(default: as many as the plan's cluster has in this node's place)")
      ->check(positiveWhole());
  sub->add_flag(
      "--rejoin", options.rejoin,
      "When the coordinator is lost, try to join it again (for as long as --wait) instead of ending");
  sub->prefix_command();
  sub->footer(kNodeHelp);
  return [node, sub] {
    node->command = sub->remaining();
    if (!node->command.empty() && node->command.front() == "--") node->command.erase(node->command.begin());
    if (!node->command.empty() && node->command.front().starts_with("-")) {
      fail(ErrorCode::kUsage, "unknown option '{}'; see `pipeshard node --help`", node->command.front());
    }
    return node->run();
  };
}

}  // namespace pipeshard
