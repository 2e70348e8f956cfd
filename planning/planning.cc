#include "planning/planning.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/prepare/prepare.h"
#include "partition/layers/node_order.h"
#include "partition/stages/megatron_grid.h"
#include "planning/imported_gradients.h"
#include "planning/memory_shortage.h"
#include "planning/profile_store.h"
#include "planning/stage_search.h"
#include "planning/step_programs.h"
#include "planning/training_step.h"
#include "runtime/execute/executor.h"
#include "runtime/job/job.h"
#include "runtime/kernels/base/kernel.h"
#include "sharding/rules/factor_rule.h"
#include "tools/cluster_option.h"

namespace pipeshard {
namespace {

// Larger weights stay in the .onnx file and are read by the workers that need them.
constexpr uint64_t kInlineWeightBytes = 4096;

// The symbolic dimension that is the batch: as told, else "batch" or "batch_size" or "N", else the only
// symbol on axis 0.
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
      fail(ErrorCode::kUsage, "--batch-dim {}: the model's symbolic dimensions are: {}", asked,
           all.empty() ? "none" : fmt::format("{}", fmt::join(all, ", ")));
    return asked;
  }
  for (const char* usual : {"batch", "batch_size", "N"}) {
    if (all.contains(usual)) return usual;
  }
  if (leading.size() > 1 && microbatches > 1) {
    fail(ErrorCode::kUsage,
         "which dimension is the batch that --microbatches cuts? Choose one: --batch-dim {}",
         fmt::join(leading, ", or --batch-dim "));
  }
  return leading.size() == 1 ? *leading.begin() : "";
}

void decideMicrobatches(const PlanRequest& request, const Graph& graph, const AskedStages& stages,
                        ForwardModel& model) {
  model.batch_dimension = findBatchDimension(graph, request.batch_dimension, request.microbatches);
  const auto bound = model.dimensions.find(model.batch_dimension);
  if (bound == model.dimensions.end()) {
    if (request.microbatches > 1 && model.batch_dimension.empty()) {
      fail(ErrorCode::kConfiguration,
           "--microbatches {} needs a batch that can be cut, but no input has a symbolic batch dimension; "
           "export the model with a "
           "dynamic batch axis (torch.export.Dim(\"batch\")), or use --microbatches 1",
           request.microbatches);
    }
    model.microbatches = 1;  // unbound: prepareModel says which dimensions exist
    return;
  }
  model.batch = bound->second;
  model.microbatches = request.microbatches > 0 ? request.microbatches
                                                : chooseMicrobatches(model.batch, request.partition, stages);
  if (model.microbatches > model.batch) {
    fail(ErrorCode::kConfiguration,
         "a batch of {} ({}) cannot be cut into {} microbatches; choose at most {}", model.batch,
         model.batch_dimension, model.microbatches, model.batch);
  }
  if (request.microbatches == 0 && request.partition.stages != kSearched)
    model.notes.push_back(
        fmt::format("{} microbatches were chosen (--microbatches sets them)", model.microbatches));
}

std::map<std::string, int> batchAxes(const Graph& raw, const std::string& batch_dimension) {
  std::map<std::string, int> axes;
  for (ValueId input : raw.inputs) {
    const std::vector<std::string>& symbols = raw.value(input).symbols;
    for (size_t axis = 0; axis < symbols.size(); ++axis) {
      if (!symbols[axis].empty() && symbols[axis] == batch_dimension)
        axes[raw.value(input).name] = static_cast<int>(axis);
    }
  }
  return axes;
}

bool hasKernel(const Node& node) { return cpuKernels().has(node.domain, node.op_type); }

// The model, prepared for some rows of the batch, with its operators in an order that lets stages be cut
// cheaply. The order is that of the whole batch's graph, so that it depends on nothing that is still to be
// chosen.
class Preparer {
 public:
  Preparer(Graph raw, const ForwardModel& model)
      : raw_(std::move(raw)), batch_dimension_(model.batch_dimension), batch_(model.batch) {
    options_.dimensions = model.dimensions;
    options_.supported = [](const Node& node) {
      return hasKernel(node) && hasGradientRule(node.domain, node.op_type);
    };
    Graph whole = prepare(batch_);
    order_ = nodeOrderForCuts(whole);
    reorderNodes(whole, order_);
    made_.emplace(batch_, std::move(whole));
  }

