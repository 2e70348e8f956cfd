#include "planning/directory/plan_directory.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "ir/plan/plan_json.h"
#include "ir/program/program_json.h"
#include "onnx_import/format/device_configuration.h"
#include "onnx_import/format/device_sharding.h"
#include "onnx_import/format/writer.h"
#include "partition/cut/node_stages.h"
#include "partition/cut/stage_shardings.h"
#include "planning/directory/refresh_programs.h"
#include "runtime/execute/step_runner.h"
#include "runtime/files/durable_folder.h"
#include "runtime/files/weight_check.h"
#include "runtime/identity/plan_programs.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

}  // namespace

void writeRank(const RankProgram& rank, const fs::path& directory) {
  makeFolder(directory);
  writeTextFile((directory / "program.json").string(), programToJson(rank.program));
  for (size_t i = 0; i < rank.subgraphs.size(); ++i)
    writeModel(rank.subgraphs[i], (directory / rank.program.subgraphs[i].file).string());
}

namespace {

// `inside`: the folder in each rank's.
void writeStep(const StepPrograms& step, const fs::path& directory, const char* inside) {
  for (RankId rank : step.ranks.ids()) {
    writeRank(step.ranks[rank], directory / "ranks" / rankDirectoryName(rank) / inside);
  }
  writeRank(step.reference, directory / "reference" / "ranks" / rankDirectoryName(RankId(0)) / inside);
}

void writeWeightFiles(const std::vector<const Program*>& programs, const fs::path& directory) {
  writeTextFile((directory / kWeightFilesName).string(), weightFilesToJson(recordWeightFiles(programs)));
}

// Of a node: its inputs as its strategy needs them, its outputs as they are kept.
NodeSharding nodeSharding(const Graph& graph, NodeId id, const StageSharding& sharding) {
  NodeSharding annotated;
  const Node& node = graph.node(id);
  const Strategy& strategy = sharding.strategies[id.index()];
  const auto fits = [&](ValueId value, const ShardingSpec& spec) {
    return value.valid() && spec.axes.size() == graph.shape(value).size();
  };
  for (size_t i = 0; i < node.inputs.size() && i < strategy.inputs.size(); ++i) {
    annotated.inputs.emplace_back();
    if (fits(node.inputs[i], strategy.inputs[i])) annotated.inputs.back() = strategy.inputs[i];
  }
  for (ValueId output : node.outputs) {
    annotated.outputs.emplace_back();
    if (output.valid() && fits(output, sharding.kept[output.index()]))
      annotated.outputs.back() = sharding.kept[output.index()];
  }
  return annotated;
}

// Partial sums, and weights that are kept in another sharding than they are read in, stay unsaid: plan.json
// has them.
void annotateSharded(const PlannedTraining& planned, const std::string& configuration,
                     const std::vector<StageId>& stage_of, Graph& graph) {
  if (!hasShardedStage(planned.plan)) return;
  const IdVector<StageId, std::optional<StageSharding>> shardings =
      shardingsOf(planned.training, planned.plan);
  std::vector<StageDevices> stages;
  for (const StageId s : shardings.ids()) {
    StageDevices& stage = stages.emplace_back();
    if (!shardings[s]) continue;
    stage.mesh = shardings[s]->mesh;
    for (RankId rank : planned.plan.stages[s].devices) stage.devices.push_back(rank.index());
  }
  std::vector<NodeSharding> nodes(graph.nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n) {
    const std::optional<StageSharding>& sharding = shardings.at(stage_of[n]);
    // Of prologues and of what nothing needs, a sharding says nothing.
    if (sharding && !sharding->strategies[n].outputs.empty())
      nodes[n] = nodeSharding(planned.training.graph, NodeId(n), *sharding);
  }
  annotateShardings(graph, configuration, stages, nodes);
}

int rankCount(const Plan& plan) {
  int count = 0;
  for (const StagePlan& stage : plan.stages) {
    for (RankId device : stage.devices) count = std::max<int>(count, device.next().index());
  }
  return count;
}

// The training graph as a model of its own: every phase, with phase and stage of each node in its metadata,
// and the stage in ONNX's device configuration "pipeshard" too, with the shardings of the stages that have
// one.
Graph annotatedModel(const PlannedTraining& planned) {
  Graph graph = planned.training.graph;
  const std::vector<StageId> stages = nodeStages(planned.training, planned.plan);
  std::vector<int> numbers;  // as ONNX has them
  for (const StageId stage : stages) numbers.push_back(stage.index());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    graph.nodes[n].metadata.emplace_back("pipeshard.phase", phaseName(planned.training.node_phase[n]));
    graph.nodes[n].metadata.emplace_back("pipeshard.stage", std::to_string(numbers[n]));
  }
  // Weights stay where the model has them, so here they are inputs.
  for (auto it = graph.initializers.begin(); it != graph.initializers.end();) {
    if (const auto* reference = std::get_if<WeightReference>(&it->second)) {
      Value& value = graph.value(it->first);
      value.metadata.emplace_back("pipeshard.weight",
                                  fmt::format("{}@{}", reference->location, reference->offset));
      graph.inputs.push_back(it->first);
      it = graph.initializers.erase(it);
    } else {
      ++it;
    }
  }
  DeviceConfiguration configuration{"pipeshard", {}};
  for (int rank = 0; rank < rankCount(planned.plan); ++rank)
    configuration.devices.push_back(fmt::format("rank{}", rank));
  annotatePipelineStages(graph, configuration, numbers);
  annotateSharded(planned, configuration.name, stages, graph);
  return graph;
}

