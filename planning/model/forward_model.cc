#include "planning/model/forward_model.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "onnx_import/autodiff/parameters.h"
#include "onnx_import/exporter/converter_traps.h"
#include "onnx_import/exporter/evaluation_mode.h"
#include "onnx_import/exporter/exporter_traps.h"
#include "onnx_import/exporter/module_mode.h"
#include "onnx_import/exporter/running_statistics.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/format/rehearsal.h"
#include "onnx_import/loss/axis_names.h"
#include "onnx_import/loss/loss.h"
#include "onnx_import/loss/loss_weights.h"
#include "onnx_import/loss/needed_outputs.h"
#include "onnx_import/patterns/patterns.h"
#include "onnx_import/patterns/straight_through.h"
#include "onnx_import/precision/mixed_precision.h"
#include "onnx_import/precision/precision.h"
#include "onnx_import/prepare/dimensions.h"
#include "onnx_import/prepare/prepare.h"
#include "partition/layers/node_order.h"
#include "planning/model/batch_dimension.h"
#include "planning/model/further_outputs.h"
#include "planning/model/given_weights.h"
#include "planning/model/microbatches.h"
#include "planning/model/module_notes.h"
#include "planning/model/module_reading.h"
#include "planning/model/operator_support.h"
#include "planning/model/sequence_lengths.h"
#include "planning/model/unmade_outputs.h"
#include "planning/model/update_extras.h"
#include "sharding/batch/merged_rows.h"
#include "sharding/batch/training_family.h"

namespace pipeshard {
namespace {

// The model, prepared for some rows of the batch, with its operators in an order that lets stages be cut
// cheaply. The order is that of the whole batch's graph, so that it depends on nothing that is still to be
// chosen.
class Preparer {
 public:
  // Tensors of more rows than `limited_rows` may have any size: no device ever holds them.
  Preparer(Graph raw, const ForwardModel& model, const GivenOptions& given, int64_t limited_rows)
      : raw_(std::move(raw)),
        patterns_(given.patterns),
        precision_(given.precision),
        keep_float32_(given.keep_float32),
        evaluates_(given.optimizer.kind == OptimizerSpec::Kind::kNone && given.mode != ModuleMode::kTraining),
        given_outputs_(given.optimizer.kind == OptimizerSpec::Kind::kNone ? model.outputs
                                                                          : std::vector<std::string>()),
        limited_rows_(limited_rows),
        batch_(model.batch),
        batch_dimension_(model.batch_dimension),
        length_dimension_(model.length_dimension) {
    options_.dimensions = model.dimensions;
    options_.chosen = model.chosen;
    options_.supported = canTrain;
    if (!length_dimension_.empty()) longest_ = options_.dimensions.at(length_dimension_);
    Graph as_declared = prepare(model.batch);
    misnamed_ = misnamedOutputs(raw_, as_declared, options_.dimensions);
    Graph whole = withRowsFirst(std::move(as_declared), model.batch);
    order_ = nodeOrderForCuts(whole);
    reorderNodes(whole, order_);
    copyUnmadeOutputs(whole, given_outputs_);
    made_.emplace(std::pair(longest_, model.batch), std::move(whole));
  }

  const FoundPatterns& patterns() const { return found_; }  // the same at every size
  const MixedNodes& mixedNodes() const { return mixed_; }
  const std::vector<std::string>& misnamed() const { return misnamed_; }  // misnamedOutputs
  const TrainingModes& leftModes() const { return left_modes_; }  // what an evaluation has put out of it
  const Graph& of(int64_t rows) { return of(rows, longest_); }
  // With sequences of so many elements.
  const Graph& of(int64_t rows, int64_t length) {
    const auto found = made_.find({length, rows});
    if (found != made_.end()) return found->second;
    if (!length_dimension_.empty()) options_.dimensions[length_dimension_] = length;
    try {
      Graph graph = withRowsFirst(prepare(rows), rows);
      if (graph.nodes.size() == order_.size()) reorderNodes(graph, order_);
      copyUnmadeOutputs(graph, given_outputs_);
      return made_.emplace(std::pair(length, rows), std::move(graph)).first->second;
    } catch (Error& error) {
      if (rows < batch_)
        error.addContext(fmt::format("with {} of {} rows (fewer --microbatches have more)", rows, batch_));
      throw;
    }
  }