  const Graph& of(int64_t rows) {
    const auto found = made_.find(rows);
    if (found != made_.end()) return found->second;
    Graph graph = prepare(rows);
    if (graph.nodes.size() == order_.size()) reorderNodes(graph, order_);
    return made_.emplace(rows, std::move(graph)).first->second;
  }

 private:
  Graph prepare(int64_t rows) {
    if (options_.dimensions.contains(batch_dimension_)) options_.dimensions[batch_dimension_] = rows;
    return prepareModel(raw_, options_);
  }

  Graph raw_;
  PrepareOptions options_;
  std::string batch_dimension_;
  int64_t batch_;
  std::vector<size_t> order_;
  std::map<int64_t, Graph> made_;
};

void requireParameters(const Graph& graph) {
  if (!trainableParameters(graph).empty()) return;
  fail(ErrorCode::kBadModel,
       "there is no weight to train; --train NAME_REGEX says which weights are, --freeze which are not");
}

Plan describePlan(const PlanRequest& request, const ForwardModel& model, const OptimizerSpec& optimizer) {
  Plan plan;
  plan.model_path = std::filesystem::absolute(request.model_path).lexically_normal().string();
  plan.dimensions = model.dimensions;
  plan.batch_dimension = model.batch_dimension;
  plan.loss = request.loss.empty() ? model.graph.value(model.loss).name : request.loss;
  plan.optimizer = optimizerToString(optimizer);
  plan.precision = parsePrecision(request.precision);
  plan.microbatches = model.microbatches;
  plan.bucket_bytes = request.bucket_bytes;
  plan.overlap_receives = request.overlap_receives;
  const bool one_node = request.partition.cluster.nodeCount() == 1;
  if (one_node && plan.overlap_receives == OverlapReceives::kBetweenNodes)
    plan.overlap_receives = OverlapReceives::kOff;
  plan.schedule = request.partition.schedule;
  plan.train = request.train;
  plan.freeze = request.freeze;
  plan.boundaries = request.partition.boundaries;
  plan.notes = model.notes;
  return plan;
}

// Which weights are trained, the loss, and a backward pass that the model may have been exported with.
// Returns the loss's name.
std::string readRoles(const PlanRequest& request, Graph& raw, ForwardModel& model) {
  Graph whole;
  if (raw.outputs.size() > 1) whole = raw;
  ImportedBackward backward = takeBackward(raw);
  overrideParameters(raw, request.train, request.freeze);
  const LossSpec loss = parseLoss(request.loss);
  const std::string name = raw.value(attachLoss(raw, loss)).name;
  const ValueId in_file = findValue(whole, name);
  if (backward.gradients.empty() || loss.kind != LossSpec::Kind::kModelOutput || !in_file.valid())
    return name;
  whole.outputs = {in_file};
  for (const ImportedGradient& gradient : backward.gradients)
    whole.outputs.push_back(findValue(whole, gradient.output));
  setPrecision(whole, parsePrecision(request.precision));
  model.imported =
      std::make_shared<ImportedModel>(ImportedModel{std::move(whole), std::move(backward), name});
  return name;
}

}  // namespace

ForwardModel loadForward(const PlanRequest& request, const AskedStages& stages,
                         const ProgressCallback& progress) {
  progress("reading " + request.model_path);
  ReadOptions read;
  read.external_data_root = request.external_data_root;
  read.require_external_data = !request.allow_missing_weights;
  read.inline_weight_bytes = kInlineWeightBytes;
  Graph raw = readModel(request.model_path, read);
  try {
    std::optional<FileShardings> file_shardings;
    const ShardingRequest& sharding = request.partition.sharding;
    if (sharding.method == "manual" && sharding.constraints.empty())
      file_shardings = readFileShardings(raw, sharding.mesh);
    ForwardModel model;
    const std::string loss_name = readRoles(request, raw, model);
    model.file_shardings = std::move(file_shardings);
    model.source_types = setPrecision(raw, parsePrecision(request.precision)).source_types;
    model.dimensions = defaultDimensions(raw);
    for (const auto& [name, size] : parseDimensions(request.dimensions)) model.dimensions[name] = size;
    decideMicrobatches(request, raw, stages, model);
    model.batch_axes = batchAxes(raw, model.batch_dimension);

    progress("preparing the graph of one microbatch");
    const auto preparer = std::make_shared<Preparer>(std::move(raw), model);
    model.prepared = [preparer](int64_t rows) -> const Graph& { return preparer->of(rows); };
    model.graph =
        model.prepared(TrainingFamily(model.batch, model.microbatches, nullptr).largestMicrobatch());
    model.loss = findValue(model.graph, loss_name);
    PIPESHARD_CHECK(model.loss.valid(), "the loss '{}' was lost in preparation", loss_name);
    return model;
  } catch (Error& error) {
    throw error.addContext(request.model_path);
  }
}

