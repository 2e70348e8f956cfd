// The choice of one strategy per value at least total cost: the problem, and the solver for it.
//
// A problem has nodes (each chooses one of its strategies, at a cost and a memory usage) and edges (a table
// of costs over the choices of the nodes that it joins). The memory of all nodes that are live at a time must
// stay within the limit, at every time. This is the problem of the ASPLOS 2025 contest on intra-operator
// parallelism ("IOPDDL"), whose files benchmarks/iopddl reads.
//
//   SolverProblem problem;
//   problem.nodes = {{.from = 0, .to = 2, .costs = {10, 0}, .usages = {1, 8}},
//                    {.from = 1, .to = 3, .costs = {0, 3}, .usages = {4, 2}}};
//   problem.edges = {{.nodes = {0, 1}, .costs = {0, 5, 7, 0}}};  // costs[choice of 0 * 2 + choice of 1]
//   problem.usage_limit = 9;
//   SolverSolution solution = solve(problem);
//   // choice {0, 0}: cost 10, 5 bytes at time 1. {1, 1} costs 3 but needs 10 bytes at time 1.
//   // cost == lower_bound == 10, optimal.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace pipeshard {

// A cost of this or more (of a strategy, or in a table) forbids the choice.
inline constexpr int64_t kForbiddenCost = 1'000'000'000'000'000'000;

// Sums of costs and of bytes.
__extension__ typedef __int128 Int128;

struct SolverProblem {
  struct Node {
    int64_t from = 0;  // live at times [from, to); never live if from >= to
    int64_t to = 0;
    std::vector<int64_t> costs = {};   // by strategy: at least one; >= 0
    std::vector<int64_t> usages = {};  // by strategy, bytes >= 0; empty: none
  };
  // Joins two nodes, one (a second cost of that node) or more (then at most 2^16 entries); a node may be
  // named more than once.
  struct Edge {
    std::vector<int32_t> nodes = {};
    std::vector<int64_t> costs = {};  // >= 0; row-major: the choice of the last node varies fastest
  };
  std::vector<Node> nodes = {};
  std::vector<Edge> edges = {};
  std::optional<int64_t> usage_limit = {};  // bytes that live at any one time; none: no limit
};

struct SolverProgress {
  double seconds = 0;
  bool feasible = false;  // whether `cost` is known
  Int128 cost = 0;        // of the best choice so far
  Int128 lower_bound = 0;
};

struct SolverOptions {
  // The clock only cuts short, and the solution says so; negative: no limit. Time is measured from the call
  // of solve().
  double seconds = -1;
  // Work allowed for search once reduction and exact elimination have not proven an optimum, in steps of
  // 250,000 table entries (about a millisecond each); negative: no limit, which is allowed only together with
  // `seconds`. It is looked at between rounds of work, so that a little more may be done. The same problem,
  // seed and step limit give the same choice on every machine, with any number of threads, unless the clock
  // cut it.
  int64_t step_limit = 4000;
  // Without a usage limit, or where it does not bind: what elimination alone may take before bounds are
  // tried, in such steps. Small problems that are asked for often do better with little: bounds leave less to
  // eliminate.
  int64_t exact_steps = 8590;
  uint64_t seed = 1;
  int threads = 2;
  // Told now and then, by the calling thread.
  std::function<void(const SolverProgress&)> progress = {};
};

// Why there is no choice.
struct SolverInfeasibility {
  enum class Reason : uint8_t {
    kForbidden,  // every choice meets a forbidden cost
    kMemory,     // too little memory
  };
  Reason reason = Reason::kForbidden;
  bool proven = false;  // false: none was found within the limits
  // kMemory: the time of the largest excess in the best attempt (or, if proven, of the least possible one)
  int64_t time = 0;
  // kMemory: the nodes live at `time` that use memory, the largest first.
  // kForbidden: nodes that contradict each other, if known.
  std::vector<int32_t> nodes = {};
  Int128 usage = 0;   // kMemory: bytes at `time`
  Int128 excess = 0;  // kMemory: bytes over the limit at `time`
};

struct SolverSolution {
  bool feasible = false;
  std::vector<int32_t> choice = {};  // by node; empty if not feasible
  Int128 cost = 0;                   // of `choice`
  // No feasible choice costs less. Equal to `cost` if optimal.
  Int128 lower_bound = 0;
  bool optimal = false;    // proven
  bool cut_short = false;  // the clock ended the search: another run may answer differently
  int64_t steps = 0;       // work spent on search, as SolverOptions::step_limit counts
  double seconds = 0;
  std::optional<SolverInfeasibility> infeasibility = {};  // set if not feasible

  // (cost - lower_bound) / cost; 0 if the cost is 0.
  double gap() const;
};

// Finds a choice of least cost, or the best within the limits. Thread-safe: calls share nothing. Errors:
// kConfiguration for a problem that is malformed (a table of the wrong size, a node that does not exist, a
// negative cost; the message names the node or edge), for usages that exceed 2^62 bytes together, and for
// limits that would never end. The search calculates in doubles: it is exact while the largest costs of all
// nodes and edges together are below 2^53 (the costs of the solution always are); beyond, a choice may be
// called best by mistake of one part in 10^11, and is not called optimal.
SolverSolution solve(const SolverProblem& problem, const SolverOptions& options = {});

// One line: "too little memory: at time 5, 10 bytes are live where 9 fit (1 over), in nodes 0, 1".
std::string describe(const SolverInfeasibility& infeasibility);

}  // namespace pipeshard
