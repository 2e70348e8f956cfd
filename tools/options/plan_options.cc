#include "tools/options/plan_options.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include <fmt/format.h>

#include "ir/base/amounts.h"
#include "ir/base/error.h"
#include "partition/families/make_schedule.h"
#include "partition/families/plan_schedule.h"
#include "planning/request/profile_store.h"
#include "tools/options/cluster_option.h"
#include "tools/options/option_checks.h"

namespace pipeshard {

namespace {

// One line per schedule.
std::string scheduleHelp() {
  std::string text = "The order of forward and backward passes:";
  for (const ScheduleFamily& family : scheduleFamilies())
    text += fmt::format("\n  {}: {}", family.name, family.description);
  return text + "\nOptions follow a colon, as in name:key=2";
}

// The sizes behind the name of "time=64,128"; none where they are no positive whole numbers.
std::vector<int64_t> parseSizes(std::string_view text) {
  std::vector<int64_t> sizes;
  while (true) {
    const size_t comma = std::min(text.find(','), text.size());
    const char* const end = text.data() + comma;
    int64_t size = 0;
    if (comma == 0 || std::from_chars(text.data(), end, size).ptr != end || size < 1) return {};
    sizes.push_back(size);
    if (comma == text.size()) return sizes;
    text.remove_prefix(comma + 1);
  }
}

// "batch=8" -> {"batch", 8}; of several sizes all but the longest are lengths of sequences. Error(kUsage)
// otherwise.
void readDimensions(const std::vector<std::string>& texts, PlanRequest& request) {
  for (const std::string& text : texts) {
    const size_t equals = text.rfind('=');  // a name may be any text: "past + 1=5"
    std::vector<int64_t> sizes;
    if (equals != std::string::npos && equals > 0)
      sizes = parseSizes(std::string_view(text).substr(equals + 1));
    if (equals != std::string::npos && text.substr(equals) == "=0")
      fail(ErrorCode::kUsage,
           "--dim {}: sizes start at 1, as tensors without elements are not computed with; for past keys and "
           "values give 1, and 0 in the attention mask for that place (docs/models.md)",
           text);
    if (sizes.empty())
      fail(ErrorCode::kUsage,
           "--dim {}: expected NAME=N with a positive whole number, e.g. --dim batch=8, or several for the "
           "length of sequences, e.g. --dim time=64,128",
           text);
    const std::string name = text.substr(0, equals);
    std::sort(sizes.rbegin(), sizes.rend());
    if (!request.dimensions.emplace(name, sizes.front()).second)
      fail(ErrorCode::kUsage, "--dim {}: '{}' is bound twice", text, name);
    if (sizes.size() == 1) continue;
    if (std::adjacent_find(sizes.begin(), sizes.end()) != sizes.end())
      fail(ErrorCode::kUsage, "--dim {}: a size is given twice", text);
    if (!request.length_dimension.empty())
      fail(ErrorCode::kUsage,
           "--dim {}: '{}' has several sizes already; one dimension may have them, the length "
           "of sequences",
           text, request.length_dimension);
    request.length_dimension = name;
    request.shorter_lengths.assign(sizes.begin() + 1, sizes.end());
  }
}

// A value that cannot be is refused as CLI11 refuses those that it checks.
template <typename F>
void parseAtOnce(const F& parse) {
  try {
    parse();
  } catch (const Error& error) {
    throw CLI::ValidationError(error.message());
  }
}

CLI::Option* declareOne(CLI::App& command, PlanOptions& options, const GivenOption& option) {
  const auto take = [&options, flag = option.flag](const std::vector<std::string>& texts) {
    options.given[flag] = texts;
  };
  if (isRepeated(option))
    return command.add_option_function<std::vector<std::string>>(option.flag, take, option.help)
        ->allow_extra_args(false);
  const bool in_bytes = std::holds_alternative<int64_t GivenOptions::*>(option.field);
  return command.add_option_function<std::string>(
      option.flag,
      [take, in_bytes, option](const std::string& text) {
        GivenOptions tried;
        if (in_bytes) parseAtOnce([&] { setFromTexts(option, {text}, tried); });
        take({text});
      },
      option.help);
}

// Of one place of the table.
void declareGiven(CLI::App& command, PlanOptions& options, OptionPlace place) {
  for (const GivenOption& option : givenOptions()) {
    if (option.place != place) continue;
    CLI::Option* declared = declareOne(command, options, option);
    if (option.values != nullptr) declared->type_name(option.values);
    if (option.default_text != nullptr) declared->default_str(option.default_text);
    if (const std::vector<std::string> allowed = allowedTexts(option); !allowed.empty())
      declared->check(CLI::IsMember(allowed));
  }
}

// A method, or a grid that says stages, too.
void readMethod(const std::string& text, PartitionOptions& partition) {
  if (text.empty()) return;
  partition.method_grid = parseMegatronGrid(text);
  if (partition.method_grid) return;
  partition.sharding.method = partition.stages.kind == StagesRequest::Kind::kSearched
                                  ? parseSearchedMethod(text)
                                  : parseShardingMethod(text);
}

// A method is about stages of several devices: who names one, and nothing that makes stages, means one stage
// of all devices.
StagesRequest defaultStages(const PlanOptions& options) {
  const PartitionOptions& partition = options.request.partition;
  const bool cuts = options.schedule || !options.balance.empty() || !partition.boundaries.empty() ||
                    !partition.stage_devices.empty() || parseMegatronGrid(options.method);
  return options.method.empty() || cuts ? StagesRequest() : uniformStages(1);
}

// The devices, and what they take.
void addClusterOptions(CLI::App& command, PlanOptions& options) {
  command.add_option("--cluster", options.cluster, clusterHelp())
      ->type_name("NxD|PRESET[:N]|this|FILE")
      ->capture_default_str();
  command
      .add_option(
          "--profile", options.profile,
          "What operators and links take, as `pipeshard profile` has measured them: a FILE, or off\n"
          "(default: this machine's, if there is one; for clusters that say nothing of their devices)")
      ->type_name("FILE|off");
}

void addStageOptions(CLI::App& command, PlanOptions& options) {
  PlanRequest& request = options.request;
  command
      .add_option(
          "--stages", options.stages,
          "auto (stages, their devices and meshes, schedule, microbatches and recomputation are\n"
          "searched: docs/planning.md), per-device (one stage per device), uniform:K (K stages of equal\n"
          "work, each on an equal share of the devices), megatron:DP,TP,PP[,V] (PP equal stages on DP x TP\n"
          "devices each, sharded as Megatron does; V of them on each with interleaving) or a stage FILE "
          "(below)\n"
          "(default: per-device; with a --method that says no stages, and nothing else that does, uniform:1)")
      ->type_name("auto|per-device|uniform:K|megatron:DP,TP,PP|FILE");
  command
      .add_option("--submeshes", options.submeshes,
                  "Which submeshes --stages auto may give a stage: all, power-of-two, small-power-of-two (at "
                  "most 4 nodes)\n"
                  "(default: all, but on clusters of more than 16 devices power-of-two)")
      ->type_name("WHICH");
  command
      .add_option("--logical-meshes", options.logical_meshes,
                  "Which logical meshes --stages auto may try on them: all, single-node-model-parallel, "
                  "same-as-physical,\n"
                  "data-parallel-only, model-parallel-only (default: those of the method)")
      ->type_name("WHICH");
  command
      .add_option("--stage-devices", request.partition.stage_devices,
                  "How many devices each stage has, e.g. 1,3: the batch is cut over the three of the second")
      ->type_name("N,N,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      .add_option("--balance", options.balance,
                  "What stages have in equal shares: flops (the default), time (predicted), size (memory), "
                  "parameters,\n"
                  "type:REGEX (modules or operators that match, e.g. type:block), or how many layers each "
                  "has: 3,5,5,1")
      ->type_name("WHAT");
  command
      .add_option("--boundary", request.partition.boundaries,
                  "End a stage at the node that makes this value; once per cut, in order. Overrides --stages")
      ->type_name("VALUE")
      ->allow_extra_args(false);
}

// How the devices of a stage share its operators.
void addShardingOptions(CLI::App& command, PlanOptions& options) {
  ShardingRequest& sharding = options.request.partition.sharding;
  command
      .add_option("--method", options.method,
                  "How the operators of stages with several devices are sharded: auto (the cheapest way), "
                  "data-parallel,\n"
                  "zero2, zero3, tensor-parallel, megatron:DP,TP, megatron-zero2:DP,TP, manual (--shard, or "
                  "what the\n"
                  "file says) or exhaustive (default: the devices share the rows of every microbatch; "
                  "docs/sharding.md)")
      ->type_name("METHOD");
  command
      .add_option("--mesh", options.mesh,
                  "The logical mesh of sharded stages, e.g. 4 or 2x2 (default: the cheapest)")
      ->type_name("AxB");
  command
      .add_option("--shard", options.shard,
                  "Keep a value in this sharding: for each axis S with mesh axes, or R; NAME may hold * and "
                  "?; repeat for several")
      ->type_name("NAME=S0,R")
      ->allow_extra_args(false);
  command
      .add_option_function<std::string>(
          "--memory",
          [&sharding](const std::string& text) {
            parseAtOnce([&] { sharding.memory_bytes = parseBytes("--memory", text); });
          },
          "Memory of each device, e.g. 16GB (default: as the cluster says; of NxD no limit)")
      ->type_name("BYTES");
}

// Who computes what when, and again.
void addScheduleOptions(CLI::App& command, PlanOptions& options) {
  PlanRequest& request = options.request;
  command
      .add_option("--layers", request.partition.layers,
                  "How many layers to group operators into (0: automatic)")
      ->capture_default_str();
  command
      .add_option_function<std::string>(
          "--schedule", [&options](const std::string& text) { options.schedule = text; }, scheduleHelp())
      ->type_name("NAME[:OPTIONS]")
      ->default_str(scheduleSpecToString(usualSchedule()));
  command
      .add_option("--window", request.partition.window,
                  "Updates in a step of an asynchronous schedule (pipedream...): the pipeline drains once "
                  "per step\n(default: 8)")
      ->type_name("N")
      ->check(positiveWhole());
  command
      .add_option("--recompute", options.recomputation,
                  "never; always: a backward pass runs its stage's forward pass again, instead of keeping "
                  "what it made;\n"
                  "layers: so layer by layer, each before its backward pass, from what layers hand on; "
                  "selective: so,\n"
                  "but products, attention and convolutions are kept; except-last: as always, for all "
                  "microbatches but the\n"
                  "last; or by stage: 0:always,2:layers")
      ->type_name("WHEN")
      ->each([&request](const std::string&) { request.recomputation_given = true; })
      ->capture_default_str();
}

void addBatchOptions(CLI::App& command, PlanOptions& options) {
  PlanRequest& request = options.request;
  command
      .add_option("--last-batch", request.last_batch,
                  "Examples in a shorter batch that ends an epoch; it gets programs of its own\n(default: "
                  "what --data leaves over)")
      ->type_name("ROWS")
      ->check(positiveWhole());
  command
      .add_option("--accumulate", request.accumulate,
                  "So many batches make one update: a batch as many times as large, in as many times the "
                  "microbatches")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command
      .add_option("--microbatches", request.microbatches,
                  "How many parts the batch is cut into: equal ones, or such as differ by one "
                  "example\n(default: at most two per pipeline rank; one where examples of the batch meet). "
                  "A file whose batch has a fixed size: how "
                  "many\nsuch batches a step takes (default: one)")
      ->check(positiveWhole());
  declareGiven(command, options, OptionPlace::kExecution);
  command
      .add_option("--batch-dim", request.batch_dimension,
                  "The symbolic dimension that is the batch (default: found by name and place)")
      ->type_name("NAME");
}

}  // namespace

void addModelOptions(CLI::App& command, PlanOptions& options) {
  PlanRequest& request = options.request;
  command
      .add_option("--dim", options.dimensions,
                  "Bind a symbolic dimension, e.g. --dim batch=8; repeat for several. Sequences of several\n"
                  "lengths: --dim time=64,128,256 plans for the longest and makes programs for each\n"
                  "(the batch alone need not be given: then each device that shares rows has one row\n"
                  "of every microbatch)")
      ->type_name("NAME=N[,N...]")
      ->allow_extra_args(false);
  command
      .add_option("--external-data-root", request.external_data_root,
                  "A second folder that the model's external data may lie in")
      ->type_name("DIR");
  command.add_flag(
      "--trust-model", request.trust_model,
      "Look at the model in this process, even if it belongs to another user or lies where all may "
      "write\n(else a process of its own finds out first whether it makes ONNX's inference crash)");
  command.add_option(
      "--loss", options.loss,
      "The loss: a scalar output's name, or KIND:PREDICTION,TARGET with the kinds cross-entropy "
      "(LOGITS,LABELS),\n"
      "nll, bce, bce-with-logits, mse, l1, smooth-l1; a sum of several as A+0.5*B; label smoothing as\n"
      "cross-entropy:LOGITS,LABELS,smoothing=0.1; the axis of the classes as "
      "cross-entropy:LOGITS,LABELS,axis=1\n"
      "(without: where the model has LABELS their shape tells, else it is the last of 3 axes, of more axis "
      "1)\n"
      "(default: the model's only scalar output)");
  declareGiven(command, options, OptionPlace::kFreeze);
  command
      .add_flag_callback(
          "--no-patterns", [&options] { options.given["--patterns"] = {"off"}; },
          "The same as --patterns off")
      ->excludes("--patterns");
  declareGiven(command, options, OptionPlace::kTrain);
}

void addPrecisionOption(CLI::App& command, PlanOptions& options) {
  for (const GivenOption& option : givenOptions()) {
    if (option.flag != std::string_view("--precision")) continue;
    declareOne(command, options, option)->default_str(option.default_text);
  }
}

void addPlanOptions(CLI::App& command, PlanOptions& options) {
  addModelOptions(command, options);
  addClusterOptions(command, options);
  addStageOptions(command, options);
  addShardingOptions(command, options);
  addScheduleOptions(command, options);
  addBatchOptions(command, options);
  declareGiven(command, options, OptionPlace::kTraining);
}

const char* stageFileHelp() {
  return R"(A stage file says layers, devices and mesh of each stage (--stages FILE; JSON with // comments, docs/stages.md):
  {"version": 1,
   "layers": 8,                                  // operators are grouped into so many layers of equal FLOPs
   "stages": [
     {"layers": "0..2", "devices": [0]},         // or "layers": [0,1,2], "layer_count": 3, "until": "VALUE"
     {"layers": "3..7", "submesh": [1, 3],       // [nodes, devices per node]: the next 3 devices
      "mesh": [3, 1],                            // [data, model]: the batch is cut over 3 devices
      "sharding": {"method": "data-parallel"}}]} // or "replicated", with "mesh": [1, 3]
)";
}

