#include "tools/options/plan_options.h"

#include <charconv>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "partition/families/make_schedule.h"
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

// "batch=8" -> {"batch", 8}. Error(kUsage) otherwise.
std::map<std::string, int64_t> parseDimensions(const std::vector<std::string>& texts) {
  std::map<std::string, int64_t> dimensions;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    int64_t size = 0;
    const char* end = text.data() + text.size();
    const bool parsed = equals != std::string::npos && equals > 0 &&
                        std::from_chars(text.data() + equals + 1, end, size).ptr == end &&
                        equals + 1 < text.size();
    if (!parsed || size < 1)
      fail(ErrorCode::kUsage, "--dim {}: expected NAME=N with a positive whole number, e.g. --dim batch=8",
           text);
    const std::string name = text.substr(0, equals);
    if (!dimensions.emplace(name, size).second)
      fail(ErrorCode::kUsage, "--dim {}: '{}' is bound twice", text, name);
  }
  return dimensions;
}

DataType parsePrecision(const std::string& text) {
  if (text == "float32") return DataType::kFloat32;
  if (text == "float64") return DataType::kFloat64;
  fail(ErrorCode::kUsage, "--precision {}: expected float32 or float64", text);
}

}  // namespace

void addModelOptions(CLI::App& command, PlanOptions& options) {
  PlanRequest& request = options.request;
  command
      .add_option("--dim", options.dimensions,
                  "Bind a symbolic dimension, e.g. --dim batch=8; repeat for several")
      ->type_name("NAME=N")
      ->allow_extra_args(false);
  command
      .add_option("--external-data-root", request.external_data_root,
                  "A second folder that the model's external data may lie in")
      ->type_name("DIR");
  command.add_option(
      "--loss", options.loss,
      "The loss: a scalar output's name, cross-entropy:LOGITS,LABELS or mse:PREDICTION,TARGET\n"
      "(default: the model's only scalar output)");
  command
      .add_option("--freeze", request.freeze,
                  "Do not train weights in whose names this regular expression is found; repeat for several")
      ->type_name("REGEX")
      ->allow_extra_args(false);
  command
      .add_option("--train", request.train,
                  "Train these weights, whatever the model says and also if --freeze has them;\n--freeze . "
                  "--train ^head trains the head alone")
      ->type_name("REGEX")
      ->allow_extra_args(false);
}

