#include "planning/directory/plan_directory.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "ir/plan/plan_json.h"
#include "onnx_import/format/device_configuration.h"
#include "onnx_import/format/device_sharding.h"
#include "onnx_import/format/writer.h"
#include "partition/cut/node_stages.h"
#include "partition/cut/stage_shardings.h"
#include "planning/directory/copied_weights.h"
#include "planning/directory/program_files.h"
#include "planning/directory/refresh_programs.h"
#include "runtime/execute/rank_image.h"
#include "runtime/files/durable_folder.h"
#include "runtime/files/weight_check.h"
#include "runtime/identity/plan_programs.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

// One kind reads what all its ranks read, but for copies.
void writeWeightFiles(const ProgramSet& set, bool copies, const fs::path& directory) {
  std::vector<Program> own;
  std::vector<const Program*> programs;
  for (const ProgramKind& kind : set.kinds) programs.push_back(&kind.program);
  if (copies) {
    programs.clear();
    for (const RankId rank : set.ranks.ids()) own.push_back(instantiate(set, rank));
    for (const Program& program : own) programs.push_back(&program);
  }
  writeTextFile((directory / kWeightFilesName).string(),
                weightFilesToJson(recordWeightFiles(programs, directory.string())));
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

// One folder of programs, with what is known of them and of their weights. All have been verified when they
// were made.
ProgramFolder writeFolder(ProgramsBySize sizes, const fs::path& folder, const ProgressCallback& progress,
                          bool copies = false) {
  WrittenPrograms written = writePrograms(std::move(sizes), folder.string(), progress);
  writeWeightFiles(written.sets.at(StepSize::kWholeBatch), copies, folder);
  ProgramFolder programs(folder.string(), std::move(written.sets));
  recordPrograms(programs, written.digests);
  return programs;
}

// Takes the programs. Returns the whole batch's, of all ranks. The whole batch's load the weights; those of
// other sizes find them loaded.
ProgramSet writeAllPrograms(PlannedTraining& planned, const fs::path& directory,
                            const ProgressCallback& progress) {
  std::map<StepSize, StepPrograms*> steps = {{StepSize::kWholeBatch, &planned.whole}};
  if (planned.last) steps[StepSize::kLastBatch] = &*planned.last;
  for (size_t k = 0; k < planned.shorter.size(); ++k) steps[{false, k + 1}] = &planned.shorter[k];
  ProgramsBySize ranks, references;
  for (const auto& [size, step] : steps) {
    ranks[size] = std::move(step->ranks);
    references[size] = aloneProgram(std::move(step->reference));
  }
  const bool copies = planned.plan.copies_weights;
  if (copies) copyWeights(ranks.at(StepSize::kWholeBatch).set, directory.string(), progress);
  ProgramFolder written = writeFolder(std::move(ranks), directory, progress, copies);
  writeFolder(std::move(references), directory / "reference", progress);
  if (planned.imported) {
    ProgramsBySize imported;
    imported[StepSize::kWholeBatch] = aloneProgram(std::move(*planned.imported));
    writeFolder(std::move(imported), directory / kImportedFolder, progress);
  }
  return written.takeSet();
}

}  // namespace

void writePlanDirectory(PlannedTraining planned, const std::string& directory, const CompletePlan& complete,
                        std::chrono::milliseconds patience, const ProgressCallback& progress) {
  fs::path target = fs::absolute(directory).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // "gpt2.plan/"
  if (fs::exists(target) && !fs::exists(target / "plan.json") &&
      !(fs::is_directory(target) && fs::is_empty(target))) {
    fail(ErrorCode::kConfiguration, "{} exists and is no plan directory; choose another -o", target.string());
  }
  PartialFolder built(target);
  ProgramSet programs;
  if (!planned.whole.ranks.empty()) programs = writeAllPrograms(planned, built.path(), progress);
  writeModel(annotatedModel(planned), (built.path() / "model.onnx").string());
  writeTextFile((built.path() / "plan.json").string(), planToJson(planned.plan));
  writeTextFile((built.path() / kMadeFromName).string(), madeFrom(planned.plan));
  if (complete) complete(built.path().string(), programs);
  built.publish(patience);
}

bool hasPrograms(const std::string& directory) {
  std::error_code ignored;
  const fs::path folder(
      directory);  // the folder ranks/ is of an older form, which is refused when it is read
  return fs::exists(folder / kRanksFileName, ignored) || fs::exists(folder / "ranks", ignored);
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
