#include "tools/planning.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/error.h"
#include "onnx_import/prepare.h"
#include "onnx_import/reader.h"
#include "runtime/executor.h"
#include "runtime/job.h"
#include "runtime/kernels/kernel.h"
#include "sharding/rules/factor_rule.h"
#include "tools/cluster_option.h"
#include "tools/profile_store.h"
#include "tools/stage_search.h"
#include "tools/training_step.h"

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
      fail(ErrorCode::kUsage, "--batch-dim {}: the model's symbolic dimensions are: {}", asked,
           all.empty() ? "none" : fmt::format("{}", fmt::join(all, ", ")));
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

void decideMicrobatches(const PlanRequest& request, const Graph& graph, const AskedStages& stages, ForwardModel& model) {
  model.batch_dimension = findBatchDimension(graph, request.batch_dimension, request.microbatches);
  const auto bound = model.dimensions.find(model.batch_dimension);
  if (bound == model.dimensions.end()) {
    if (request.microbatches > 1 && model.batch_dimension.empty()) {
      fail(ErrorCode::kConfiguration,
           "--microbatches {} needs a batch that can be cut, but no input has a symbolic batch dimension; export the model with a "
           "dynamic batch axis (torch.export.Dim(\"batch\")), or use --microbatches 1",
           request.microbatches);
    }
    model.microbatches = 1;  // unbound: prepareModel says which dimensions exist
    return;
  }
  model.batch = bound->second;
  model.microbatches = request.microbatches > 0 ? request.microbatches : chooseMicrobatches(model.batch, request.partition, stages);
  if (model.microbatches > model.batch) {
    fail(ErrorCode::kConfiguration, "a batch of {} ({}) cannot be cut into {} microbatches; choose at most {}", model.batch,
         model.batch_dimension, model.microbatches, model.batch);
  }
  if (request.microbatches == 0 && request.partition.stages != kSearched)
    model.notes.push_back(fmt::format("{} microbatches were chosen (--microbatches sets them)", model.microbatches));
}

std::map<std::string, int> batchAxes(const Graph& raw, const std::string& batch_dimension) {
  std::map<std::string, int> axes;
  for (ValueId input : raw.inputs) {
    const std::vector<std::string>& symbols = raw.value(input).symbols;
    for (size_t axis = 0; axis < symbols.size(); ++axis) {
      if (!symbols[axis].empty() && symbols[axis] == batch_dimension) axes[raw.value(input).name] = static_cast<int>(axis);
    }
  }
  return axes;
}

bool hasKernel(const Node& node) { return cpuKernels().has(node.domain, node.op_type); }

std::function<const Graph&(int64_t)> preparer(Graph raw, const ForwardModel& model) {
  PrepareOptions options;
  options.dimensions = model.dimensions;
  options.supported = [](const Node& node) { return hasKernel(node) && hasGradientRule(node.domain, node.op_type); };
  auto made = std::make_shared<std::map<int64_t, Graph>>();
  return [raw = std::move(raw), options, made, batch_dimension = model.batch_dimension](int64_t rows) mutable -> const Graph& {
    const auto found = made->find(rows);
    if (found != made->end()) return found->second;
    if (options.dimensions.contains(batch_dimension)) options.dimensions[batch_dimension] = rows;
    return made->emplace(rows, prepareModel(raw, options)).first->second;
  };
}

struct InputLimits {
  IntegerRange range;
  std::optional<AllowedIntegers> allowed;
};

std::map<std::string, InputLimits> inputLimits(const Graph& graph) {
  std::map<std::string, InputLimits> limits;
  for (ValueId input : graph.inputs) limits[graph.value(input).name] = {inputRange(graph, input), allowedIntegers(graph, input)};
  return limits;
}

// What emitPrograms cannot know: the whole batch's shapes, ranges of integer inputs, types in the weight files.
void completeProgram(const ForwardModel& model, const std::map<std::string, InputLimits>& limits, Program& program) {
  for (ProgramInput& input : program.inputs) {
    const auto found = limits.find(input.name);
    if (found == limits.end()) continue;
    input.low = found->second.range.low;
    input.high = found->second.range.high;
    input.allowed = found->second.allowed;
  }
  for (Buffer& buffer : program.buffers) {
    const auto original = model.source_types.find(buffer.value);
    if (buffer.source && original != model.source_types.end()) buffer.source_type = original->second;
  }
}