namespace {

// Values that are lost in preparation (folded constants) cannot be kept in any sharding.
void useFileShardings(const ForwardModel& model, ShardingRequest& request, std::vector<std::string>& notes) {
  if (!model.file_shardings) return;
  request.mesh = printMesh(model.file_shardings->mesh);
  for (const auto& [name, spec] : model.file_shardings->specs) {
    if (findValue(model.graph, name).valid()) request.constraints.push_back(name + "=" + printSpec(spec));
  }
  notes.insert(notes.end(), model.file_shardings->notes.begin(), model.file_shardings->notes.end());
}

}  // namespace

namespace {

// Rows of a microbatch are shared out.
bool isDataParallel(const Plan& plan) {
  if (devicesTakeTurns(plan)) return false;
  return std::any_of(plan.stages.begin(), plan.stages.end(),
                     [](const StagePlan& stage) { return stage.mesh_shape.at(0) > 1; });
}

void refuseDataParallelism(const ForwardModel& model) {
  if (model.batch > 1) return;
  fail(ErrorCode::kConfiguration,
       "the plan has stages of several data-parallel devices, but {}; export the model with a dynamic batch "
       "axis "
       "(torch.export.Dim(\"batch\")) and a batch that can be shared, or use one device per stage",
       model.batch_dimension.empty() ? "no input of the model has a symbolic batch dimension"
                                     : "the batch has one example");
}

void noteUnreachedParameters(const TrainingGraph& training, Plan& plan) {
  if (plan.optimizer == "none") return;
  for (const Parameter& parameter : training.parameters) {
    if (!parameter.gradient_parts.empty()) continue;
    plan.notes.push_back(fmt::format("parameter '{}' does not influence the loss: it is not updated",
                                     training.graph.value(parameter.value).name));
  }
}

// Decides the plan. A batch that is cut nowhere is left as it is, so that models that cannot be cut still
// run.
BatchCut partitionModel(const ForwardModel& model, const OptimizerSpec& optimizer,
                        const PartitionOptions& options, const ProgressCallback& progress,
                        PlannedTraining& planned) {
  Plan& plan = planned.plan;
  TrainingGraph& training = planned.training;
  const Plan undecided = plan;
  const bool first = options.chosen ? options.chosen->cut_batch : model.microbatches > 1;
  for (const bool cut : {first, true}) {
    plan = undecided;
    const BatchCut batch{model.batch, model.microbatches, cut};
    training = trainingFamily(model, optimizer, batch).base();
    noteUnreachedParameters(training, plan);
    partitionTraining(training, options, plan);
    if (isDataParallel(plan)) refuseDataParallelism(model);
    if (!cut && !options.chosen &&
        (isDataParallel(plan) || (hasShardedStage(plan) && canSumOverBatch(model, optimizer, plan))))
      continue;
    planned.combinations = shardStages(training, options.sharding, plan, progress);
    return batch;
  }
  PIPESHARD_CHECK(false, "nothing was decided");
  return {};
}

// Rows of the shorter batch that ends an epoch, as told or as the data file says.
int64_t lastBatchRows(const PlanRequest& request, const ForwardModel& model, const Plan& plan) {
  int64_t rows = request.last_batch;
  if (scheduleOf(plan).asynchronous()) {
    if (rows == 0) return 0;
    fail(ErrorCode::kConfiguration,
         "--last-batch {}: under the schedule {} a step takes whole windows; leave it out (`run` and "
         "`validate` leave out the "
         "rest of a file with --drop-last)",
         rows, plan.schedule);
  }
  if (rows == 0 && !request.data_path.empty() && !model.batch_axes.empty()) {
    const auto& [name, axis] = *model.batch_axes.begin();
    ProgramInput input{name, DataType::kUndefined,
                       model.prepared(model.batch).shape(findValue(model.prepared(model.batch), name)), axis};
    rows = lastBatchOf(request.data_path, input);
  }
  if (rows == 0 || rows < model.batch) return rows;
  fail(ErrorCode::kUsage, "--last-batch {}: found a last batch that is not shorter than the batch of {}{}",
       rows, model.batch,
       model.batch_axes.empty() ? "; no input of the model has a symbolic batch dimension" : "");
}

// As many microbatches as the whole batch has, if every device gets a row of each.
void decideLastBatch(int64_t rows, Plan& plan) {
  if (rows == 0) return;
  int widest = 1;
  for (const StagePlan& stage : plan.stages) widest = std::max(widest, stage.mesh_shape.at(0));
  if (rows < widest) {
    fail(ErrorCode::kConfiguration,
         "the last batch of {} example(s) cannot be shared by {} data-parallel devices; {}, or use narrower "
         "stages",
         rows, widest, kWithoutLastBatch);
  }
  plan.last_batch = rows;
  plan.last_microbatches = std::min(plan.microbatches, rows / widest);
}

// Plans and emits. The solver's memory rows foresee; what a device needs is known when its memory is planned.
// If that is more than there is, the solver gets so much less, and again, as long as some stage is sharded:
// else there is nothing to choose.
BatchCut planWithinMemory(const PlanRequest& request, const ForwardModel& model,
                          const OptimizerSpec& optimizer, PartitionOptions options,
                          const ProgressCallback& progress, PlannedTraining& planned) {
  constexpr int kAttempts = 8;
  constexpr int kAttemptsBeyond = 3;
  const Plan undecided = planned.plan;
  const PartitionOptions asked = options;
  int64_t& limit = options.sharding.memory_bytes;
  Shortage least;
  std::optional<Error>
      refused;  // what is foreseen may be more than what is needed: then a little more is tried
  for (int attempt = 0; attempt < (refused ? kAttemptsBeyond : kAttempts); ++attempt) {
    progress("building the training graph and partitioning");
    planned.plan = undecided;
    BatchCut batch;
    try {
      batch = partitionModel(model, optimizer, options, progress, planned);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory) throw;
      if (attempt > 0) break;
      refused = error;
      limit += limit / 4;
      continue;
    }
    decideLastBatch(lastBatchRows(request, model, planned.plan), planned.plan);
    for (StagePlan& stage : planned.plan.stages) {
      if (stage.sharding) stage.sharding->memory_limit = asked.sharding.memory_bytes;
    }
    if (!request.programs) return batch;
    progress("writing the programs of the ranks");
    planned.whole = emitStep(model, optimizer, batch, planned.plan);
    const Shortage shortage = largestShortage(asked, planned.whole);
    if (shortage.rank < 0) return batch;
    if (least.rank < 0 || shortage.excess() < least.excess()) least = shortage;
    limit -= std::max(shortage.excess(), limit / 100);
    if (limit <= 0 || !hasShardedStage(planned.plan)) break;
  }
  if (refused) throw *refused;
  fail(ErrorCode::kOutOfMemory, "{}: device {} needs {} bytes at least, and has {}",
       request.partition.sharding.memory_bytes > 0 ? fmt::format("--memory {}", asked.sharding.memory_bytes)
                                                   : "--cluster " + request.cluster,
       least.rank, least.needed, least.room);
}

