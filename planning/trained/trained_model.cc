#include "planning/trained/trained_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/convert.h"
#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/weight_files.h"
#include "ir/graph/weight_role.h"
#include "ir/plan/moving_average.h"
#include "onnx_import/autodiff/parameters.h"
#include "onnx_import/autodiff/update.h"
#include "onnx_import/exporter/module_mode.h"
#include "onnx_import/exporter/module_parameters.h"
#include "onnx_import/exporter/running_statistics.h"
#include "onnx_import/format/training_info.h"
#include "onnx_import/format/writer.h"
#include "onnx_import/forms/describe_training.h"
#include "onnx_import/loss/axis_names.h"
#include "onnx_import/loss/loss.h"
#include "planning/directory/plan_directory.h"
#include "planning/model/batch_dimension.h"
#include "planning/model/given_weights.h"
#include "planning/model/module_reading.h"
#include "runtime/files/posix_file.h"
#include "runtime/files/weight_check.h"
#include "runtime/files/weights.h"

namespace pipeshard {
namespace {

constexpr WeightRemedies kRemedies = {
    "say where the model is now, with its weights beside it: `export --model FILE.onnx`",
    "the weights that were planned are needed: put them back, or say where they are: `export --model "
    "FILE.onnx`"};
constexpr std::string_view kBatchesTracked = ".num_batches_tracked";

// The model's graph, and for its initializers the name of the checkpoint's tensor that they get.
class Trained {
 public:
  Trained(const Checkpoint& checkpoint, const TrainedModelRequest& request)
      : checkpoint_(checkpoint),
        plan_(readPlanFile((std::filesystem::path(checkpoint.directory) / "plan.json").string())),
        tensors_(openTensors(checkpoint)) {
    findModel(request.model);
    // Unlike in planning: weights that were drawn have no file, others are missed when they are read.
    ReadOptions read = planningReadOptions(request.external_data_root);
    read.require_external_data = false;
    graph_ = readForPlanning(plan_.model_path, read);
    nameParameters();
    findTrained(request.moving_average);
  }

  Graph& graph() { return graph_; }
  TrainedModelSummary& summary() { return summary_; }
  bool isTrained(ValueId id) const { return trained_.contains(id); }
  // Of what is trained: as the checkpoint has it.
  DataType trainedType(ValueId id) const { return tensors_.find(trained_.at(id)).data_type; }
  const std::vector<TiedName>& otherNames() const { return other_names_; }
  const std::vector<LostParameter>& lost() const { return lost_; }
  const Plan& plan() const { return plan_; }

  // To be called when the initializers have their content.
  void describe() {
    const GivenOptions& given = plan_.given;
    if (given.clip_value != 0 || (given.clip_norm != 0 && !std::isinf(given.clip_norm))) {
      fail(ErrorCode::kConfiguration,
           "--training-info: gradients were clipped, which training information cannot say; export without "
           "it");
    }
    TrainingDescription training;
    training.optimizer = plan_.given.optimizer;
    for (const std::string& group : plan_.given.groups) training.groups.push_back(parseParameterGroup(group));
    const LossSpec loss = parseLoss(plan_.loss);
    nameAxes(graph_, loss.valuesRead(), askedSizes(plan_, graph_));
    const ValueId value = attachLoss(graph_, loss);
    training.loss = graph_.value(value).name;
    for (const auto& [id, tensor] : trained_) {
      if (tensor.starts_with(kParameterPrefix)) training.parameters.push_back(graph_.value(id).name);
    }
    describeTraining(graph_, training);
    std::vector<TrainingInfo> infos = trainingInfo(graph_);
    for (TrainingInfo& info : infos) {
      for (auto& [id, content] : info.algorithm.initializers) continueFrom(info.algorithm, id, content);
    }
    setTrainingInfo(graph_, infos);
  }

  // Of an initializer, as it is to be written.
  std::vector<std::byte> content(ValueId id) const {
    const auto found = trained_.find(id);
    if (found == trained_.end()) return untrainedContent(id);
    JoinedTensors::Tensor tensor = tensors_.read(found->second);
    const DataType type = graph_.dataType(id);
    if (tensor.data_type == type) return std::move(tensor.bytes);
    std::vector<std::byte> converted(byteCount(type, tensor.shape));
    const int64_t count = elementCount(tensor.shape);
    convertElements(tensor.data_type, tensor.bytes.data(), type, converted.data(), count);
    const int64_t beyond = countBeyond(tensor.data_type, tensor.bytes.data(), type, converted.data(), count);
    if (beyond > 0)
      fail(
          ErrorCode::kNotANumber,
          "'{}' has {} beyond the range of {}, which the model's file has: the training has diverged; export "
          "an earlier checkpoint",
          graph_.value(id).name, counted(beyond, "number"), dataTypeName(type));
    return converted;
  }