PlanRequest modelRequest(const PlanOptions& options) {
  PlanRequest request = options.request;
  readDimensions(options.dimensions, request);
  request.loss = parseLoss(options.loss);
  for (const GivenOption& option : givenOptions()) {
    if (const auto texts = options.given.find(option.flag); texts != options.given.end())
      setFromTexts(option, texts->second, request.given);
  }
  request.optimizer_given = options.given.contains("--optimizer");
  return request;
}

PlanRequest planRequest(const PlanOptions& options) {
  PlanRequest request = modelRequest(options);
  request.partition.cluster = readCluster(options.cluster);
  request.partition.recomputation = parseRecomputation(options.recomputation);
  request.profile = chooseProfile(options.profile, &request.profile_note);
  request.partition.stages = options.stages.empty() ? defaultStages(options) : parseStages(options.stages);
  if (options.schedule) request.partition.schedule = parseScheduleChoice(*options.schedule);
  if (!options.balance.empty()) request.partition.balance = parseBalance(options.balance);
  if (!options.submeshes.empty()) request.submeshes = parseSubmeshLimit(options.submeshes);
  if (!options.logical_meshes.empty()) request.logical_meshes = parseLogicalMeshLimit(options.logical_meshes);
  readMethod(options.method, request.partition);
  if (!options.mesh.empty()) request.partition.sharding.mesh = parseMesh(options.mesh);
  for (const std::string& text : options.shard)
    request.partition.sharding.constraints.push_back(parseShardConstraint(text));
  return request;
}

}  // namespace pipeshard