void setMicrobatches(int64_t microbatches, ForwardModel& model) {
  const std::string loss = model.graph.value(model.loss).name;
  model.microbatches = microbatches;
  model.graph = model.prepared(TrainingFamily(model.batch, microbatches, nullptr).largestMicrobatch());
  model.loss = findValue(model.graph, loss);
}

// The best plan of the search that can be made: what whole stages need is known only then.
BatchCut planSearched(const PlanRequest& request, ForwardModel& model, const OptimizerSpec& optimizer,
                      const PartitionOptions& options, const ProgressCallback& progress,
                      Interruption& interruption, PlannedTraining& planned) {
  interruption.searching = true;
  StageSearchResult found = searchStages(request, model, optimizer, options, progress, &interruption.asked);
  interruption.searching = false;
  if (found.choices.empty()) throw JobInterrupted(SIGINT);
  interruption.asked = false;
  Plan undecided = planned.plan;
  undecided.notes.insert(undecided.notes.end(), found.notes.begin(), found.notes.end());
  for (size_t i = 0;; ++i) {
    const StageChoice& choice = found.choices[i];
    setMicrobatches(choice.microbatches, model);
    planned.plan = undecided;
    try {
      const BatchCut batch = planWithinMemory(request, model, optimizer, choice.options, progress, planned);
      if (planned.plan.last_batch > 0 && request.programs)
        planned.last = emitLastBatch(model, optimizer, batch, planned.plan);
      found.record.chosen = i;
      planned.plan.search = std::move(found.record);
      return batch;
    } catch (const Error& error) {
      const bool other = error.code() == ErrorCode::kOutOfMemory || error.code() == ErrorCode::kConfiguration;
      if (!other || i + 1 == found.choices.size()) throw;
      undecided.notes.push_back(
          fmt::format("plan {} of the search cannot be made: {}", i + 1, error.message()));
    }
  }
}

}  // namespace

