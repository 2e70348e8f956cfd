#include "benchmarks/suite_models.h"

#include <cstdlib>
#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include "ir/plan/optimizer.h"
#include "partition/layers/layers.h"
#include "partition/stages/asked_stages.h"
#include "planning/model/training_step.h"
#include "planning/pipeline.h"

namespace pipeshard {
namespace {

std::string exportModel(const SuiteModel& model, const std::string& folder) {
  const std::string path = folder + "/" + model.name() + ".onnx";
  if (std::filesystem::exists(path)) return path;
  const char* environment = std::getenv("PIPESHARD_EXPORT_VENV");
  if (environment == nullptr) return "";
  const std::string module = model.family == "gpt" ? "gpt2" : model.family == "wrn" ? "resnet" : "moe";
  const std::string command = fmt::format(
      "'{}/bin/python' '{}/tools/export/export.py' {} {} --no-weights --output '{}' >/dev/null", environment,
      PIPESHARD_SOURCE_DIR, module, model.options.empty() ? "--size " + model.size : model.options, path);
  return std::system(command.c_str()) == 0 ? path : "";
}

}  // namespace

Cluster suiteCluster(int gpus) {
  Cluster cluster = parseCluster(gpus <= 8 ? fmt::format("p3.16xlarge:1x{}", gpus)
                                           : fmt::format("p3.16xlarge:{}", gpus / 8));
  for (DeviceKind& kind : cluster.kinds) kind.memory_bytes = kUsableMemory;
  return cluster;
}

bool Models::has(const SuiteModel& model) const { return !exportModel(model, folder_).empty(); }

const Step& Models::step(const SuiteRow& row, int64_t microbatches) {
  std::unique_ptr<Step>& step = steps_[row.model.name()][{microbatches, row.layers}];
  if (step) return *step;
  PlanRequest request;
  request.model_path = exportModel(row.model, folder_);
  request.allow_missing_weights = true;
  request.given.optimizer = parseOptimizer(row.model.optimizer());
  if (row.model.isHalf()) request.given.precision = DataType::kFloat16;
  request.dimensions = {{"batch", row.batch}};
  request.microbatches = microbatches;
  const ForwardModel model = loadForward(request, askedStages(request.partition), [](const std::string&) {});
  step = std::make_unique<Step>();
  step->training = trainingFamily(model, request.given.optimizer, {row.batch, microbatches, true}).base();
  ClusteringOptions options;
  options.layers = row.layers;
  step->clustering = clusterTraining(step->training, options);
  step->flops = formulaFlops(row);
  if (step->flops == 0) {
    const std::vector<int64_t> forward = forwardFlops(step->training, forwardNodes(step->training));
    for (const int64_t flops : forward) step->flops += 4.0 * static_cast<double>(flops * microbatches);
  }
  return *step;
}

}  // namespace pipeshard
