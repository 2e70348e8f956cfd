#include "tools/options/node_options.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "ir/base/ids_format.h"
#include "tools/options/option_checks.h"

namespace pipeshard {

void addListenOptions(CLI::App& command, ListenOptions& options) {
  const char* group = "Nodes (without --listen, all workers run on this machine)";
  command
      .add_option("--listen", options.listen,
                  "Run on the nodes of the plan's cluster: wait here until they have joined with\n`pipeshard "
                  "node --join`; port * takes a free one")
      ->type_name("tcp://ADDRESS:PORT")
      ->group(group);
  command
      .add_option("--key-file", options.pool.key_file,
                  "Write this job's keys here, for the nodes; only who can read it can join")
      ->type_name("FILE")
      ->group(group);
  command
      .add_option("--advertise", options.pool.advertise,
                  "The name or address under which nodes reach this machine")
      ->type_name("HOST")
      ->group(group);
  command
      .add_flag("--insecure", options.pool.insecure,
                "Listen without keys: whoever reaches the port can take part in the job")
      ->group(group);
  command
      .add_option_function<std::string>(
          "--data-plane", [&options](const std::string& text) { options.data_plane = parseDataPlane(text); },
          "Tensors between nodes: curve (default) encrypts them, and only nodes of the job take part;\n"
          "private does neither (Gloo), for a network whose machines you all trust")
      ->type_name("curve|private")
      ->group(group);
  command
      .add_option_function<int>(
          "--node-timeout", [&options](int seconds) { options.pool.wait = std::chrono::seconds(seconds); },
          "How long to wait for all nodes (default: 5 minutes)")
      ->type_name("SECONDS")
      ->check(positiveWhole())
      ->group(group);
  command
      .add_option_function<int>(
          "--patience", [&options](int seconds) { options.pool.patience = std::chrono::seconds(seconds); },
          "How long a node may be cut off from the others until the job ends (default: 4; 60 at most)")
      ->type_name("SECONDS")
      ->check(CLI::Range(4, 60))
      ->group(group);
  // Given by `pipeshard node COMMAND`.
  command.add_option("--generation", options.pool.generation, "")->group("");
  command.add_option("--launched-nodes", options.launched_nodes, "")->group("");
}

void refuseListenOptionsInVain(const CLI::App& command, const ListenOptions& options) {
  if (options.pool.insecure && !options.pool.key_file.empty() && !options.listen.empty()) {
    fail(ErrorCode::kUsage,
         "--insecure listens without keys, and --key-file {} has keys; leave out one of them",
         options.pool.key_file);
  }
  if (!options.listen.empty()) return;
  refuseInVain(command,
               {"--key-file", "--advertise", "--insecure", "--data-plane", "--node-timeout", "--patience"},
               "--listen tcp://ADDRESS:PORT");
}

namespace {

// What one encrypted connection carries, about (benchmarks/README.md, wire_ratio): bytes per nanosecond.
constexpr double kEncryptedRate = 0.5;

// For daemons that a launcher has started: less than they wait for their command to end, more than a folder
// of NFS takes to show a new file (30 s).
constexpr std::chrono::seconds kLaunchedAreLate{45};

// Daemons that may come late, and how late.
void awaitLaunched(const ListenOptions& options, NodePoolOptions& pool) {
  pool.awaited = options.launched_nodes;
  if (options.launched_nodes > 0) pool.late = kLaunchedAreLate;
  pool.late = std::min(pool.late, pool.wait);
}

// Where the plan counts on links that are several times faster than what encryption leaves of them.
void sayIfEncryptionLimits(const Cluster& cluster) {
  double rate = 0;
  for (const ClusterNode& node : cluster.nodes) {
    const bool is_known = !cluster.kinds.at(node.kind).source.empty() && node.nic.measured.points.empty();
    if (is_known) rate = std::max(rate, node.nic.bytes_per_ns * node.nics);
  }
  if (cluster.nodeCount() < 2 || rate < 4 * kEncryptedRate) return;
  fmt::print(
      stderr,
      "tensors between nodes are encrypted: about {} GB/s for each pair of nodes, where the plan counts on "
      "{:.1f}; on a private network (docs/nodes.md), --data-plane private leaves encryption out\n",
      kEncryptedRate, rate);
}

}  // namespace

std::unique_ptr<NodePool> listenForNodes(const ListenOptions& options, const Cluster& cluster, JobSpec& job,
                                         bool takes_spares) {
  if (options.listen.empty()) return nullptr;
  PIPESHARD_CHECK(job.signals != nullptr, "a signal would leave the key file behind");
  const bool are_too_few = options.launched_nodes < cluster.nodeCount();
  const bool are_too_many = options.launched_nodes > cluster.nodeCount() && !takes_spares;
  if (options.launched_nodes > 0 && (are_too_few || are_too_many)) {
    fail(ErrorCode::kConfiguration,
         "{} node daemons were launched, but the plan is for a cluster of {} nodes; plan with --cluster {}",
         options.launched_nodes, cluster.nodeCount(),
         cluster.isUniform() ? fmt::format("{}x{}", options.launched_nodes, cluster.devicesPerNode())
                             : "FILE of so many nodes");
  }
  NodePoolOptions pool_options = options.pool;
  pool_options.listen = options.listen;
  pool_options.count = cluster.nodeCount();
  pool_options.takes_spares = takes_spares;
  awaitLaunched(options, pool_options);
  for (const ClusterNode& node : cluster.nodes) pool_options.devices.push_back(node.devices);
  auto pool = std::make_unique<NodePool>(pool_options);
  for (RankId rank : idsBelow<RankId>(countRanks(job.plan_directory)))
    job.node_of_rank.push_back(cluster.nodeOf(rank.index()));
  job.nodes = pool.get();
  job.data_plane = options.data_plane;
  if (options.data_plane == DataPlane::kCurve) sayIfEncryptionLimits(cluster);
  fmt::print(stderr, "waiting for {} node{}; start on each host: {}\n", cluster.nodeCount(),
             cluster.nodeCount() == 1 ? "" : "s", pool->joinCommand());
  return pool;
}

void tellNodesOfEnd(const ListenOptions& options, std::unique_ptr<NodePool> pool,
                    std::optional<SignalWatch>& signals, int exit_code, const std::string& why) try {
  if (!signals) signals.emplace();
  if (!pool) {
    std::error_code ignored;
    if (std::filesystem::exists(options.pool.key_file, ignored)) return;
    NodePoolOptions late = options.pool;
    late.listen = options.listen;
    awaitLaunched(options, late);
    if (late.awaited == 0) late.awaited = std::numeric_limits<int>::max();  // the plan was not read
    pool = std::make_unique<NodePool>(late);
  }
  pool->dismiss(exit_code, why);
  if (!pool->awaitsMore()) return;
  fmt::print(stderr, "nodes that come within {} s of the beginning are told that the job is over\n",
             pool->late().count());
  pool->tellLateNodes([&] {
    const int signal = signals->take();
    return signal != 0 && signal != SIGPIPE;  // who read the output may have gone long before
  });
} catch (const Error&) {
  // How the command itself ended is what counts.
}

int runWithNodes(const ListenOptions& options, std::optional<SignalWatch>& signals,
                 std::unique_ptr<NodePool>& pool, const std::function<int()>& command,
                 const std::function<int(const Error&)>& report) {
  if (options.listen.empty()) return command();
  try {
    const int code = command();
    std::fflush(stdout);
    tellNodesOfEnd(options, std::move(pool), signals, code, "");
    return code;
  } catch (const JobInterrupted& interrupted) {
    if (pool) pool->dismiss(interrupted.exitCode(), interrupted.message());
    throw;
  } catch (const Error& error) {
    std::fflush(stdout);
    const int code = report(error);
    tellNodesOfEnd(options, std::move(pool), signals, code, error.message());
    return code;
  }
}

void showNodes(const JobProgress& event) {
  if (event.kind == JobProgress::Kind::kNotice) fmt::print(stderr, "{}\n", event.text);
  if (event.kind == JobProgress::Kind::kLoaded && !event.text.empty())
    fmt::print(stderr, "rank {} computes on {}\n", event.rank, event.text);
  if (event.kind != JobProgress::Kind::kNodeJoined) return;
  fmt::print(stderr, "node {} joined: host {}, pid {}\n", event.node, event.host, event.pid);
}

}  // namespace pipeshard