void requireParameters(const Graph& graph) {
  if (!trainableParameters(graph).empty()) return;
  fail(ErrorCode::kBadModel, "there is no weight to train; --train NAME_REGEX says which weights are, --freeze which are not");
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
  plan.schedule = request.partition.schedule;
  plan.train = request.train;
  plan.freeze = request.freeze;
  plan.boundaries = request.partition.boundaries;
  plan.notes = model.notes;
  return plan;
}

}  // namespace

ForwardModel loadForward(const PlanRequest& request, const AskedStages& stages, const ProgressCallback& progress) {
  progress("reading " + request.model_path);
  ReadOptions read;
  read.external_data_root = request.external_data_root;
  read.require_external_data = !request.allow_missing_weights;
  read.inline_weight_bytes = kInlineWeightBytes;
  Graph raw = readModel(request.model_path, read);
  try {
    std::optional<FileShardings> file_shardings;
    const ShardingRequest& sharding = request.partition.sharding;
    if (sharding.method == "manual" && sharding.constraints.empty()) file_shardings = readFileShardings(raw, sharding.mesh);
    overrideParameters(raw, request.train, request.freeze);
    const std::string loss_name = raw.value(attachLoss(raw, parseLoss(request.loss))).name;
    ForwardModel model;
    model.file_shardings = std::move(file_shardings);
    model.source_types = setPrecision(raw, parsePrecision(request.precision)).source_types;
    model.dimensions = defaultDimensions(raw);
    for (const auto& [name, size] : parseDimensions(request.dimensions)) model.dimensions[name] = size;
    decideMicrobatches(request, raw, stages, model);
    model.batch_axes = batchAxes(raw, model.batch_dimension);

    progress("preparing the graph of one microbatch");
    model.prepared = preparer(std::move(raw), model);
    model.graph = model.prepared(TrainingFamily(model.batch, model.microbatches, nullptr).largestMicrobatch());
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

// What the rank's worker will allocate: its arena (runtime/memory_plan.h) and constants.
int64_t plannedMemory(const RankProgram& rank) {
  const Executor executor({rank.program, rank.subgraphs, ""}, {});
  return executor.memory().total_bytes + executor.constantBytes();
}

bool isDataParallel(const Plan& plan) {
  return std::any_of(plan.stages.begin(), plan.stages.end(), [](const StagePlan& stage) { return stage.mesh_shape.at(0) > 1; });
}

void refuseDataParallelism(const ForwardModel& model) {
  if (model.batch > 1) return;
  fail(ErrorCode::kConfiguration,
       "the plan has stages of several data-parallel devices, but {}; export the model with a dynamic batch axis "
       "(torch.export.Dim(\"batch\")) and a batch that can be shared, or use one device per stage",
       model.batch_dimension.empty() ? "no input of the model has a symbolic batch dimension" : "the batch has one example");
}

void noteUnreachedParameters(const TrainingGraph& training, Plan& plan) {
  for (const Parameter& parameter : training.parameters) {
    if (!parameter.gradient_parts.empty()) continue;
    plan.notes.push_back(
        fmt::format("parameter '{}' does not influence the loss: it is not updated", training.graph.value(parameter.value).name));
  }
}

// Decides the plan. A batch that is cut nowhere is left as it is, so that models that cannot be cut still run.
BatchCut partitionModel(const ForwardModel& model, const OptimizerSpec& optimizer, const PartitionOptions& options,
                        const ProgressCallback& progress, PlannedTraining& planned) {
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
    if (!cut && !options.chosen && (isDataParallel(plan) || (hasShardedStage(plan) && canSumOverBatch(model, optimizer, plan)))) continue;
    planned.combinations = shardStages(training, options.sharding, plan, progress);
    return batch;
  }
  PIPESHARD_CHECK(false, "nothing was decided");
  return {};
}

// The programs of all ranks, and of one device alone.
StepPrograms emitStep(const ForwardModel& model, const OptimizerSpec& optimizer, const BatchCut& batch, Plan plan) {
  const TrainingFamily family = trainingFamily(model, optimizer, batch);
  const Schedule schedule = firstMicrobatches(scheduleOf(plan), static_cast<int>(batch.microbatches * plan.updates_per_step));
  plan.microbatches = batch.microbatches;
  StepPrograms step;
  step.ranks = emitPrograms(family, plan, schedule);
  step.reference = emitOnOneDevice(family, plan, schedule);
  const std::map<std::string, InputLimits> limits = inputLimits(model.graph);
  for (RankProgram& rank : step.ranks) completeProgram(model, limits, rank.program);
  completeProgram(model, limits, step.reference.program);
  return step;
}

// Rows of the shorter batch that ends an epoch, as told or as the data file says.
int64_t lastBatchRows(const PlanRequest& request, const ForwardModel& model, const Plan& plan) {
  int64_t rows = request.last_batch;
  if (scheduleOf(plan).asynchronous()) {
    if (rows == 0) return 0;
    fail(ErrorCode::kConfiguration,
         "--last-batch {}: under the schedule {} a step takes whole windows; leave it out (`run` and `validate` leave out the "
         "rest of a file with --drop-last)",
         rows, plan.schedule);
  }
  if (rows == 0 && !request.data_path.empty() && !model.batch_axes.empty()) {
    const auto& [name, axis] = *model.batch_axes.begin();
    ProgramInput input{name, DataType::kUndefined, model.prepared(model.batch).shape(findValue(model.prepared(model.batch), name)), axis};
    rows = lastBatchOf(request.data_path, input);
  }
  if (rows == 0 || rows < model.batch) return rows;
  fail(ErrorCode::kUsage, "--last-batch {}: found a last batch that is not shorter than the batch of {}{}", rows, model.batch,
       model.batch_axes.empty() ? "; no input of the model has a symbolic batch dimension" : "");
}

constexpr const char* kWithoutLastBatch =
    "leave it out (plan without --last-batch and --data; `run` and `validate` leave out the rest of a file with --drop-last)";

// As many microbatches as the whole batch has, if every device gets a row of each.
void decideLastBatch(int64_t rows, Plan& plan) {
  if (rows == 0) return;
  int widest = 1;
  for (const StagePlan& stage : plan.stages) widest = std::max(widest, stage.mesh_shape.at(0));
  if (rows < widest) {
    fail(ErrorCode::kConfiguration,
         "the last batch of {} example(s) cannot be shared by {} data-parallel devices; {}, or use narrower stages", rows, widest,
         kWithoutLastBatch);
  }
  plan.last_batch = rows;
  plan.last_microbatches = std::min(plan.microbatches, rows / widest);
}

// With fewer microbatches where shardings do not fit so few rows, as long as these are no larger than those of a whole batch.
StepPrograms emitLastBatch(const ForwardModel& model, const OptimizerSpec& optimizer, const BatchCut& whole, Plan& plan) {
  const int64_t most_rows = (whole.rows + whole.microbatches - 1) / whole.microbatches;
  const int64_t least_count = (plan.last_batch + most_rows - 1) / most_rows;
  for (std::optional<Error> failure;;) {
    try {
      return emitStep(model, optimizer, {plan.last_batch, plan.last_microbatches, whole.cut}, plan);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kConfiguration || !hasShardedStage(plan)) throw;
      if (!failure) failure = error;
    }
    if (plan.last_microbatches <= least_count) {
      throw failure->addContext(
          fmt::format("the last batch of {} example(s) does not fit how the stages are sharded; {}, or choose another batch or method",
                      plan.last_batch, kWithoutLastBatch));
    }
    --plan.last_microbatches;
  }
}

