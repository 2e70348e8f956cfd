// plan.json. Reading is strict: a hand-edited plan with a misspelt key or stages that leave a layer out is refused.

#include <algorithm>
#include <limits>
#include <set>

#include "ir/error.h"
#include "ir/json_reader.h"
#include "ir/plan.h"
#include "ir/search_record_json.h"
#include "ir/sharding_spec.h"

namespace pipeshard {
namespace {

Json layerToJson(const LayerPlan& layer) {
  return {{"first_node", layer.first_node},
          {"last_node", layer.last_node},
          {"first", layer.first},
          {"last", layer.last},
          {"flops", layer.flops}};
}

LayerPlan layerFromJson(const JsonReader& json, int64_t expected_first) {
  json.expectObject({"first_node", "last_node", "first", "last", "flops"});
  LayerPlan layer;
  layer.first_node = json.at("first_node").string();
  layer.last_node = json.at("last_node").string();
  layer.first = json.at("first").integer(0, INT64_MAX);
  if (layer.first != expected_first) {
    json.at("first").failExpected(fmt::format("{}: layers follow each other without gap or overlap", expected_first));
  }
  layer.last = json.at("last").integer(layer.first, INT64_MAX - 1);
  layer.flops = json.at("flops").integer(0, INT64_MAX);
  return layer;
}

Json stageToJson(const StagePlan& stage) {
  Json json = {{"first_layer", stage.first_layer},
               {"last_layer", stage.last_layer},
               {"devices", stage.devices},
               {"mesh_shape", stage.mesh_shape},
               {"forward_flops", stage.forward_flops},
               {"backward_flops", stage.backward_flops},
               {"parameter_bytes", stage.parameter_bytes},
               {"peak_activations", stage.peak_activations}};
  if (stage.recomputation != "never") json["recomputation"] = stage.recomputation;
  return json;
}

// At least one device, and none that another stage has, unless the other has all of them: the stages of one pipeline rank.
void readDevices(const JsonReader& json, const Plan& plan, StagePlan& stage) {
  const std::vector<int64_t> devices = json.integers(0, plan.cluster.deviceCount() - 1);
  if (devices.empty()) json.failExpected("at least one device");
  for (int64_t device : devices) {
    const auto found = std::find(stage.devices.begin(), stage.devices.end(), static_cast<int>(device));
    if (found != stage.devices.end()) {
      json.elements()[stage.devices.size()].failExpected("a device that the stage does not have already");
    }
    stage.devices.push_back(static_cast<int>(device));
  }
  for (size_t i = 0; i < stage.devices.size(); ++i) {
    const auto has = [&](const StagePlan& other) {
      return std::find(other.devices.begin(), other.devices.end(), stage.devices[i]) != other.devices.end();
    };
    const auto owner = std::find_if(plan.stages.begin(), plan.stages.end(), has);
    if (owner == plan.stages.end() || owner->devices == stage.devices) continue;
    json.elements()[i].failExpected(
        fmt::format("a device that no stage has, or all devices of stages[{}], which has it, in its order", owner - plan.stages.begin()));
  }
}

StagePlan stageFromJson(const JsonReader& json, const Plan& plan) {
  json.expectObject(
      {"first_layer", "last_layer", "devices", "mesh_shape", "forward_flops", "backward_flops", "parameter_bytes", "peak_activations"},
      {"recomputation"});
  StagePlan stage;
  const int expected_first = plan.stages.empty() ? 0 : plan.stages.back().last_layer + 1;
  const int64_t last_layer = static_cast<int64_t>(plan.layers.size()) - 1;
  stage.first_layer = static_cast<int>(json.at("first_layer").integer(0, INT32_MAX));
  if (stage.first_layer != expected_first) {
    json.at("first_layer").failExpected(fmt::format("{}: stages follow each other without gap or overlap", expected_first));
  }
  if (stage.first_layer > last_layer) json.failExpected(fmt::format("no further stage: there are {} layers", last_layer + 1));
  stage.last_layer = static_cast<int>(json.at("last_layer").integer(stage.first_layer, last_layer));
  readDevices(json.at("devices"), plan, stage);
  stage.mesh_shape.clear();
  for (int64_t size : json.at("mesh_shape").integers(1, INT32_MAX)) stage.mesh_shape.push_back(static_cast<int>(size));
  const bool fits = stage.mesh_shape.size() == 2 && int64_t{stage.mesh_shape[0]} * stage.mesh_shape[1] == std::ssize(stage.devices);
  if (!fits) {
    json.at("mesh_shape")
        .failExpected(fmt::format("[data, model] whose product is the number of devices of the stage, {}", stage.devices.size()));
  }
  stage.forward_flops = json.at("forward_flops").integer(0, INT64_MAX);
  stage.backward_flops = json.at("backward_flops").integer(0, INT64_MAX);
  stage.parameter_bytes = json.at("parameter_bytes").integer(0, INT64_MAX);
  stage.peak_activations = json.at("peak_activations").integer(0, INT64_MAX);
  if (json.has("recomputation")) stage.recomputation = json.at("recomputation").string({"never", "always", "except-last"});
  return stage;
}

// The shardings of all stages: one list for each kind of entry, so that every entry has a line of its own. Left out where nothing is
// sharded.
void addShardings(const Plan& plan, Json& document) {
  Json shardings = Json::array(), strategies = Json::array(), specs = Json::array();
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    if (!plan.stages[s].sharding) continue;
    const ShardingPlan& sharding = *plan.stages[s].sharding;
    shardings.push_back({{"stage", s},
                         {"method", sharding.method},
                         {"mesh", sharding.mesh},
                         {"predicted",
                          {{"compute_ns", sharding.compute_ns},
                           {"communication_ns", sharding.communication_ns},
                           {"memory_bytes", sharding.memory_bytes},
                           {"lower_bound_ns", sharding.lower_bound_ns}}},
                         {"optimal", sharding.optimal}});
    if (!sharding.constraints.empty()) shardings.back()["constraints"] = sharding.constraints;
    if (sharding.memory_limit > 0) shardings.back()["memory_limit"] = sharding.memory_limit;
    for (const auto& [node, uses] : sharding.strategies) strategies.push_back({{"stage", s}, {"node", node}, {"uses", uses}});
    for (const auto& [value, spec] : sharding.specs) specs.push_back({{"stage", s}, {"value", value}, {"spec", spec}});
  }
  if (shardings.empty()) return;
  document["shardings"] = std::move(shardings);
  document["strategies"] = std::move(strategies);
  document["specs"] = std::move(specs);
}

void readSharding(const JsonReader& json, Plan& plan) {
  json.expectObject({"stage", "method", "mesh", "predicted", "optimal"}, {"constraints", "memory_limit"});
  const auto s = static_cast<size_t>(json.at("stage").integer(0, std::ssize(plan.stages) - 1));
  StagePlan& stage = plan.stages[s];
  if (stage.sharding) json.at("stage").failExpected("a stage that no earlier entry is about");
  ShardingPlan& sharding = stage.sharding.emplace();
  sharding.method = json.at("method").string();
  int64_t devices = 1;
  for (int64_t size : json.at("mesh").integers(1, INT32_MAX)) {
    sharding.mesh.push_back(static_cast<int>(size));
    devices = devices > INT32_MAX ? devices : devices * size;
  }
  if (sharding.mesh.empty() || devices != std::ssize(stage.devices)) {
    json.at("mesh").failExpected(fmt::format("a mesh whose product is the number of devices of the stage, {}", stage.devices.size()));
  }
  const JsonReader predicted = json.at("predicted");
  predicted.expectObject({"compute_ns", "communication_ns", "memory_bytes", "lower_bound_ns"});
  constexpr int64_t kLongest = int64_t{1} << 60;  // ns: the sum of both still is a number
  sharding.compute_ns = predicted.at("compute_ns").integer(0, kLongest);
  sharding.communication_ns = predicted.at("communication_ns").integer(0, kLongest);
  sharding.memory_bytes = predicted.at("memory_bytes").integer(0, INT64_MAX);
  sharding.lower_bound_ns = predicted.at("lower_bound_ns").integer(0, INT64_MAX);
  sharding.optimal = json.at("optimal").boolean();
  if (json.has("constraints")) sharding.constraints = json.at("constraints").strings();
  if (json.has("memory_limit")) sharding.memory_limit = json.at("memory_limit").integer(1, INT64_MAX);
}

ShardingPlan& shardingOf(const JsonReader& json, Plan& plan) {
  const int64_t stage = json.at("stage").integer(0, std::ssize(plan.stages) - 1);
  std::optional<ShardingPlan>& sharding = plan.stages[static_cast<size_t>(stage)].sharding;
  if (!sharding) json.at("stage").failExpected("a stage that \"shardings\" is about");
  return *sharding;
}

// Axes of the mesh at most, each once. Whether the tensor can be cut so is for those to say who have the model.
void checkSpec(const JsonReader& json, const ShardingPlan& sharding) {
  ShardingSpec spec;
  try {
    spec = parseSpec(json.string());
  } catch (const Error& error) {
    json.failExpected(fmt::format("a sharding spec ({})", error.message()));
  }
  const std::string fault = specFault(spec, Shape(spec.axes.size(), std::numeric_limits<int32_t>::max()), LogicalMesh{sharding.mesh});
  if (!fault.empty()) json.failExpected(fmt::format("a spec on the mesh of the stage, but {}", fault));
}

void readShardings(const JsonReader& json, Plan& plan) {
  if (json.has("shardings")) {
    for (const JsonReader& entry : json.at("shardings").elements()) readSharding(entry, plan);
  }
  if (json.has("strategies")) {
    for (const JsonReader& entry : json.at("strategies").elements()) {
      entry.expectObject({"stage", "node", "uses"});
      const bool is_new = shardingOf(entry, plan).strategies.try_emplace(entry.at("node").string(), entry.at("uses").string()).second;
      if (!is_new) entry.at("node").failExpected("a node that no earlier entry of the stage is about");
    }
  }
  if (!json.has("specs")) return;
  for (const JsonReader& entry : json.at("specs").elements()) {
    entry.expectObject({"stage", "value", "spec"});
    ShardingPlan& sharding = shardingOf(entry, plan);
    checkSpec(entry.at("spec"), sharding);
    const bool is_new = sharding.specs.try_emplace(entry.at("value").string(), entry.at("spec").string()).second;
    if (!is_new) entry.at("value").failExpected("a value that no earlier entry of the stage is about");
  }
}

Cluster readCluster(const JsonReader& json) {
  json.expectObject({"nodes", "devices_per_node"});
  constexpr int kMostDevices = 1 << 20;
  const int nodes = static_cast<int>(json.at("nodes").integer(1, kMostDevices));
  return uniformCluster(nodes, static_cast<int>(json.at("devices_per_node").integer(1, kMostDevices / nodes)));
}

// Options that are kept as given, and left out when they were not.
std::vector<std::pair<const char*, const std::vector<std::string>*>> givenLists(const Plan& plan) {
  return {{"train", &plan.train}, {"freeze", &plan.freeze}, {"boundaries", &plan.boundaries}};
}

}  // namespace