 private:
  // A project may have been moved, or copied to another machine, since it was planned.
  void findModel(const std::string& now) {
    namespace fs = std::filesystem;
    std::vector<WeightFile> files = readWeightFiles(checkpoint_.directory);
    // What a plan keeps itself is made of the model's file, which is read here.
    std::erase_if(files, [](const WeightFile& file) { return fs::path(file.path).is_relative(); });
    if (!now.empty()) {
      const fs::path old_model = plan_.model_path, model = fs::absolute(now);
      const auto move = [&](std::string& path) {
        const fs::path beside = fs::path(path).lexically_relative(old_model.parent_path());
        if (path == old_model)
          path = model.string();
        else if (!beside.empty() && *beside.begin() != ".." && fs::path(path).is_absolute())
          path = (model.parent_path() / beside).string();
      };
      for (WeightFile& file : files) move(file.path);
      for (std::string& path : plan_.given.weights) move(path);
      plan_.model_path = model.string();
    }
    if (!fs::exists(plan_.model_path)) {
      fail(ErrorCode::kMissingInput,
           "checkpoint {} is of the model {}, which does not exist; put it back, or {}",
           checkpoint_.directory, plan_.model_path, kRemedies.of_missing);
    }
    checkWeightFiles(files, checkpoint_.directory, kRemedies);
  }

  // As planning does, which then widens halves and marks statistics: neither changes a name.
  void nameParameters() {
    // Of the form only weight inputs are asked for: an update that is not understood does not matter here.
    RestoredModule module = restoreModule(
        graph_, {.form = {.loss = "", .optimizer_given = true}, .purpose = ModulePurpose::kExport});
    ModuleParameters& parameters = module.parameters;
    GivenWeights given = takeGivenWeights(graph_, plan_.given.weights, module.reduced.found.weight_inputs,
                                          parameters.absent());
    stored_types_ = std::move(given.stored_types);
    other_names_ = std::move(parameters.other_names);
    lost_ = std::move(parameters.lost);
    if (!parameters.unread.empty()) {
      summary_.notes.push_back(fmt::format("not in the file, as the forward pass never reads them: {}",
                                           fmt::join(parameters.unread, ", ")));
    }
  }

  void findTrained(bool moving_average) {
    std::vector<std::string> strange;
    int64_t averages = 0;
    for (const std::string& name : tensors_.names()) {
      const bool parameter = name.starts_with(kParameterPrefix);
      if (!parameter && !name.starts_with(kForwardStatePrefix)) continue;
      const ValueId id = findValue(graph_, name.substr(name.find('/') + 1));
      const Shape& shape = tensors_.find(name).whole;
      if (!id.valid() || !graph_.initializers.contains(id) || !isStoredAs(shape, graph_.shape(id))) {
        strange.push_back(name);
        continue;
      }
      const std::string average = fmt::format("state/{}.{}", name.substr(name.find('/') + 1), kMovingAverage);
      const bool averaged = moving_average && parameter && tensors_.has(average);
      averages += averaged ? 1 : 0;
      trained_.emplace(id, averaged ? average : name);
      ++(parameter ? summary_.parameters : summary_.statistics);
      if (parameter) summary_.elements += elementCount(shape);
    }
    if (strange.empty() && moving_average && averages == 0) {
      fail(ErrorCode::kConfiguration,
           "checkpoint {} has no moving averages of parameters; a plan that is made with --ema DECAY keeps "
           "them",
           checkpoint_.directory);
    }
    if (strange.empty()) return;
    fail(ErrorCode::kConfiguration,
         "checkpoint {} has tensors that {} has not, under these names and in these shapes: {}; was the "
         "model exported "
         "again since?",
         checkpoint_.directory, plan_.model_path, fmt::join(strange, ", "));
  }