// Of the devices of sharded stages, the most that one needs.
int64_t largestShardedMemory(const PlannedTraining& planned) {
  int64_t needed = 0;
  for (const StagePlan& stage : planned.plan.stages) {
    if (!stage.sharding) continue;
    for (int rank : stage.devices) needed = std::max(needed, plannedMemory(planned.whole.ranks[static_cast<size_t>(rank)]));
  }
  return needed;
}

// Plans and emits. The solver's memory rows foresee; what a device needs is known when its memory is planned. If that is more than
// --memory, the solver gets so much less, and again.
BatchCut planWithinMemory(const PlanRequest& request, const ForwardModel& model, const OptimizerSpec& optimizer, PartitionOptions options,
                          const ProgressCallback& progress, PlannedTraining& planned) {
  constexpr int kAttempts = 8;
  const Plan undecided = planned.plan;
  const int64_t room = options.sharding.memory_bytes;
  int64_t& limit = options.sharding.memory_bytes;
  int64_t least = INT64_MAX;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    progress("building the training graph and partitioning");
    planned.plan = undecided;
    BatchCut batch;
    try {
      batch = partitionModel(model, optimizer, options, progress, planned);
    } catch (const Error& error) {
      if (attempt == 0 || error.code() != ErrorCode::kOutOfMemory) throw;
      break;
    }
    decideLastBatch(lastBatchRows(request, model, planned.plan), planned.plan);
    progress("writing the programs of the ranks");
    planned.whole = emitStep(model, optimizer, batch, planned.plan);
    const int64_t needed = room > 0 ? largestShardedMemory(planned) : 0;
    for (StagePlan& stage : planned.plan.stages) {
      if (stage.sharding) stage.sharding->memory_limit = room;
    }
    if (needed <= room) return batch;
    least = std::min(least, needed);
    limit -= std::max(needed - room, limit / 100);
    if (limit <= 0) break;
  }
  fail(ErrorCode::kOutOfMemory,
       "{} {}: the least that a device was made to need is {} bytes; allow more memory, more devices, or more microbatches "
       "(--microbatches)",
       options.sharding.memory_by_cluster ? "the memory of the cluster's devices," : "--memory", room, least);
}