std::string planToJson(const Plan& plan) {
  Json document;
  document["version"] = kPlanVersion;
  document["model"] = plan.model_path;
  document["dimensions"] = Json::object();
  for (const auto& [name, size] : plan.dimensions) document["dimensions"][name] = size;
  document["batch_dimension"] = plan.batch_dimension;
  document["loss"] = plan.loss;
  document["optimizer"] = plan.optimizer;
  document["precision"] = dataTypeName(plan.precision);
  document["cluster"] = {{"nodes", plan.cluster.nodeCount()}, {"devices_per_node", plan.cluster.devicesPerNode()}};
  document["microbatches"] = plan.microbatches;
  if (plan.last_batch > 0) document["last_batch"] = {{"rows", plan.last_batch}, {"microbatches", plan.last_microbatches}};
  if (plan.updates_per_step > 1) document["updates_per_step"] = plan.updates_per_step;
  if (plan.bucket_bytes != kDefaultBucketBytes) document["bucket_bytes"] = plan.bucket_bytes;
  document["schedule"] = plan.schedule;
  if (!plan.schedule_orders.empty()) document["schedule_orders"] = plan.schedule_orders;
  for (const auto& [key, given] : givenLists(plan)) {
    if (!given->empty()) document[key] = *given;
  }
  document["layers"] = Json::array();
  for (const LayerPlan& layer : plan.layers) document["layers"].push_back(layerToJson(layer));
  document["stages"] = Json::array();
  for (const StagePlan& stage : plan.stages) document["stages"].push_back(stageToJson(stage));
  addShardings(plan, document);
  document["notes"] = plan.notes;
  if (plan.search) addSearch(*plan.search, document);
  return dumpJson(document);
}