 private:
  Graph withoutPatterns(int64_t rows) {
    if (options_.dimensions.contains(batch_dimension_)) options_.dimensions[batch_dimension_] = rows;
    const bool is_limited = rows <= limited_rows_;
    options_.tensor_elements = is_limited ? ImportLimits().tensor_elements : UINT64_MAX;
    return prepareModel(raw_, options_);
  }

  // By which patterns tell a single row from an axis of one. Nothing where the model takes no two.
  std::optional<Graph> twoRows() {
    const PrepareOptions of_one = options_;
    std::optional<Graph> graph;
    try {
      graph = withoutPatterns(2);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kBadModel) throw;
    }
    options_ = of_one;
    return graph;
  }

  Graph prepare(int64_t rows) {
    Graph graph = withoutPatterns(rows);
    const bool is_one_row = rows == 1 && options_.dimensions.contains(batch_dimension_);
    const MakeMoreRows more_rows = is_one_row ? MakeMoreRows([this] { return twoRows(); }) : nullptr;
    if (patterns_ == Patterns::kOn) found_ = recognisePatterns(graph, more_rows);
    if (isHalf(precision_)) mixed_ = mixPrecision(graph, precision_, keep_float32_);
    if (evaluates_) left_modes_ = trainingModes(graph);
    if (left_modes_.any()) setEvaluationMode(graph);
    return graph;
  }

  // Where rows of the batch are merged behind another axis they come first. Another batch tells which axis is
  // the batch; it is prepared where there is anything to ask.
  Graph withRowsFirst(Graph graph, int64_t rows) {
    if (!options_.dimensions.contains(batch_dimension_) || !mayMergeRows(graph, rows)) return graph;
    const int64_t other_rows = 2 * rows;  // whole groups of rows, where the model has such
    std::optional<Graph> other;
    try {
      other = prepare(other_rows);
    } catch (Error& error) {
      // A row is never cut: the file need take no other batch.
      if (batch_ == 1 && error.code() == ErrorCode::kBadModel) return graph;
      error.addContext(fmt::format("with {} rows, which tell where the batch is", other_rows));
      throw;
    }
    mergeRowsFirst(graph, rows, *other, other_rows);
    return graph;
  }