void setMicrobatches(int64_t microbatches, ForwardModel& model) {
  const std::string loss = model.graph.value(model.loss).name;
  model.microbatches = microbatches;
  model.graph = model.prepared(TrainingFamily(model.batch, microbatches, nullptr).largestMicrobatch());
  model.loss = findValue(model.graph, loss);
}

// The best plan of the search that can be made: what whole stages need is known only then.
BatchCut planSearched(const PlanRequest& request, ForwardModel& model, const OptimizerSpec& optimizer, const PartitionOptions& options,
                      const ProgressCallback& progress, Interruption& interruption, PlannedTraining& planned) {
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
      if (planned.plan.last_batch > 0) planned.last = emitLastBatch(model, optimizer, batch, planned.plan);
      found.record.chosen = i;
      planned.plan.search = std::move(found.record);
      return batch;
    } catch (const Error& error) {
      const bool other = error.code() == ErrorCode::kOutOfMemory || error.code() == ErrorCode::kConfiguration;
      if (!other || i + 1 == found.choices.size()) throw;
      undecided.notes.push_back(fmt::format("plan {} of the search cannot be made: {}", i + 1, error.message()));
    }
  }
}

}  // namespace

PlannedTraining planTraining(const PlanRequest& request, const ProgressCallback& progress, Interruption* interruption) {
  const OptimizerSpec optimizer = parseOptimizer(request.optimizer);
  PartitionOptions options = request.partition;
  options.cluster = readCluster(request.cluster);
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
                               ? planSearched(request, model, optimizer, options, progress, interruption ? *interruption : none, planned)
                               : planWithinMemory(request, model, optimizer, options, progress, planned);
    if (planned.plan.last_batch > 0 && !planned.last) planned.last = emitLastBatch(model, optimizer, batch, planned.plan);
  } catch (Error& error) {
    throw error.addContext(request.model_path);
  }
  return planned;
}

namespace {

// What was asked for when the plan was made, as far as the training graph depends on it.
PlanRequest requestOf(const Plan& plan) {
  PlanRequest request;
  request.model_path = plan.model_path;
  request.allow_missing_weights = true;
  for (const auto& [name, size] : plan.dimensions) request.dimensions.push_back(fmt::format("{}={}", name, size));
  request.loss = plan.loss;
  request.train = plan.train;
  request.freeze = plan.freeze;
  request.optimizer = plan.optimizer;
  request.precision = dataTypeName(plan.precision);
  request.batch_dimension = plan.batch_dimension;
  request.microbatches = plan.microbatches;
  request.bucket_bytes = plan.bucket_bytes;
  return request;
}

}  // namespace

std::vector<StageExplanation> explainPlan(const Plan& plan, int alternatives, const ProgressCallback& progress) {
  const PlanRequest request = requestOf(plan);
  const OptimizerSpec optimizer = parseOptimizer(request.optimizer);
  const ForwardModel model = loadForward(request, {}, progress);
  try {
    Plan noted = plan;
    const bool cut = model.microbatches > 1 || isDataParallel(plan) || (hasShardedStage(plan) && canSumOverBatch(model, optimizer, noted));
    const TrainingFamily family = trainingFamily(model, optimizer, {model.batch, model.microbatches, cut});
    return explainStages(family.base(), plan, alternatives, progress);
  } catch (Error& error) {
    throw error.addContext(request.model_path);
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
