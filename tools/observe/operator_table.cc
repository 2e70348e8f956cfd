#include "tools/observe/operator_table.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/amounts.h"
#include "runtime/execute/rank_image.h"
#include "runtime/execute/subgraph.h"
#include "runtime/kernels/base/cpu_kernels.h"
#include "runtime/kernels/fusion/fused_groups.h"
#include "sharding/specs/cost_model.h"
#include "sharding/spmd/work_count.h"
#include "tools/report/text_table.h"

namespace pipeshard {
namespace {

// What a node is called and does, once.
struct NodeFacts {
  std::string name;
  double flops = 0, bytes = 0, floor = 0;
};

NodeFacts factsOf(const Graph& graph, const Node& node, const KernelRates& rates) {
  NodeFacts facts{node.op_type};
  for (const char* flag : {"transA", "transB"}) {
    if (node.hasAttribute(flag) && node.intAttribute(flag, 0) != 0) facts.name += fmt::format(" {}", flag);
  }
  if (collectiveKind(node)) return facts;
  const NodeWork work = nodeWork(graph, node, factorRule(graph, node));
  const bool multiplies =
      work.work_class == WorkClass::kContraction || work.work_class == WorkClass::kConvolution;
  facts.flops = multiplies ? work.flops : 0;
  facts.bytes = static_cast<double>(work.bytes);
  facts.floor = std::max(facts.flops / rates.flops, facts.bytes / rates.bytes);
  return facts;
}

// Of nodes that run as one: what comes from outside is read once, and what goes there written.
NodeFacts factsOf(const Graph& graph, const kernels::FusedGroup& group, const KernelRates& rates) {
  NodeFacts facts{"elementwise, fused"};
  for (const std::vector<ValueId>* ids : {&group.inputs, &group.outputs}) {
    for (const ValueId id : *ids) facts.bytes += static_cast<double>(graph.bytes(id));
  }
  facts.floor = facts.bytes / rates.bytes;
  return facts;
}

// By kind of rank and subgraph, each as it is run.
class RunGraphs {
 public:
  RunGraphs(const std::string& plan_directory, bool fuses, KernelRates rates)
      : folder_(plan_directory), fuses_(fuses), rates_(rates) {}

  const NodeFacts& facts(RankId rank, const NodeTime& time) {
    const KindId kind = folder_.kindOf(rank);
    const auto [place, is_new] = facts_.try_emplace({kind, time.subgraph});
    if (is_new) {
      const Program program = folder_.program(rank);
      const Graph graph =
          runnableGraph(folder_.graphOf(program.subgraphs.at(time.subgraph.index())), cpuKernels());
      for (const Node& node : graph.nodes) place->second.push_back(factsOf(graph, node, rates_));
      if (fuses_) {
        for (const kernels::FusedGroup& group : kernels::findFusedGroups(graph, kernels::memoryRoots(graph)))
          place->second[group.nodes.back()] = factsOf(graph, group, rates_);
      }
    }
    return place->second.at(time.node);
  }

 private:
  ProgramFolder folder_;
  bool fuses_;
  KernelRates rates_;
  std::map<std::pair<KindId, SubgraphId>, std::vector<NodeFacts>> facts_;
};

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }
std::string duration(double seconds) { return formatNanoseconds(static_cast<int64_t>(seconds * 1e9)); }

}  // namespace

OperatorTable tabulateOperators(const JobSpec& job, const JobResult& result) {
  OperatorTable table;
  for (const RankResult& rank : result.ranks) {
    table.rates.flops = std::max(table.rates.flops, rank.operators.rates.flops);
    table.rates.bytes = std::max(table.rates.bytes, rank.operators.rates.bytes);
  }
  RunGraphs graphs(job.plan_directory, !job.find_nan, table.rates);
  std::map<std::string, OperatorRow> rows;
  for (const RankId rank : result.ranks.ids()) {
    const RankOperators& of_rank = result.ranks[rank].operators;
    if (of_rank.steps == 0) continue;
    const auto steps = static_cast<double>(of_rank.steps);
    table.steps = std::max(table.steps, of_rank.steps);
    table.step_seconds += of_rank.step_seconds / steps;
    for (const NodeTime& time : of_rank.nodes) {
      const NodeFacts& facts = graphs.facts(rank, time);
      OperatorRow& row = rows[facts.name];
      const double runs = static_cast<double>(time.runs) / steps;
      row.name = facts.name;
      row.runs += time.runs / of_rank.steps;
      row.seconds += time.seconds / steps;
      row.flops += facts.flops * runs;
      row.bytes += facts.bytes * runs;
      row.floor += facts.floor * runs;
    }
  }
  for (auto& [name, row] : rows) table.rows.push_back(std::move(row));
  std::stable_sort(table.rows.begin(), table.rows.end(),
                   [](const OperatorRow& a, const OperatorRow& b) { return a.seconds > b.seconds; });
  return table;
}

std::string printOperators(const OperatorTable& table) {
  if (table.rows.empty()) return "operators: no step of a whole batch was measured\n";
  std::vector<std::vector<std::string>> cells{
      {"operator", "runs", "time", "share", "GFLOP/s", "GB/s", "floor", "times floor"}};
  OperatorRow all{"all operators"};
  const auto add = [&](const OperatorRow& row) {
    const bool is_priced = row.floor > 0 && row.seconds > 0;
    cells.push_back({row.name, std::to_string(row.runs), duration(row.seconds),
                     percent(row.seconds / table.step_seconds),
                     row.flops > 0 && is_priced ? fmt::format("{:.0f}", row.flops / row.seconds / 1e9) : "-",
                     is_priced ? fmt::format("{:.1f}", row.bytes / row.seconds / 1e9) : "-",
                     is_priced ? duration(row.floor) : "-",
                     is_priced ? fmt::format("{:.2f}", row.seconds / row.floor) : "-"});
  };
  for (const OperatorRow& row : table.rows) {
    add(row);
    all.runs += row.runs;
    all.seconds += row.seconds;
    all.floor += row.floor;
    all.flops += row.flops;
    all.bytes += row.bytes;
  }
  add(all);
  const double rest = std::max(0.0, table.step_seconds - all.seconds);
  cells.push_back(
      {"the rest of the step", "", duration(rest), percent(rest / table.step_seconds), "", "", "", ""});
  return fmt::format(
      "operators of a step, all ranks together, mean over {} step{}; floor: at {:.0f} GFLOP/s and {:.1f} "
      "GB/s, which "
      "kernels reach here\n{}",
      table.steps, table.steps == 1 ? "" : "s", table.rates.flops / 1e9, table.rates.bytes / 1e9,
      formatTable(cells));
}

std::string operatorsToJson(const OperatorTable& table) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const OperatorRow& row : table.rows) {
    rows.push_back({{"operator", row.name},
                    {"runs", row.runs},
                    {"seconds", row.seconds},
                    {"flops", row.flops},
                    {"bytes", row.bytes},
                    {"floor_seconds", row.floor}});
  }
  const nlohmann::ordered_json all{{"steps", table.steps},
                                   {"step_seconds", table.step_seconds},
                                   {"flops_per_second", table.rates.flops},
                                   {"bytes_per_second", table.rates.bytes},
                                   {"rows", rows}};
  return all.dump();
}

}  // namespace pipeshard
