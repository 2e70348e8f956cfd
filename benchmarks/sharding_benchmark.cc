// How long a stage's shardings take to choose: GPT-like training graphs by layers and mesh.
//   sharding_benchmark                    the table of benchmarks/README.md
//   sharding_benchmark LAYERS MESH HIDDEN METHOD
#include <chrono>
#include <cstdlib>
#include <string>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "sharding/stage/stage_context.h"
#include "tests/sharding/stage_models.h"

namespace pipeshard {
namespace {

double milliseconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - since).count();
}

void measure(int64_t layers, const LogicalMesh& mesh, int64_t hidden, const std::string& method) {
  const TrainingGraph training =
      testing::gpt({.layers = layers, .batch = 64, .sequence = 1024, .hidden = hidden, .heads = hidden / 64});
  const std::vector<NodeId> nodes = testing::allNodes(training);
  const CostModel model = CostModel::uniform(mesh);
  ShardStageOptions options;
  options.method = parseShardingMethod(method);
  const auto start = std::chrono::steady_clock::now();
  const StageContext context(training, nodes, mesh, model, options);
  const ShardingProblem problem(training, nodes, mesh, model, options, context.limits);
  const double build = milliseconds(start);
  const auto solving = std::chrono::steady_clock::now();
  const ShardingResult result = context.solve(problem, {});
  fmt::print("{:>6} {:>6} {:>7} {:<16} {:>6} {:>6} {:>10.1f} {:>10.1f} {:>18} {:>8}\n", layers,
             printMesh(mesh), hidden, method, nodes.size(), problem.variables().size(), build,
             milliseconds(solving), result.total_ns(), result.optimal ? "optimal" : "bound only");
  std::fflush(stdout);
}

}  // namespace
}  // namespace pipeshard

int main(int argc, char** argv) {
  using namespace pipeshard;
  try {
    fmt::print("{:>6} {:>6} {:>7} {:<16} {:>6} {:>6} {:>10} {:>10} {:>18} {:>8}\n", "layers", "mesh",
               "hidden", "method", "nodes", "choices", "build ms", "solve ms", "cost ns", "proof");
    if (argc == 5) {
      measure(std::atoll(argv[1]), parseMesh(argv[2]), std::atoll(argv[3]), argv[4]);
      return 0;
    }
    for (const char* mesh : {"8", "2x4", "8x8"}) {
      for (int64_t layers : {1, 4, 12, 48}) measure(layers, parseMesh(mesh), 1024, "auto");
    }
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
}