Plan planFromJson(std::string_view text) {
  const Json document = parseJson(text, "plan.json");
  checkJsonVersion(document, "plan.json", kPlanVersion);
  const JsonReader json(document, "plan.json");
  json.expectObject({"version", "model", "dimensions", "batch_dimension", "loss", "optimizer", "precision", "cluster", "microbatches",
                     "schedule", "layers", "stages"},
                    {"notes", "train", "freeze", "boundaries", "last_batch", "updates_per_step", "bucket_bytes", "schedule_orders",
                     "shardings", "strategies", "specs", "search", "alternatives", "reasons", "stage_costs"});
  Plan plan;
  plan.model_path = json.at("model").string();
  const JsonReader dimensions = json.at("dimensions");
  for (const std::string& name : dimensions.keys()) plan.dimensions[name] = dimensions.at(name.c_str()).integer(0, INT64_MAX);
  plan.batch_dimension = json.at("batch_dimension").string();
  plan.loss = json.at("loss").string();
  plan.optimizer = json.at("optimizer").string();
  plan.precision = json.at("precision").dataType();
  plan.cluster = readCluster(json.at("cluster"));
  plan.microbatches = json.at("microbatches").integer(1, INT32_MAX);
  if (json.has("last_batch")) {
    const JsonReader last = json.at("last_batch");
    last.expectObject({"rows", "microbatches"});
    plan.last_batch = last.at("rows").integer(1, INT64_MAX);
    plan.last_microbatches = last.at("microbatches").integer(1, plan.last_batch);
  }
  if (json.has("updates_per_step")) plan.updates_per_step = json.at("updates_per_step").integer(1, INT32_MAX);
  if (json.has("bucket_bytes")) plan.bucket_bytes = json.at("bucket_bytes").integer(0, INT64_MAX);
  plan.schedule = json.at("schedule").string();
  if (json.has("schedule_orders")) plan.schedule_orders = json.at("schedule_orders").strings();
  for (const JsonReader& layer : json.at("layers").elements()) {
    plan.layers.push_back(layerFromJson(layer, plan.layers.empty() ? 0 : plan.layers.back().last + 1));
  }
  const JsonReader stages = json.at("stages");
  if (stages.elements().empty()) stages.failExpected("at least one stage");
  for (const JsonReader& stage : stages.elements()) plan.stages.push_back(stageFromJson(stage, plan));
  const int covered = plan.stages.back().last_layer + 1;
  if (covered != static_cast<int>(plan.layers.size())) {
    stages.failExpected(fmt::format("stages that cover all {} layers; the last stage ends before layer {}", plan.layers.size(), covered));
  }
  std::set<int> devices;
  for (const StagePlan& stage : plan.stages) devices.insert(stage.devices.begin(), stage.devices.end());
  const int used = static_cast<int>(devices.size());
  const int last_device = *devices.rbegin();
  if (last_device != used - 1) {
    fail(ErrorCode::kConfiguration, "plan.json.stages: found device {} in use; expected 0 to {} without gaps, as {} devices are in use",
         last_device, used - 1, used);
  }
  readShardings(json, plan);
  if (json.has("train")) plan.train = json.at("train").strings();
  if (json.has("freeze")) plan.freeze = json.at("freeze").strings();
  if (json.has("boundaries")) plan.boundaries = json.at("boundaries").strings();
  if (json.has("notes")) plan.notes = json.at("notes").strings();
  if (json.has("search")) plan.search = readSearch(json);
  return plan;
}

}  // namespace pipeshard
