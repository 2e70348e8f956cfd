// Solves a problem of the ASPLOS 2025 / EuroSys 2025 contest on intra-operator parallelism: iopddl
// PROBLEM.json.gz SECONDS [options]. The last line on stdout is the result; --solution FILE also gets the
// chosen strategy of each node as a JSON list.

#include <chrono>
#include <cstdio>
#include <fstream>

#include <CLI/CLI.hpp>

#include "benchmarks/iopddl_file.h"
#include "ir/base/error.h"

namespace {

using pipeshard::ErrorCode;

struct Arguments {
  std::string problem;
  double seconds = 0;
  std::string solution;
  uint64_t seed = 1;
  int threads = 2;
};

void writeSolution(const std::string& path, const std::vector<int32_t>& choice) {
  std::ofstream stream(path);
  stream << fmt::format("[{}]\n", fmt::join(choice, ","));
  stream.close();
  if (!stream) pipeshard::fail(ErrorCode::kDiskFull, "cannot write {}", path);
}

int run(const Arguments& arguments) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const pipeshard::SolverProblem problem = pipeshard::readIopddl(arguments.problem);
  double told = 0;
  pipeshard::SolverOptions options;
  options.seconds = std::max(0.0, arguments.seconds - seconds());
  options.step_limit = -1;
  options.seed = arguments.seed;
  options.threads = arguments.threads;
  options.progress = [&](const pipeshard::SolverProgress& progress) {
    if (seconds() < told + 2) return;
    told = seconds();
    const std::string cost = progress.feasible ? fmt::format("{}", progress.cost) : "none yet";
    fmt::print(stderr, "{:6.1f} s  cost {}  lower bound {}\n", told, cost, progress.lower_bound);
  };
  const pipeshard::SolverSolution solution = pipeshard::solve(problem, options);
  if (solution.infeasibility) fmt::print(stderr, "{}\n", pipeshard::describe(*solution.infeasibility));
  if (!arguments.solution.empty() && solution.feasible) writeSolution(arguments.solution, solution.choice);
  fmt::print("cost={} lower_bound={} gap={:.6f} seconds={:.2f} feasible={}\n", solution.cost,
             solution.lower_bound, solution.gap(), seconds(), solution.feasible ? "yes" : "no");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"Solves a problem of the ASPLOS 2025 contest on intra-operator parallelism (IOPDDL)",
               "iopddl"};
  app.add_option("problem", arguments.problem, "problem file, JSON or gzip")->required();
  app.add_option("seconds", arguments.seconds, "limit of time, reading included")
      ->required()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--solution", arguments.solution, "file for the chosen strategies, a JSON list");
  app.add_option("--seed", arguments.seed, "another seed, another search");
  app.add_option("--threads", arguments.threads, "threads")->check(CLI::Range(1, 1024));
  try {
    app.parse(argc, argv);
    return run(arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(ErrorCode::kUsage);
  } catch (const pipeshard::Error& error) {
    fmt::print(stderr, "iopddl: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "iopddl: {}\n", error.what());
    return static_cast<int>(ErrorCode::kInternal);
  }
}