  Graph raw_;
  Patterns patterns_;
  DataType precision_;
  std::vector<std::string> keep_float32_;
  bool evaluates_;
  std::vector<std::string> given_outputs_;  // of an evaluation
  MixedNodes mixed_;
  FoundPatterns found_;
  std::vector<std::string> misnamed_;
  TrainingModes left_modes_;
  int64_t limited_rows_, batch_;
  PrepareOptions options_;
  std::string batch_dimension_, length_dimension_;
  int64_t longest_ = 0;  // sequences; 0: there is one length
  std::vector<size_t> order_;
  std::map<std::pair<int64_t, int64_t>, Graph> made_;  // by length and rows
};

// The loss that is asked for. A model that has none is evaluated, or looked at, without.
LossSpec lossToAttach(const PlanRequest& request, const Graph& raw, const std::string& loss_of_form) {
  const bool trains = request.given.optimizer.kind != OptimizerSpec::Kind::kNone && !request.any_sizes;
  if (trains && request.loss.isNone()) {
    fail(
        ErrorCode::kUsage,
        "--loss none: training needs a loss; without one a model can be evaluated (--schedule forward-only)");
  }
  const bool by_itself = request.loss.isModelOutput() && request.loss.terms[0].prediction.empty();
  if (by_itself && !loss_of_form.empty()) return parseLoss(loss_of_form);
  return !trains && by_itself && !hasLossOutput(raw) ? LossSpec{{}} : request.loss;
}

// Where the weights come from that are not in the file. To look, any numbers will do.
std::vector<std::string> weightSources(const PlanRequest& request, const ForwardModel& model) {
  const std::vector<std::string>& sources = request.given.weights;
  if (request.any_sizes && sources.empty() && !model.form.weight_inputs.empty()) return {"random"};
  return sources;
}

void takeWeights(const PlanRequest& request, Graph& raw, ForwardModel& model) {
  GivenWeights given = takeGivenWeights(raw, weightSources(request, model), model.form.weight_inputs,
                                        model.parameters.absent());
  for (std::string& note : given.notes) model.notes.push_back(std::move(note));
  given.stored_types.merge(model.source_types);
  model.source_types = std::move(given.stored_types);
  std::vector<std::string> open;
  for (const ValueId input : raw.inputs) {
    const std::vector<std::string>& weights = model.form.weight_inputs;
    if (std::find(weights.begin(), weights.end(), raw.value(input).name) != weights.end())
      open.push_back(raw.value(input).name);
  }
  if (open.empty()) return;
  fail(ErrorCode::kUsage,
       "{} of this file ({}): {}; their content is not in it: --weights FILE.safetensors has it by these "
       "names, "
       "or --weights random draws it",
       open.size() == 1 ? "an input is a weight" : fmt::format("{} inputs are weights", open.size()),
       modelFormName(model.form.form), fmt::join(open, ", "));
}

// A file whose parameters are halves is trained in float32, from the numbers that it has.
// (By now they have their own names.) `whole`: the file with all of its outputs, or empty.
void widenWhatIsTrained(const PlanRequest& request, Graph& raw, Graph& whole, ForwardModel& model) {
  if (request.given.optimizer.kind == OptimizerSpec::Kind::kNone || !trainsNarrowFloats(raw)) return;
  model.source_types = widenNarrowFloats(raw).source_types;
  widenNarrowFloats(whole);
  const DataType precision = request.given.precision;
  const DataType trained = precision == DataType::kFloat64 ? precision : DataType::kFloat32;
  model.notes.push_back(
      fmt::format("weights of the file are half precision: they are trained as {}{}", dataTypeName(trained),
                  isHalf(precision) ? "" : ", as is all else (--precision bfloat16: but activations)"));
}

// The module as it was exported, and what there is to say of it.
RestoredModule takeModule(const PlanRequest& request, Graph& raw, ForwardModel& model) {
  const bool trains = request.given.optimizer.kind != OptimizerSpec::Kind::kNone;
  const bool takes_optimizer = !request.optimizer_given && !request.any_sizes && trains;
  RestoredModule module = restoreModule(
      raw, {.form = {.loss = request.loss.isModelOutput() ? request.loss.terms[0].prediction : "",
                     .optimizer_given = !takes_optimizer},
            .mode = request.given.mode,
            .trains = trains,
            .keeps_refusal = request.any_sizes});
  model.form = std::move(module.reduced.found);
  model.optimizer = std::move(module.reduced.optimizer);
  model.parameters = std::move(module.parameters);
  if (model.refusal.empty()) model.refusal = std::move(module.refusal);
  std::vector<std::string>& notes = model.notes;
  notes = std::move(module.reduced.notes);
  if (request.loss.readsModelOutput())
    notes.insert(notes.end(), module.smoothing.begin(), module.smoothing.end());
  notes.insert(notes.end(), module.notes.begin(), module.notes.end());
  for (std::string& note : moduleNotes(model.parameters, trains)) notes.push_back(std::move(note));
  return module;
}

// Keeps the backward pass that the file has, to compare gradients with. `joint`: the file with all of its
// outputs, or empty.
void keepImported(const PlanRequest& request, Graph joint, ImportedBackward backward, const std::string& loss,
                  ForwardModel& model) {
  const ValueId in_file = findValue(joint, loss);
  if (backward.gradients.empty() || !request.loss.isModelOutput() || !in_file.valid()) return;
  takeGivenWeights(joint, weightSources(request, model), model.form.weight_inputs);
  joint.outputs = {in_file};
  for (const ImportedGradient& gradient : backward.gradients)
    joint.outputs.push_back(findValue(joint, gradient.output));
  setPrecision(joint, request.in_float64 ? DataType::kFloat64 : request.given.precision);
  model.imported =
      std::make_shared<ImportedModel>(ImportedModel{std::move(joint), std::move(backward), loss});
}

// Which weights are trained, the loss, and a backward pass that the model may have been exported with.
// Returns the loss's name; "" without a loss. Each pass stands where it does for the reason beside it.
std::string readRoles(const PlanRequest& request, const AskedStages& stages, Graph& raw,
                      ForwardModel& model) {
  // First: all that follows knows weights by the module's names, and asks which of them are parameters.
  RestoredModule module = takeModule(request, raw, model);
  Graph joint = std::move(module.joint);

  // Behind restoreParameters, since marked parameters are no statistics; before types and gradients, which
  // ask what is trained.
  if (std::string note = takeWrittenStatistics(raw); !note.empty()) model.notes.push_back(std::move(note));
  if (std::string note = quantizedNote(raw); !note.empty()) model.notes.push_back(std::move(note));

  // Types before weights: numbers that are given are converted to the type that is trained. Weights before
  // gradients, which belong to weights: inputs that are weights become initializers here.
  widenWhatIsTrained(request, raw, joint, model);
  takeWeights(request, raw, model);
  ImportedBackward backward = takeBackward(raw);

  // Behind takeBackward, which marks what the file trains: the user's choice wins, and notes are silent on
  // it.
  const auto add = [&](std::vector<std::string> lines) {
    std::ranges::copy_if(lines, std::back_inserter(model.notes), [](auto& line) { return !line.empty(); });
  };
  std::vector<std::string> lost;
  for (const LostParameter& parameter : model.parameters.lost) lost.push_back(parameter.name);
  add(overrideParameters(raw, request.given.train, request.given.freeze, lost));
  const bool trains = request.given.optimizer.kind != OptimizerSpec::Kind::kNone;
  if (trains) add({likelyBuffers(raw), untoldParameters(raw), likelyLossWeights(raw), straightThroughs(raw)});

  // Behind takeBackward, too: outputs that are gradients cannot be taken for the loss. The values that a loss
  // reads need types and axes before it is attached.
  const LossSpec asked = lossToAttach(request, raw, module.reduced.loss);
  add(correctDimensionNames(raw, request.dimensions));
  add(nameAxes(raw, asked.valuesRead(), askedSizes(request, stages, raw)));
  const ValueId loss = attachLoss(raw, asked, &model.notes);

  // Behind the loss: what it needs is never left out, its labels are read, and it is no further output.
  if (const std::vector<std::string> unknown = leaveOutUnknownOutputs(raw, loss); !unknown.empty())
    // What is evaluated lacks them: that is said first.
    model.notes.insert(loss.valid() ? model.notes.end() : model.notes.begin(),
                       unknownOutputsNote(unknown, loss.valid()));
  add({unreadInputsNote(unreadInputs(raw))});
  model.outputs = furtherOutputs(raw, loss, trains);
  if (!loss.valid()) return "";
  const std::string name = raw.value(loss).name;
  keepImported(request, std::move(joint), std::move(backward), name, model);
  return name;
}

// What will be made float64 in the end begins as it would without.
PrecisionChange setParameterTypes(const PlanRequest& request, Graph& raw) {
  if (!request.in_float64) return setPrecision(raw, request.given.precision);
  Graph wide = raw;
  return widenToFloat64(wide);
}

void notePatterns(const FoundPatterns& patterns, ForwardModel& model) {
  if (std::string found = patternsToString(patterns); !found.empty())
    model.notes.push_back(fmt::format("patterns: {} (--patterns off keeps them)", found));
  model.missed_patterns = patterns.missed;
}

void noteLeftModes(const TrainingModes& modes, ForwardModel& model) {
  if (!modes.any()) return;
  model.notes.push_back(fmt::format(
      "put into evaluation mode, as --schedule forward-only evaluates: {} (--mode training leaves {} in "
      "training mode)",
      trainingModesToString(modes), modes.normalizations + modes.dropouts == 1 ? "it" : "them"));
}

// The mask of a dropout in evaluation mode is always true.
void noteDrawnInputs(ForwardModel& model) {
  const auto drawn = std::count_if(model.graph.inputs.begin(), model.graph.inputs.end(), [&](ValueId input) {
    const std::optional<RandomNumbers>& numbers = model.graph.value(input).drawn;
    return numbers && (numbers->kind != RandomNumbers::Kind::kTrue || numbers->probability < 1);
  });
  if (drawn > 0) {
    model.notes.push_back(
        fmt::format("random numbers (dropout and the like): {} drawn in every step; --seed of `run` and "
                    "`validate` decides",
                    drawn == 1 ? "1 tensor is" : fmt::format("{} tensors are", drawn)));
  }
}

// Weights that are drawn need no file.
Graph readFile(const PlanRequest& request) {
  ReadOptions read = planningReadOptions(request.external_data_root);
  const auto drawsMissing = [](const std::string& text) {
    return parseWeightSource(text).kind == WeightSource::Kind::kRandomMissing;
  };
  const bool draws = std::any_of(request.given.weights.begin(), request.given.weights.end(), drawsMissing);
  read.require_external_data = !request.allow_missing_weights && !draws;
  return readForPlanning(request.model_path, read);
}

// The batch, the lengths of sequences, the number of microbatches.
void decideSizes(const PlanRequest& request, const AskedStages& stages, Graph& raw, ForwardModel& model) {
  BatchDimension batch = decideBatchDimension(request, stages, raw);
  model.batch_dimension = std::move(batch.name);
  model.dimensions = std::move(batch.dimensions);
  model.chosen = std::move(batch.chosen);
  model.notes.insert(model.notes.end(), batch.notes.begin(), batch.notes.end());
  takeLengths(request, model);
  if (model.batch_dimension.empty()) model.fixed_batch = fixedBatch(raw);
  decideMicrobatches(request, stages, model);
  model.batch_axes =
      model.fixed_batch > 0 ? fixedBatchAxes(raw, model.fixed_batch) : batchAxes(raw, model.batch_dimension);
}

// Tried with one row, and as it is planned.
std::shared_ptr<Preparer> prepareWithFewerOutputs(
    const std::function<std::shared_ptr<Preparer>(const Graph&)>& prepare, Graph& raw, ForwardModel& model) {
  std::vector<std::string> left_out = clearTheWay(raw, model.outputs, [&](const Graph& graph) {
    prepareOneRow(graph, model.dimensions, model.batch_dimension);
  });
  std::shared_ptr<Preparer> preparer;
  try {
    preparer = prepare(raw);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadModel) throw;
    const std::vector<std::string> more = clearTheWay(raw, model.outputs, prepare);
    if (more.empty()) throw;
    left_out.insert(left_out.end(), more.begin(), more.end());
    preparer = prepare(raw);
  }
  if (!left_out.empty()) model.notes.push_back(inTheWayNote(left_out));
  return preparer;
}

