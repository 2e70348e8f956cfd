#include "tools/planning.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/error.h"
#include "onnx_import/prepare.h"
#include "onnx_import/reader.h"
#include "runtime/kernels/kernel.h"
#include "sharding/rules/factor_rule.h"
#include "sharding/time_axis.h"

namespace pipeshard {
namespace {

// Larger weights stay in the .onnx file and are read by the workers that need them.
constexpr uint64_t kInlineWeightBytes = 4096;

// The symbolic dimension that is the batch: as told, else "batch" or "batch_size" or "N", else the only symbol on axis 0.
std::string findBatchDimension(const Graph& graph, const std::string& asked, int64_t microbatches) {
  std::set<std::string> all;
  std::set<std::string> leading;
  for (ValueId input : graph.inputs) {
    const std::vector<std::string>& symbols = graph.value(input).symbols;
    for (const std::string& symbol : symbols) {
      if (!symbol.empty()) all.insert(symbol);
    }
    if (!symbols.empty() && !symbols[0].empty()) leading.insert(symbols[0]);
  }
  if (!asked.empty()) {
    if (!all.contains(asked))
      fail(ErrorCode::kUsage, "--batch-dim {}: the model's symbolic dimensions are: {}", asked, fmt::join(all, ", "));
    return asked;
  }
  for (const char* usual : {"batch", "batch_size", "N"}) {
    if (all.contains(usual)) return usual;
  }
  if (leading.size() > 1 && microbatches > 1) {
    fail(ErrorCode::kUsage, "which dimension is the batch that --microbatches cuts? Choose one: --batch-dim {}",
         fmt::join(leading, ", or --batch-dim "));
  }
  return leading.size() == 1 ? *leading.begin() : "";
}

// At most two microbatches per stage, dividing the batch.
int64_t chooseMicrobatches(int64_t batch, int stages) {
  for (int64_t count = std::min<int64_t>(batch, 2 * stages); count > 1; --count) {
    if (batch % count == 0) return count;
  }
  return 1;
}

void decideMicrobatches(const PlanRequest& request, const Graph& graph, int stages, ForwardModel& model) {
  model.batch_dimension = findBatchDimension(graph, request.batch_dimension, request.microbatches);
  const auto bound = model.dimensions.find(model.batch_dimension);
  if (bound == model.dimensions.end()) {
    if (request.microbatches > 1 && model.batch_dimension.empty()) {
      fail(ErrorCode::kConfiguration,
           "{}: --microbatches {} needs a batch that can be cut, but no input has a symbolic batch dimension; export the model with a "
           "dynamic batch axis (torch.export.Dim(\"batch\")), or use --microbatches 1",
           request.model_path, request.microbatches);
    }
    model.microbatches = 1;  // unbound: prepareModel says which dimensions exist
    return;
  }
  model.microbatches = request.microbatches > 0 ? request.microbatches : chooseMicrobatches(bound->second, stages);
  if (bound->second % model.microbatches != 0) {
    fail(ErrorCode::kConfiguration,
         "a batch of {} ({}) cannot be cut into {} equal microbatches; uneven microbatches are not supported yet: choose a divisor of {}",
         bound->second, model.batch_dimension, model.microbatches, bound->second);
  }
  if (request.microbatches == 0)
    model.notes.push_back(fmt::format("{} microbatches were chosen (--microbatches sets them)", model.microbatches));
}

void bindInputs(const Graph& raw, const Graph& prepared, ForwardModel& model) {
  for (ValueId input : prepared.inputs) {
    const ValueId original = findValue(raw, prepared.value(input).name);
    BatchInput entry{input, -1};
    const std::vector<std::string>& symbols = raw.value(original).symbols;
    for (size_t axis = 0; axis < symbols.size(); ++axis) {
      if (!symbols[axis].empty() && symbols[axis] == model.batch_dimension) entry.axis = static_cast<int>(axis);
    }
    model.inputs.push_back(entry);
  }
}

bool hasKernel(const Node& node) { return cpuKernels().has(node.domain, node.op_type); }

int requestedStages(const PlanRequest& request) {
  if (!request.partition.boundaries.empty()) return static_cast<int>(request.partition.boundaries.size()) + 1;
  return std::max(1, parseCluster(request.cluster).deviceCount());
}

// What emitPrograms cannot know: the whole batch's shapes, ranges of integer inputs, types in the weight files.
void completeProgram(const ForwardModel& model, const std::map<std::string, std::pair<int64_t, int64_t>>& ranges, Program& program) {
  for (ProgramInput& input : program.inputs) {
    const auto range = ranges.find(input.name);
    if (range != ranges.end()) std::tie(input.low, input.high) = range->second;
  }
  for (Buffer& buffer : program.buffers) {
    const auto original = model.source_types.find(buffer.value);
    if (buffer.source && original != model.source_types.end()) buffer.source_type = original->second;
  }
}

// Floating-point weights that are not trained, unless the exporter says that they are none.
void noteUntrained(ForwardModel& model) {
  const std::vector<ValueId> trained = trainableParameters(model.graph);
  std::vector<std::string> names;
  for (const auto& [id, initializer] : model.graph.initializers) {
    const Value& value = model.graph.value(id);
    const bool by_exporter = std::any_of(value.metadata.begin(), value.metadata.end(), [](const auto& entry) {
      return entry.first.ends_with("InputSpec.kind") || entry.first == "pipeshard.constant";
    });
    if (by_exporter || !isFloatingPoint(value.data_type) || value.shape->empty()) continue;
    if (std::find(trained.begin(), trained.end(), id) == trained.end()) names.push_back(value.name);
  }
  if (!names.empty()) model.notes.push_back(fmt::format("taken for constants, not trained: {}", fmt::join(names, ", ")));
}

Plan describePlan(const PlanRequest& request, const ForwardModel& model, const OptimizerSpec& optimizer) {
  Plan plan;
  plan.model_path = std::filesystem::absolute(request.model_path).lexically_normal().string();
  plan.dimensions = model.dimensions;
  plan.batch_dimension = model.batch_dimension;
  plan.loss = request.loss.empty() ? model.graph.value(model.loss).name : request.loss;
  plan.optimizer = optimizerToString(optimizer);
  plan.precision = parsePrecision(request.precision);
  plan.cluster = parseCluster(request.cluster);
  plan.microbatches = model.microbatches;
  plan.schedule = request.partition.schedule;
  plan.notes = model.notes;
  return plan;
}

}  // namespace

ForwardModel loadForward(const PlanRequest& request, int stages, const ProgressCallback& progress) {
  progress("reading " + request.model_path);
  ReadOptions read;
  read.external_data_root = request.external_data_root;
  read.require_external_data = !request.allow_missing_weights;
  read.inline_weight_bytes = kInlineWeightBytes;
  Graph raw = readModel(request.model_path, read);
  try {
    const std::string loss_name = raw.value(attachLoss(raw, parseLoss(request.loss))).name;
    ForwardModel model;
    model.source_types = setPrecision(raw, parsePrecision(request.precision)).source_types;
    model.dimensions = defaultDimensions(raw);
    for (const auto& [name, size] : parseDimensions(request.dimensions)) model.dimensions[name] = size;
    decideMicrobatches(request, raw, stages, model);

    progress("preparing the graph of one microbatch");
    PrepareOptions prepare;
    prepare.dimensions = model.dimensions;
    if (model.microbatches > 1) prepare.dimensions[model.batch_dimension] /= model.microbatches;
    prepare.supported = [](const Node& node) { return hasKernel(node) && hasGradientRule(node.domain, node.op_type); };
    model.graph = prepareModel(raw, prepare);
    model.loss = findValue(model.graph, loss_name);
    PIPESHARD_CHECK(model.loss.valid(), "the loss '{}' was lost in preparation", loss_name);
    if (model.microbatches > 1) {
      prepare.dimensions = model.dimensions;
      model.whole_batch = std::make_shared<const Graph>(prepareModel(raw, prepare));
    }
    bindInputs(raw, model.graph, model);
    return model;
  } catch (Error& error) {
    throw error.addContext(request.model_path);
  }
}

PlannedTraining planTraining(const PlanRequest& request, const ProgressCallback& progress) {
  const OptimizerSpec optimizer = parseOptimizer(request.optimizer);
  ForwardModel model = loadForward(request, requestedStages(request), progress);
  PlannedTraining planned;
  try {
    planned.plan = describePlan(request, model, optimizer);
    std::map<std::string, std::pair<int64_t, int64_t>> ranges;
    for (const BatchInput& input : model.inputs) {
      const IntegerRange range = inputRange(model.graph, input.value);
      ranges[model.graph.value(input.value).name] = {range.low, range.high};
    }
    noteUntrained(model);
    planned.plan.notes = model.notes;
    progress("building the training graph");
    requireTrainableTypes(model.graph);
    TimeAxisResult time = splitTimeAxis(model.graph, model.loss, model.inputs, model.microbatches, model.whole_batch.get());
    planned.training = buildTrainingGraph(
        ForwardGraph{std::move(model.graph), time.loss, model.inputs, std::move(time.totals), model.microbatches}, optimizer);
    verifyTrainingGraph(planned.training);
    for (const Parameter& parameter : planned.training.parameters) {
      if (parameter.gradient_parts.empty()) {
        planned.plan.notes.push_back(fmt::format("parameter '{}' does not influence the loss: it is not updated",
                                                 planned.training.graph.value(parameter.value).name));
      }
    }

    progress("partitioning");
    PartitionOptions options = request.partition;
    options.cluster = planned.plan.cluster;
    partitionTraining(planned.training, options, planned.plan);
    planned.ranks = emitPrograms(planned.training, planned.plan);

    Plan single = planned.plan;
    PartitionOptions alone;
    alone.stages = "uniform:1";
    alone.schedule = "sequential";
    partitionTraining(planned.training, alone, single);
    planned.reference = emitPrograms(planned.training, single).at(0);

    for (RankProgram& rank : planned.ranks) completeProgram(model, ranges, rank.program);
    completeProgram(model, ranges, planned.reference.program);
  } catch (Error& error) {
    throw error.addContext(request.model_path);
  }
  return planned;
}

std::vector<OperatorSupport> operatorSupport(const Graph& graph) {
  std::map<std::string, OperatorSupport> found;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const std::string op = fmt::format("{}::{}", node.domain.empty() ? "onnx" : node.domain, node.op_type);
    OperatorSupport& entry = found[op];
    if (entry.count++ > 0) continue;
    entry.op = op;
    entry.example = node.name;
    entry.kernel = hasKernel(node);
    entry.gradient = hasGradientRule(node.domain, node.op_type);
    entry.factor_rule = factorRule(graph, NodeId(n)).has_value();
  }
  std::vector<OperatorSupport> result;
  for (auto& [op, entry] : found) result.push_back(std::move(entry));
  return result;
}

}  // namespace pipeshard