void addPlanOptions(CLI::App& command, PlanOptions& options) {
  addModelOptions(command, options);
  PlanRequest& request = options.request;
  command.add_option("--cluster", options.cluster, clusterHelp())
      ->type_name("NxD|PRESET[:N]|this|FILE")
      ->capture_default_str();
  command
      .add_option(
          "--profile", options.profile,
          "What operators and links take, as `pipeshard profile` has measured them: a FILE, or off\n"
          "(default: this machine's, if there is one; for clusters that say nothing of their devices)")
      ->type_name("FILE|off");
  command
      .add_option(
          "--stages", request.partition.stages,
          "auto (stages, their devices and meshes, schedule, microbatches and recomputation are\n"
          "searched: docs/planning.md), per-device (one stage per device), uniform:K (K stages of equal\n"
          "work, each on an equal share of the devices), megatron:DP,TP,PP[,V] (PP equal stages on DP x TP\n"
          "devices each, sharded as Megatron does; V of them on each with interleaving) or a stage FILE "
          "(below)")
      ->type_name("auto|per-device|uniform:K|megatron:DP,TP,PP|FILE")
      ->capture_default_str();
  command
      .add_option("--submeshes", request.submeshes,
                  "Which submeshes --stages auto may give a stage: all, power-of-two, small-power-of-two (at "
                  "most 4 nodes)\n"
                  "(default: all, but on clusters of more than 16 devices power-of-two)")
      ->type_name("WHICH");
  command
      .add_option("--logical-meshes", request.logical_meshes,
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
      .add_option("--balance", request.partition.balance,
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
  ShardingRequest& sharding = request.partition.sharding;
  command
      .add_option("--method", sharding.method,
                  "How the operators of stages with several devices are sharded: auto (the cheapest way), "
                  "data-parallel,\n"
                  "zero2, zero3, tensor-parallel, megatron:DP,TP, megatron-zero2:DP,TP, manual (--shard, or "
                  "what the\n"
                  "file says) or exhaustive (default: the devices share the rows of every microbatch; "
                  "docs/sharding.md)")
      ->type_name("METHOD");
  command
      .add_option("--mesh", sharding.mesh,
                  "The logical mesh of sharded stages, e.g. 4 or 2x2 (default: the cheapest)")
      ->type_name("AxB");
  command
      .add_option("--shard", sharding.constraints,
                  "Keep a value in this sharding: for each axis S with mesh axes, or R; NAME may hold * and "
                  "?; repeat for several")
      ->type_name("NAME=S0,R")
      ->allow_extra_args(false);
  command
      .add_option_function<std::string>(
          "--memory",
          [&sharding](const std::string& text) {
            try {
              sharding.memory_bytes = parseBytes("--memory", text);
            } catch (const Error& error) {
              throw CLI::ValidationError(error.message());
            }
          },
          "Memory of each device, e.g. 16GB (default: as the cluster says; of NxD no limit)")
      ->type_name("BYTES");
  command
      .add_option("--layers", request.partition.layers,
                  "How many layers to group operators into (0: automatic)")
      ->capture_default_str();
  command.add_option("--schedule", request.partition.schedule, scheduleHelp())
      ->type_name("NAME[:OPTIONS]")
      ->each([&request](const std::string&) { request.schedule_given = true; })
      ->capture_default_str();
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
                  "except-last: as\n"
                  "always, for all microbatches but the last; or by stage: 0:always,2:layers")
      ->type_name("WHEN")
      ->each([&request](const std::string&) { request.recomputation_given = true; })
      ->capture_default_str();
  command
      .add_option("--last-batch", request.last_batch,
                  "Examples in a shorter batch that ends an epoch; it gets programs of its own\n(default: "
                  "what --data leaves over)")
      ->type_name("ROWS")
      ->check(positiveWhole());
  command
      .add_option("--microbatches", request.microbatches,
                  "How many parts the batch is cut into: equal ones, or such as differ by one "
                  "example\n(default: at most two per pipeline rank)")
      ->check(positiveWhole());
  command
      .add_option_function<std::string>(
          "--bucket",
          [&request](const std::string& text) {
            try {
              request.bucket_bytes = text == "off" ? 0 : parseBytes("--bucket", text);
            } catch (const Error& error) {
              throw CLI::ValidationError(error.message());
            }
          },
          "Gradients are synchronised in buckets of at least so many bytes while the last backward pass goes "
          "on; off: behind it\n"
          "(default: 4MiB)")
      ->type_name("BYTES");
  command
      .add_option_function<std::string>(
          "--overlap-receives",
          [&request](const std::string& text) { request.overlap_receives = *overlapReceivesFromName(text); },
          "Messages between stages come while the receiving worker computes, into one buffer more for each "
          "sender:\non|between-nodes|off")
      ->check(CLI::IsMember({"on", "between-nodes", "off"}))
      ->default_str("between-nodes")
      ->type_name("WHICH");
  command
      .add_option("--batch-dim", request.batch_dimension,
                  "The symbolic dimension that is the batch (default: found by name and place)")
      ->type_name("NAME");
  command
      .add_option("--optimizer", options.optimizer,
                  "sgd:lr=0.1,momentum=0.9 | adam:lr=1e-3 | adamw:lr=1e-3,weight_decay=0.01")
      ->capture_default_str();
  command.add_option("--precision", options.precision, "float32, or float64 to validate with tight bounds")
      ->capture_default_str();
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

int64_t parseBytes(const std::string& option, const std::string& text) {
  static const std::map<std::string, double> kUnits = {
      {"", 1},      {"B", 1},      {"kB", 1e3},      {"KB", 1e3},      {"MB", 1e6},       {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1024}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1ll << 40}};
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const auto unit = kUnits.find(std::string(rest, end));
  const double bytes = error == std::errc() && unit != kUnits.end() ? number * unit->second : 0;
  if (!(bytes >= 1) || bytes > 9e18)
    fail(ErrorCode::kUsage, "{} {}: expected a number of bytes, e.g. 16GB, 1.5GiB or 800000", option, text);
  return bytes;
}

PlanRequest modelRequest(const PlanOptions& options) {
  PlanRequest request = options.request;
  request.dimensions = parseDimensions(options.dimensions);
  request.loss = parseLoss(options.loss);
  return request;
}

PlanRequest planRequest(const PlanOptions& options) {
  PlanRequest request = modelRequest(options);
  request.partition.cluster = readCluster(options.cluster);
  request.partition.recomputation = parseRecomputation(options.recomputation);
  request.optimizer = parseOptimizer(options.optimizer);
  request.precision = parsePrecision(options.precision);
  request.profile = chooseProfile(options.profile, &request.profile_note);
  return request;
}

}  // namespace pipeshard