// The graphs of all sizes, and of the largest microbatch what there is to say.
void prepareSizes(const PlanRequest& request, Graph raw, ValueId loss, ForwardModel& model) {
  const size_t behind_microbatches = model.notes.size();
  const int64_t rows = TrainingFamily(model.batch, model.microbatches, nullptr).largestMicrobatch();
  const bool is_searched = request.partition.stages.kind == StagesRequest::Kind::kSearched;
  const int64_t limited = is_searched ? 1 : rows;
  const auto prepare = [&](const Graph& graph) {
    auto preparer = std::make_shared<Preparer>(graph, model, request.given, limited);
    preparer->of(rows);
    return preparer;
  };
  const bool trains = request.given.optimizer.kind != OptimizerSpec::Kind::kNone && loss.valid();
  const bool may_have_fewer = trains && haveOperatorsOfTheirOwn(raw, loss, model.outputs);
  const auto preparer = may_have_fewer
                            ? prepareWithFewerOutputs(prepare, raw, model)
                            : std::make_shared<Preparer>(std::move(raw), model, request.given, limited);
  model.notes.insert(model.notes.end(), preparer->misnamed().begin(), preparer->misnamed().end());
  notePatterns(preparer->patterns(), model);
  if (isHalf(request.given.precision)) {
    model.mixed = preparer->mixedNodes();
    model.notes.push_back(mixedNodesToString(*model.mixed, request.given.precision));
    noteLossScaling(model.extras.loss_scaling, request.given.optimizer, model.notes);
  }
  model.prepared = [preparer](int64_t rows) -> const Graph& { return preparer->of(rows); };
  model.prepared_at = [preparer](int64_t rows, int64_t length) -> const Graph& {
    return preparer->of(rows, length);
  };
  model.graph = model.prepared(rows);
  if (std::string note = normalizedRowsNote(request, model); !is_searched && !note.empty())
    model.notes.insert(model.notes.begin() + static_cast<int64_t>(behind_microbatches), std::move(note));
  noteLeftModes(preparer->leftModes(), model);
  noteDrawnInputs(model);
}