  // A state of the optimizer, or its count of steps, which describeTraining lets begin at 0.
  void continueFrom(const Graph& algorithm, ValueId id, Initializer& content) const {
    const std::string tensor = "state/" + algorithm.value(id).name;
    const DataType type = algorithm.dataType(id);
    if (algorithm.value(id).name == "step" && type == DataType::kInt64) {
      content = makeScalar(type, static_cast<double>(checkpoint_.step * plan_.updates_per_step));
    } else if (tensors_.has(tensor)) {
      JoinedTensors::Tensor state = tensors_.read(tensor);
      std::vector<std::byte> bytes(byteCount(type, state.shape));
      convertElements(state.data_type, state.bytes.data(), type, bytes.data(), elementCount(state.shape));
      content = Constant{type, algorithm.shape(id), std::move(bytes)};
    }
  }

  std::vector<std::byte> untrainedContent(ValueId id) const {
    Buffer buffer;
    buffer.name = buffer.value = graph_.value(id).name;
    buffer.kind = BufferKind::kWeight;
    buffer.data_type = buffer.source_type = graph_.dataType(id);
    buffer.shape = graph_.shape(id);
    buffer.source = absoluteSource(graph_, id);
    if (const auto stored = stored_types_.find(buffer.value); stored != stored_types_.end())
      buffer.source_type = stored->second;
    std::vector<std::byte> bytes(byteCount(buffer.data_type, buffer.shape));
    loadInitialContent(buffer, "", checkpoint_.seed, bytes);
    return bytes;
  }

  const Checkpoint& checkpoint_;
  Plan plan_;
  JoinedTensors tensors_;
  Graph graph_;
  std::map<ValueId, std::string> trained_;
  std::vector<TiedName> other_names_;
  std::vector<LostParameter> lost_;
  std::map<std::string, DataType> stored_types_;
  TrainedModelSummary summary_;
};

// Those whose content has to be brought in: all but small ones that stay as they are.
std::vector<ValueId> initializersToWrite(const Trained& trained, const Graph& graph) {
  std::vector<ValueId> ids;
  for (const auto& [id, initializer] : graph.initializers) {
    if (trained.isTrained(id) || std::holds_alternative<WeightReference>(initializer)) ids.push_back(id);
  }
  return ids;
}

// What a module's state has. `buffers`: by name, where the file says which there are; else `parameters` are
// what a plan would train, and whatever is large.
bool isModules(const Trained& trained, const Graph& graph, ValueId id,
               const std::optional<std::set<std::string>>& buffers, const std::vector<ValueId>& parameters) {
  const Value& value = graph.value(id);
  if (trained.isTrained(id) || isMarkedParameter(value)) return true;
  if (buffers) return buffers->contains(value.name);
  if (std::ranges::binary_search(parameters, id)) return true;
  return isFloatingPoint(value.data_type) &&
         std::holds_alternative<WeightReference>(graph.initializers.at(id));
}

// Keeps what views of tensors point to.
struct StateTensors {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<TensorView> views;

  void add(const std::string& name, DataType type, const Shape& shape, std::vector<std::byte> content) {
    bytes.push_back(std::move(content));
    views.push_back({name, type, shape, bytes.back().data()});
  }

  const TensorView* find(const std::string& name) const {
    const auto found = std::ranges::find(views, name, &TensorView::name);
    return found == views.end() ? nullptr : &*found;
  }