// All of them have been verified when they were made.
void writePrograms(const PlannedTraining& planned, const fs::path& directory) {
  writeStep(planned.whole, directory, "");
  if (planned.last) writeStep(*planned.last, directory, kLastBatchFolder);
  std::vector<const Program*> programs;
  for (const RankProgram& rank : planned.whole.ranks) programs.push_back(&rank.program);
  writeWeightFiles(programs, directory);
  writeWeightFiles({&planned.whole.reference.program}, directory / "reference");
  recordPrograms(directory.string());
  recordPrograms((directory / "reference").string());
  if (!planned.imported) return;
  writeRank(*planned.imported, directory / kImportedFolder / "ranks" / rankDirectoryName(RankId(0)));
  writeWeightFiles({&planned.imported->program}, directory / kImportedFolder);
  recordPrograms((directory / kImportedFolder).string());
}

}  // namespace

void writePlanDirectory(const PlannedTraining& planned, const std::string& directory,
                        const std::function<void(const std::string& folder)>& complete,
                        std::chrono::milliseconds patience) {
  fs::path target = fs::absolute(directory).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // "gpt2.plan/"
  if (fs::exists(target) && !fs::exists(target / "plan.json") &&
      !(fs::is_directory(target) && fs::is_empty(target))) {
    fail(ErrorCode::kConfiguration, "{} exists and is no plan directory; choose another -o", target.string());
  }
  PartialFolder built(target);
  if (!planned.whole.ranks.empty()) writePrograms(planned, built.path());
  writeModel(annotatedModel(planned), (built.path() / "model.onnx").string());
  writeTextFile((built.path() / "plan.json").string(), planToJson(planned.plan));
  writeTextFile((built.path() / kMadeFromName).string(), madeFrom(planned.plan));
  if (complete) complete(built.path().string());
  built.publish(patience);
}

bool hasPrograms(const std::string& directory) {
  std::error_code ignored;
  return fs::exists(fs::path(directory) / "ranks", ignored);
}

void requirePlanDirectory(const std::string& directory) {
  std::error_code ignored;
  if (fs::exists(fs::path(directory) / "plan.json", ignored)) return;
  fail(ErrorCode::kMissingInput,
       "{} cannot be read; is {} a plan directory, as `pipeshard plan MODEL -o DIR` writes it?",
       (fs::path(directory) / "plan.json").string(), directory);
}

std::string readPlanText(const std::string& path) {
  std::error_code ignored;
  const bool is_file = fs::is_regular_file(path, ignored);
  if (!is_file) requirePlanDirectory(path);
  return requireTextFile(is_file ? path : (fs::path(path) / "plan.json").string());
}

Plan readPlanFile(const std::string& path) {
  const std::string text = readPlanText(path);
  try {
    return planFromJson(text);
  } catch (Error& error) {
    error.addContext(fs::is_directory(path) ? (fs::path(path) / "plan.json").string() : path);
    throw;
  }
}

Plan readPlanDirectory(const std::string& directory) {
  requirePlanDirectory(directory);
  return readPlanFile(directory);
}

}  // namespace pipeshard