void findLoss(const std::string& name, ForwardModel& model) {
  model.loss = findValue(model.graph, name);
  PIPESHARD_CHECK(model.loss.valid(), "the loss '{}' was lost in preparation", name);
  if (elementCount(model.graph.shape(model.loss)) != 1)
    fail(ErrorCode::kBadModel, "the loss '{}' is no scalar: its shape is {}", name,
         shapeToString(model.graph.shape(model.loss)));
}

}  // namespace

ForwardModel loadForward(const PlanRequest& request, const AskedStages& stages,
                         const ProgressCallback& progress) {
  if (!request.given.keep_float32.empty() && !isHalf(request.given.precision)) {
    fail(ErrorCode::kUsage,
         "--keep-float32 goes with --precision bfloat16 or float16: in {} every operator is kept",
         dataTypeName(request.given.precision));
  }
  progress("reading " + request.model_path);
  const Rehearsals rehearsals(request.trust_model ? Rehearsing::kNever : rehearsalOf(request.model_path));
  Graph raw = readFile(request);
  try {
    std::optional<FileShardings> file_shardings;
    const ShardingRequest& sharding = request.partition.sharding;
    if (sharding.method == ShardingMethod{ShardingKind::kManual} && sharding.constraints.empty())
      file_shardings = readFileShardings(raw, sharding.mesh);
    findRanksOfOutputs(raw, askedSizes(request, stages, raw));
    ForwardModel model;
    if (request.given.optimizer.kind != OptimizerSpec::Kind::kNone)
      refuseOrKeep(request.any_sizes, model.refusal, [&] {
        refuseFakeQuantized(raw, request.given.train);
        refuseQuantizedOrSparse(raw, request.given.train);
      });
    for (const std::string& group : request.given.groups) model.groups.push_back(parseParameterGroup(group));
    model.extras = updateExtras(request.given);
    model.in_float64 = request.in_float64;
    const std::string loss_name = readRoles(request, stages, raw, model);
    model.file_shardings = std::move(file_shardings);
    model.source_types.merge(setParameterTypes(request, raw).source_types);
    decideSizes(request, stages, raw, model);
    progress("preparing the graph of one microbatch");
    const ValueId loss = loss_name.empty() ? ValueId() : findValue(raw, loss_name);
    prepareSizes(request, std::move(raw), loss, model);
    requireShorterSequences(model);
    if (!loss_name.empty()) findLoss(loss_name, model);
    return model;
  } catch (Error& error) {
    error.addContext(request.model_path);
    throw;  // whatever kind of error it is
  }
}

void useFileShardings(ForwardModel& model, ShardingRequest& request) {
  if (!model.file_shardings) return;
  request.mesh = model.file_shardings->mesh;
  for (const auto& [name, spec] : model.file_shardings->specs) {
    if (findValue(model.graph, name).valid()) request.constraints.push_back({name, spec});
  }
  const std::vector<std::string>& notes = model.file_shardings->notes;
  model.notes.insert(model.notes.end(), notes.begin(), notes.end());
}

void setMicrobatches(int64_t microbatches, ForwardModel& model) {
  const std::string loss = model.loss.valid() ? lossName(model) : "";
  model.microbatches = microbatches;
  model.graph = model.prepared(TrainingFamily(model.batch, microbatches, nullptr).largestMicrobatch());
  if (!loss.empty()) model.loss = findValue(model.graph, loss);
}

std::string lossName(const ForwardModel& model) {
  return model.loss.valid() ? model.graph.value(model.loss).name : lossToString(LossSpec{{}});
}

}  // namespace pipeshard