  void addTied(const TiedName& tied) {
    const TensorView* const one = find(tied.parameter);
    if (one == nullptr || find(tied.name) != nullptr) {
      std::vector<std::string> names;
      for (const TensorView& view : views) names.push_back(view.name);
      std::ranges::sort(names);
      fail(ErrorCode::kUsage, "--tied {}={}: the module's tensors {} '{}'; they are: {}", tied.parameter,
           tied.name, one == nullptr ? "have no" : "have already a",
           one == nullptr ? tied.parameter : tied.name, fmt::join(names, ", "));
    }
    views.push_back({tied.name, one->data_type, one->shape, one->data});
  }
};

constexpr size_t kMostNoted = 4;

void noteMissing(const char* noun, const std::vector<std::string>& missing, TrainedModelSummary& summary) {
  if (missing.empty()) return;
  summary.notes.push_back(fmt::format(
      "{} of the module not in the model's file, so not here: {}; load_state_dict(..., strict=False) keeps "
      "the module's own",
      counted(std::ssize(missing), noun), listed(missing, kMostNoted)));
}

// The exporter has computed with them what the file has in their place.
void noteMissingBuffers(const std::set<std::string>& buffers, const StateTensors& state,
                        TrainedModelSummary& summary) {
  std::vector<std::string> missing;
  for (const std::string& name : buffers) {
    if (!name.ends_with(kBatchesTracked) && state.find(name) == nullptr) missing.push_back(name);
  }
  noteMissing("buffer", missing, summary);
}

// Likewise; some it has by their names, with others folded into them.
void noteLostParameters(const std::vector<LostParameter>& lost, const StateTensors& state,
                        TrainedModelSummary& summary) {
  std::vector<std::string> missing, changed;
  for (const LostParameter& parameter : lost) {
    (state.find(parameter.name) == nullptr ? missing : changed)
        .push_back(fmt::format("{} ({})", parameter.name, parameter.reason));
  }
  noteMissing("parameter", missing, summary);
  if (changed.empty()) return;
  summary.notes.push_back(fmt::format("{} here as the model's file has {}, not as the module: {}",
                                      counted(std::ssize(changed), "parameter"),
                                      changed.size() == 1 ? "it" : "them", listed(changed, kMostNoted)));
}

// Weights that were trained in a wider type than the file has.
void noteRounded(Trained& trained) {
  std::vector<std::string> names;
  DataType narrow = DataType::kUndefined;
  for (const auto& [id, initializer] : trained.graph().initializers) {
    const DataType type = trained.graph().dataType(id);
    if (!trained.isTrained(id) || dataTypeSize(type) >= dataTypeSize(trained.trainedType(id))) continue;
    names.push_back(trained.graph().value(id).name);
    narrow = type;
  }
  if (names.empty()) return;
  trained.summary().notes.push_back(
      fmt::format("rounded to {}, which the model's file has (the checkpoint keeps what was trained): {}",
                  dataTypeName(narrow), listed(names, kMostNoted)));
}

// "onnx::MatMul_330", "val_14"
bool isExportersName(std::string_view name) {
  constexpr std::string_view kValue = "val_";
  return name.starts_with("onnx::") ||
         (name.starts_with(kValue) && name.find_first_not_of("0123456789", kValue.size()) == name.npos);
}

// Tensors that load_state_dict does not find in the module.
void noteExportersNames(const Graph& graph, const StateTensors& state, TrainedModelSummary& summary) {
  std::vector<std::string> names;
  for (const TensorView& view : state.views) {
    if (!isExportersName(view.name)) continue;
    const ValueId id = findValue(graph, view.name);
    const bool factor = view.shape.size() == 2 && std::ranges::any_of(graph.nodes, [&](const Node& node) {
                          return node.is("MatMul") && node.inputs.size() == 2 && node.inputs[1] == id;
                        });
    names.push_back(view.name + (factor ? " (of a Linear: transposed)" : ""));
  }
  if (names.empty()) return;
  summary.notes.push_back(
      fmt::format("{} under the exporter's names, which the module does not have; its own are not in the "
                  "model's file: {}",
                  counted(std::ssize(names), "tensor"), listed(names, kMostNoted)));
}

// Of a file that does not list the module's buffers: small ones, and what is taken for constants.
void noteTensorsLeftOut(const Graph& graph, const StateTensors& state, TrainedModelSummary& summary) {
  std::vector<std::string> names;
  for (const auto& [id, initializer] : graph.initializers) {
    const std::string& name = graph.value(id).name;
    const bool may_be_modules = isFloatingPoint(graph.dataType(id)) && !isMade(graph.value(id)) &&
                                (namesBuffer(name) || namesParameter(name));
    if (may_be_modules && state.find(name) == nullptr) names.push_back(name);
  }
  if (names.empty()) return;
  summary.notes.push_back(
      fmt::format("{} of the model's file not here, as nothing trains {}: {}; where the module has {}, "
                  "load_state_dict(..., strict=False) keeps its own",
                  counted(std::ssize(names), "tensor"), names.size() == 1 ? "it" : "them",
                  listed(names, kMostNoted), names.size() == 1 ? "it" : "them"));
}

// Modes first: they change no value that a weight is. `inference`: TrainedModelRequest::in_inference_mode.
void writeModes(Trained& trained, bool inference) {
  const TrainingModes modes = inference ? setInferenceMode(trained.graph()) : trainingModes(trained.graph());
  std::vector<std::string>& notes = trained.summary().notes;
  if (inference) {
    notes.push_back(modes.any()
                        ? fmt::format("put into inference mode: {}", trainingModesToString(modes))
                        : "--mode evaluation changes nothing: nothing in the file is in training mode");
  } else if (modes.any()) {
    notes.push_back(fmt::format(
        "in training mode, as the file that was planned: {} (--mode evaluation writes "
        "{} in inference mode)",
        trainingModesToString(modes), modes.normalizations + modes.dropouts == 1 ? "it" : "them"));
  }
}

}  // namespace

void addTiedNames(const std::string& text, TrainedModelRequest& request) {
  const size_t equals = text.find('=');
  const std::string parameter = text.substr(0, equals);
  size_t at = equals == std::string::npos ? text.size() : equals;
  bool whole = at < text.size() && !parameter.empty();
  while (whole && at < text.size()) {
    const size_t end = std::min(text.find(',', at + 1), text.size());
    const std::string name = text.substr(at + 1, end - at - 1);
    whole = !name.empty();
    request.tied.push_back({name, parameter});
    at = end;
  }
  if (!whole) {
    fail(ErrorCode::kUsage,
         "--tied {}: expected NAME=NAME[,NAME...], e.g. --tied lm_head.weight=shared.weight", text);
  }
}

TrainedModelSummary writeTrainedModel(const Checkpoint& checkpoint, const TrainedModelRequest& request,
                                      const std::string& path) {
  Trained trained(checkpoint, request);
  writeModes(trained, request.in_inference_mode);
  Graph& graph = trained.graph();
  const std::vector<ValueId> ids = initializersToWrite(trained, graph);
  int64_t bytes = 0;
  for (const ValueId id : ids) bytes += graph.bytes(id);
  if (bytes <= request.most_inline_bytes) {
    for (const ValueId id : ids)
      graph.initializers[id] = Constant{graph.dataType(id), graph.shape(id), trained.content(id)};
  } else {
    const std::string data_path = path + ".data";
    PendingFile data(data_path);
    uint64_t offset = 0;
    for (const ValueId id : ids) {
      const std::vector<std::byte> content = trained.content(id);
      data.append(content.data(), content.size());
      graph.initializers[id] =
          WeightReference{std::filesystem::path(data_path).filename().string(), offset, content.size()};
      offset += content.size();
    }
    data.commit(true);
    trained.summary().data_path = data_path;
  }
  noteRounded(trained);
  if (request.training_info) trained.describe();
  writeModel(graph, path);
  return trained.summary();
}

TrainedModelSummary writeTrainedTensors(const Checkpoint& checkpoint, const TrainedModelRequest& request,
                                        const std::string& path) {
  Trained trained(checkpoint, request);
  const Graph& graph = trained.graph();
  std::optional<std::set<std::string>> buffers;
  if (!signatureParameters(graph).empty()) buffers.emplace();
  for (const SignatureParameter& buffer : signatureBuffers(graph, true)) buffers->insert(buffer.name);
  const std::vector<ValueId> parameters = trainableParameters(graph);
  const std::map<ValueId, int> calls = callsByMean(graph);
  constexpr std::string_view kRunningMean = ".running_mean";
  StateTensors state;
  for (const auto& [id, initializer] : graph.initializers) {
    if (!isModules(trained, graph, id, buffers, parameters)) continue;
    const Value& value = graph.value(id);
    std::vector<std::byte> content = trained.content(id);
    Shape shape = *value.shape;
    if (isStoredTransposed(value)) {
      const std::vector<std::byte> stored = content;
      transposeMatrix(stored, shape[0], shape[1], dataTypeSize(value.data_type), content);
      std::reverse(shape.begin(), shape.end());
    }
    if (value.name.ends_with(kRunningMean) && trained.isTrained(id)) {
      const int64_t in_pass = calls.contains(id) ? calls.at(id) : 1;
      const int64_t passes = checkpoint.step * trained.plan().microbatches;
      const Constant batches = makeConstant<int64_t>({}, {passes * in_pass});
      state.add(value.name.substr(0, value.name.size() - kRunningMean.size()) + std::string(kBatchesTracked),
                DataType::kInt64, {}, batches.bytes);
    }
    for (const TiedName& other : trained.otherNames()) {
      if (other.parameter == value.name) state.add(other.name, value.data_type, shape, content);
    }
    state.add(value.name, value.data_type, shape, std::move(content));
  }
  for (const TiedName& tied : request.tied) state.addTied(tied);
  noteLostParameters(trained.lost(), state, trained.summary());
  if (buffers) noteMissingBuffers(*buffers, state, trained.summary());
  if (!buffers) noteTensorsLeftOut(graph, state, trained.summary());
  noteExportersNames(graph, state, trained.summary());
  noteRounded(trained);
  writeTensorFile(path, state.views, {{"format", "pt"}}, true);
  return trained.summary();
}

}  // namespace pipeshard