PlannedTraining planTraining(const PlanRequest& asked, const ProgressCallback& progress,
                             Interruption* interruption) {
  PlanRequest request = asked;
  request.partition.cluster = readCluster(request.cluster);
  useMegatronGrid(request.partition);
  if (request.partition.stages != kSearched &&
      (!request.submeshes.empty() || !request.logical_meshes.empty()))
    fail(ErrorCode::kUsage,
         "--submeshes and --logical-meshes go with --stages auto, which chooses among them");
  const std::string& schedule = request.partition.schedule;
  const bool evaluates = schedule == "forward-only" || schedule.starts_with("forward-only:");
  if (evaluates) request.optimizer = "none";
  const OptimizerSpec optimizer = parseOptimizer(request.optimizer);
  if (!evaluates && optimizer.kind == OptimizerSpec::Kind::kNone)
    fail(ErrorCode::kUsage, "--optimizer none: nothing is trained; that goes with --schedule forward-only");
  PartitionOptions options = request.partition;
  std::string profile_note;
  const std::optional<StoredProfile> profile = chooseProfile(request.profile, &profile_note);
  const bool measured = profile && applyProfile(options.cluster, *profile);
  if (options.sharding.memory_bytes == 0) {
    options.sharding.memory_bytes = leastMemory(options.cluster);
    options.sharding.memory_by_cluster = true;
  }
  ForwardModel model = loadForward(request, askedStages(options), progress);
  useFileShardings(model, options.sharding, model.notes);
  PlannedTraining planned;
  try {
    for (std::string& note : parameterNotes(model.graph)) model.notes.push_back(std::move(note));
    if (!profile_note.empty()) model.notes.push_back(profile_note);
    planned.plan = describePlan(request, model, optimizer);
    planned.plan.cluster = options.cluster;
    if (measured) planned.plan.profile = profile->digest;
    requireParameters(model.graph);
    requireTrainableTypes(model.graph);

    Interruption none;
    const BatchCut batch = options.stages == kSearched
                               ? planSearched(request, model, optimizer, options, progress,
                                              interruption ? *interruption : none, planned)
                               : planWithinMemory(request, model, optimizer, options, progress, planned);
    if (planned.plan.last_batch > 0 && request.programs && !planned.last)
      planned.last = emitLastBatch(model, optimizer, batch, planned.plan);
    if (request.programs)
      planned.imported =
          importedGradients(model, planned.training, planned.whole.reference.program, planned.plan.notes);
  } catch (Error& error) {
    throw error.addContext(request.model_path);
  }
  return planned;
}

PlanRequest requestOf(const Plan& plan) {
  PlanRequest request;
  request.model_path = plan.model_path;
  request.allow_missing_weights = true;
  for (const auto& [name, size] : plan.dimensions)
    request.dimensions.push_back(fmt::format("{}={}", name, size));
  request.loss = plan.loss;
  request.train = plan.train;
  request.freeze = plan.freeze;
  request.optimizer = plan.optimizer;
  request.precision = dataTypeName(plan.precision);
  request.batch_dimension = plan.batch_dimension;
  request.microbatches = plan.microbatches;
  request.bucket_bytes = plan.bucket_bytes;
  request.overlap_receives = plan.overlap_receives;
  return request;
}

BatchCut batchCutOf(const Plan& plan, const ForwardModel& model, const OptimizerSpec& optimizer) {
  Plan noted = plan;
  const bool cut = model.microbatches > 1 || isDataParallel(plan) ||
                   (hasShardedStage(plan) && canSumOverBatch(model, optimizer, noted));
  return {model.batch, model.microbatches, cut};
}

std::vector<StageExplanation> explainPlan(const Plan& plan, int alternatives,
                                          const ProgressCallback& progress) {
  const PlanRequest request = requestOf(plan);
  const OptimizerSpec optimizer = parseOptimizer(request.optimizer);
  const ForwardModel model = loadForward(request, {}, progress);
  try {
    const TrainingFamily family = trainingFamily(model, optimizer, batchCutOf(plan, model, optimizer));
    return explainStages(family.base(), plan, alternatives, progress);
  } catch (Error& error) {
    throw error.addContext(plan.model_path);
  }
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
