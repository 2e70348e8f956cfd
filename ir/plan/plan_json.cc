// plan.json. Reading is strict: a hand-edited plan with a misspelt key or stages that leave a layer out is
// refused.
#include "ir/plan/plan_json.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/json_reader.h"
#include "ir/base/sharding_spec.h"
#include "ir/cluster/cluster_json.h"
#include "ir/plan/given_options_json.h"
#include "ir/plan/search_record_json.h"

namespace pipeshard {
namespace {

Json layerToJson(const LayerPlan& layer) {
  return {{"first_node", layer.first_node},
          {"last_node", layer.last_node},
          {"first", layer.first},
          {"last", layer.last},
          {"flops", layer.flops}};
}

void readLayer(const JsonReader& json, JsonFaults& faults, Plan& plan) {
  const int64_t expected_first = plan.layers.empty() ? 0 : plan.layers.back().last + 1;
  LayerPlan& layer = plan.layers.emplace_back();
  layer.first = layer.last = expected_first;  // where it cannot be read
  faults.attempt([&] { json.expectObject({"first_node", "last_node", "first", "last", "flops"}); });
  faults.attemptField(json, "first_node", [&](const JsonReader& name) { layer.first_node = name.string(); });
  faults.attemptField(json, "last_node", [&](const JsonReader& name) { layer.last_node = name.string(); });
  const bool follows = faults.attemptField(json, "first", [&](const JsonReader& first) {
    layer.first = first.integer(0, INT64_MAX);
    if (layer.first == expected_first) return;
    first.failExpected(fmt::format("{}: layers follow each other without gap or overlap", expected_first));
  });
  faults.attemptField(json, "last", [&](const JsonReader& last) {
    layer.last = last.integer(follows ? layer.first : 0, INT64_MAX - 1);
  });
  faults.attemptField(json, "flops",
                      [&](const JsonReader& flops) { layer.flops = flops.integer(0, INT64_MAX); });
}

Json stageToJson(const StagePlan& stage) {
  Json json = {{"first_layer", stage.first_layer.index()}, {"last_layer", stage.last_layer.index()},
               {"devices", positionsOf(stage.devices)},    {"mesh_shape", stage.mesh_shape},
               {"forward_flops", stage.forward_flops},     {"backward_flops", stage.backward_flops},
               {"parameter_bytes", stage.parameter_bytes}, {"peak_activations", stage.peak_activations}};
  if (stage.recomputation != Recomputation::kNever)
    json["recomputation"] = recomputationName(stage.recomputation);
  return json;
}

// At least one device, and none that another stage has, unless the other has all of them: the stages of one
// pipeline rank.
void readDevices(const JsonReader& json, const Plan& plan, StagePlan& stage) {
  const std::vector<RankId> devices = idsAt<RankId>(json.integers(0, plan.cluster.deviceCount() - 1));
  if (devices.empty()) json.failExpected("at least one device");
  for (RankId device : devices) {
    const auto found = std::find(stage.devices.begin(), stage.devices.end(), device);
    if (found != stage.devices.end()) {
      json.elements()[stage.devices.size()].failExpected("a device that the stage does not have already");
    }
    stage.devices.push_back(device);
  }
  for (size_t i = 0; i < stage.devices.size(); ++i) {
    const auto has = [&](const StagePlan& other) {
      return std::find(other.devices.begin(), other.devices.end(), stage.devices[i]) != other.devices.end();
    };
    const auto owner = std::find_if(plan.stages.begin(), plan.stages.end(), has);
    if (owner == plan.stages.end() || owner->devices == stage.devices) continue;
    json.elements()[i].failExpected(
        fmt::format("a device that no stage has, or all devices of stages[{}], which has it, in its order",
                    owner - plan.stages.begin()));
  }
}

bool readLayersOfStage(const JsonReader& json, const Plan& plan, JsonFaults& faults, StagePlan& stage) {
  const LayerId expected_first = stage.first_layer;
  const bool follows = faults.attemptField(json, "first_layer", [&](const JsonReader& first) {
    stage.first_layer = LayerId(first.integer(0, INT32_MAX));
    if (stage.first_layer != expected_first) {
      first.failExpected(fmt::format("{}: stages follow each other without gap or overlap", expected_first));
    }
    if (!plan.layers.has(stage.first_layer))
      json.failExpected(fmt::format("no further stage: there are {} layers", plan.layers.size()));
  });
  stage.last_layer = stage.first_layer;
  if (!plan.layers.has(stage.first_layer)) return false;
  const int64_t least = follows ? stage.first_layer.index() : 0;
  return faults.attemptField(json, "last_layer", [&](const JsonReader& last) {
    stage.last_layer = LayerId(last.integer(least, std::ssize(plan.layers) - 1));
  });
}

void readMeshOfStage(const JsonReader& json, StagePlan& stage) {
  std::vector<int> mesh;
  for (int64_t size : json.integers(1, INT32_MAX)) mesh.push_back(size);
  stage.mesh_shape = mesh;
  if (mesh.size() == 2 && int64_t{mesh[0]} * mesh[1] == std::ssize(stage.devices)) return;
  json.failExpected(fmt::format("[data, model] whose product is the number of devices of the stage, {}",
                                stage.devices.size()));
}

// What could be read of all stages so far.
struct KnownStages {
  bool layers = true;
  bool devices = true;
};

void readStage(const JsonReader& json, JsonFaults& faults, KnownStages& known, Plan& plan) {
  StagePlan stage;
  // where it cannot be read
  stage.first_layer = stage.last_layer =
      plan.stages.empty() ? LayerId(0) : plan.stages.back().last_layer.next();
  faults.attempt([&] {
    json.expectObject({"first_layer", "last_layer", "devices", "mesh_shape", "forward_flops",
                       "backward_flops", "parameter_bytes", "peak_activations"},
                      {"recomputation"});
  });
  known.layers = readLayersOfStage(json, plan, faults, stage) && known.layers;
  const bool has_devices = faults.attemptField(
      json, "devices", [&](const JsonReader& devices) { readDevices(devices, plan, stage); });
  known.devices = known.devices && has_devices;
  if (!has_devices) stage.devices.clear();
  if (has_devices)
    faults.attemptField(json, "mesh_shape", [&](const JsonReader& mesh) { readMeshOfStage(mesh, stage); });
  const auto amount = [&](const char* key, int64_t& field) {
    faults.attemptField(json, key, [&](const JsonReader& number) { field = number.integer(0, INT64_MAX); });
  };
  amount("forward_flops", stage.forward_flops);
  amount("backward_flops", stage.backward_flops);
  amount("parameter_bytes", stage.parameter_bytes);
  amount("peak_activations", stage.peak_activations);
  faults.attemptField(json, "recomputation", [&](const JsonReader& mode) {
    stage.recomputation = *recomputationFromName(mode.string(recomputationNames()));
  });
  plan.stages.push_back(std::move(stage));
}

void readStages(const JsonReader& json, JsonFaults& faults, Plan& plan) {
  const std::vector<JsonReader> stages = json.elements();
  if (stages.empty()) json.failExpected("at least one stage");
  KnownStages known;
  for (const JsonReader& stage : stages) readStage(stage, faults, known, plan);
  const LayerId covered = plan.stages.back().last_layer.next();
  if (known.layers && plan.layers.has(covered)) {
    faults.attempt([&] {
      json.failExpected(fmt::format("stages that cover all {} layers; the last stage ends before layer {}",
                                    plan.layers.size(), covered));
    });
  }
  std::set<RankId> devices;
  for (const StagePlan& stage : plan.stages) devices.insert(stage.devices.begin(), stage.devices.end());
  const size_t used = devices.size();
  if (!known.devices || devices.rbegin()->next() == RankId(used)) return;
  fail(ErrorCode::kConfiguration,
       "plan.json.stages: found device {} in use; expected 0 to {} without gaps, as {} devices are in use",
       *devices.rbegin(), used - 1, used);
}

// The shardings of all stages: one list for each kind of entry, so that every entry has a line of its own.
// Left out where nothing is sharded.
void addShardings(const Plan& plan, Json& document) {
  Json shardings = Json::array(), strategies = Json::array(), specs = Json::array();
  for (const StageId s : plan.stages.ids()) {
    if (!plan.stages[s].sharding) continue;
    const ShardingPlan& sharding = *plan.stages[s].sharding;
    shardings.push_back({{"stage", s.index()},
                         {"method", shardingMethodToString(sharding.method)},
                         {"mesh", sharding.mesh},
                         {"predicted",
                          {{"compute_ns", sharding.compute_ns},
                           {"communication_ns", sharding.communication_ns},
                           {"memory_bytes", sharding.memory_bytes},
                           {"lower_bound_ns", sharding.lower_bound_ns}}},
                         {"optimal", sharding.optimal}});
    for (const ShardConstraint& constraint : sharding.constraints)
      shardings.back()["constraints"].push_back(shardConstraintToString(constraint));
    if (sharding.memory_limit > 0) shardings.back()["memory_limit"] = sharding.memory_limit;
    for (const auto& [node, uses] : sharding.strategies)
      strategies.push_back({{"stage", s.index()}, {"node", node}, {"uses", uses}});
    for (const auto& [value, spec] : sharding.specs)
      specs.push_back({{"stage", s.index()}, {"value", value}, {"spec", spec}});
  }
  if (shardings.empty()) return;
  document["shardings"] = std::move(shardings);
  document["strategies"] = std::move(strategies);
  document["specs"] = std::move(specs);
}

void readSharding(const JsonReader& json, Plan& plan) {
  json.expectObject({"stage", "method", "mesh", "predicted", "optimal"}, {"constraints", "memory_limit"});
  const StageId s(json.at("stage").integer(0, std::ssize(plan.stages) - 1));
  StagePlan& stage = plan.stages[s];
  if (stage.sharding) json.at("stage").failExpected("a stage that no earlier entry is about");
  ShardingPlan& sharding = stage.sharding.emplace();
  sharding.method = json.at("method").parsed(parseShardingMethod);
  int64_t devices = 1;
  for (int64_t size : json.at("mesh").integers(1, INT32_MAX)) {
    sharding.mesh.push_back(size);
    devices = devices > INT32_MAX ? devices : devices * size;
  }
  const bool known_devices = !stage.devices.empty();
  if (known_devices && (sharding.mesh.empty() || devices != std::ssize(stage.devices))) {
    json.at("mesh").failExpected(
        fmt::format("a mesh whose product is the number of devices of the stage, {}", stage.devices.size()));
  }
  const JsonReader predicted = json.at("predicted");
  predicted.expectObject({"compute_ns", "communication_ns", "memory_bytes", "lower_bound_ns"});
  constexpr int64_t kLongest = int64_t{1} << 60;  // ns: the sum of both still is a number
  sharding.compute_ns = predicted.at("compute_ns").integer(0, kLongest);
  sharding.communication_ns = predicted.at("communication_ns").integer(0, kLongest);
  sharding.memory_bytes = predicted.at("memory_bytes").integer(0, INT64_MAX);
  sharding.lower_bound_ns = predicted.at("lower_bound_ns").integer(0, INT64_MAX);
  sharding.optimal = json.at("optimal").boolean();
  if (json.has("constraints")) {
    for (const JsonReader& constraint : json.at("constraints").elements())
      sharding.constraints.push_back(constraint.parsed(parseShardConstraint));
  }
  if (json.has("memory_limit")) sharding.memory_limit = json.at("memory_limit").integer(1, INT64_MAX);
}

ShardingPlan& shardingOf(const JsonReader& json, Plan& plan) {
  const StageId stage(json.at("stage").integer(0, std::ssize(plan.stages) - 1));
  std::optional<ShardingPlan>& sharding = plan.stages[stage].sharding;
  if (!sharding) json.at("stage").failExpected("a stage that \"shardings\" is about");
  return *sharding;
}

// Axes of the mesh at most, each once. Whether the tensor can be cut so is for those to say who have the
// model.
void checkSpec(const JsonReader& json, const ShardingPlan& sharding) {
  ShardingSpec spec;
  try {
    spec = parseSpec(json.string());
  } catch (const Error& error) {
    json.failExpected(fmt::format("a sharding spec ({})", error.message()));
  }
  const std::string fault = specFault(spec, Shape(spec.axes.size(), std::numeric_limits<int32_t>::max()),
                                      LogicalMesh{sharding.mesh});
  if (!fault.empty()) json.failExpected(fmt::format("a spec on the mesh of the stage, but {}", fault));
}

// What is wrong with a stage's sharding is said once, and not again of all its values.
void readShardings(const JsonReader& json, JsonFaults& faults, Plan& plan) {
  const auto each = [&](const char* key, const std::function<void(const JsonReader&)>& read) {
    if (!json.has(key)) return;
    faults.attempt([&] {
      for (const JsonReader& entry : json.at(key).elements()) faults.attempt([&] { read(entry); });
    });
  };
  const size_t before = faults.messages().size();
  each("shardings", [&](const JsonReader& entry) { readSharding(entry, plan); });
  if (faults.messages().size() > before) return;
  each("strategies", [&](const JsonReader& entry) {
    entry.expectObject({"stage", "node", "uses"});
    const bool is_new = shardingOf(entry, plan)
                            .strategies.try_emplace(entry.at("node").string(), entry.at("uses").string())
                            .second;
    if (!is_new) entry.at("node").failExpected("a node that no earlier entry of the stage is about");
  });
  each("specs", [&](const JsonReader& entry) {
    entry.expectObject({"stage", "value", "spec"});
    ShardingPlan& sharding = shardingOf(entry, plan);
    const bool is_new =
        sharding.specs.try_emplace(entry.at("value").string(), entry.at("spec").string()).second;
    if (!is_new) entry.at("value").failExpected("a value that no earlier entry of the stage is about");
    checkSpec(entry.at("spec"), sharding);
  });
}

// Of "NxD" the two numbers, else the whole description: a plan replays without the file or the profile that
// it was made with.
Json clusterOf(const Plan& plan) {
  const Cluster& cluster = plan.cluster;
  if (cluster != uniformCluster(cluster.nodeCount(), cluster.devicesPerNode())) return clusterToJson(cluster);
  return {{"nodes", cluster.nodeCount()}, {"devices_per_node", cluster.devicesPerNode()}};
}

Cluster readCluster(const JsonReader& json) {
  if (json.isObject() && json.has("nodes") && json.at("nodes").isArray())
    return clusterFromJson(json, "cluster", false);
  json.expectObject({"nodes", "devices_per_node"});
  constexpr int kMostDevices = 1 << 20;
  const int nodes = json.at("nodes").integer(1, kMostDevices);
  return uniformCluster(nodes, json.at("devices_per_node").integer(1, kMostDevices / nodes));
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
  addGivenOptions(plan.given, OptionPlace::kTraining, document);
  document["cluster"] = clusterOf(plan);
  if (!plan.profile.empty()) document["profile"] = plan.profile;
  if (plan.memory > 0) document["memory"] = plan.memory;
  document["microbatches"] = plan.microbatches;
  document["cut_batch"] = plan.cut_batch;
  if (plan.last_batch > 0)
    document["last_batch"] = {{"rows", plan.last_batch}, {"microbatches", plan.last_microbatches}};
  if (!plan.length_dimension.empty())
    document["lengths"] = {{"dimension", plan.length_dimension}, {"shorter", plan.shorter_lengths}};
  if (plan.updates_per_step > 1) document["updates_per_step"] = plan.updates_per_step;
  if (plan.copies_weights) document["copies_weights"] = true;
  addGivenOptions(plan.given, OptionPlace::kExecution, document);
  document["schedule"] = scheduleSpecToString(plan.schedule);
  if (!plan.schedule_orders.empty()) document["schedule_orders"] = plan.schedule_orders;
  addGivenOptions(plan.given, OptionPlace::kTrain, document);
  addGivenOptions(plan.given, OptionPlace::kFreeze, document);
  if (!plan.boundaries.empty()) document["boundaries"] = plan.boundaries;
  if (!plan.balance.empty()) document["balance"] = plan.balance;
  if (plan.layer_count > 0) document["layer_count"] = plan.layer_count;
  document["layers"] = Json::array();
  for (const LayerPlan& layer : plan.layers) document["layers"].push_back(layerToJson(layer));
  document["stages"] = Json::array();
  for (const StagePlan& stage : plan.stages) document["stages"].push_back(stageToJson(stage));
  addShardings(plan, document);
  document["notes"] = plan.notes;
  if (plan.search) addSearch(*plan.search, document);
  return dumpJson(document);
}

namespace {

void readTraining(const JsonReader& json, JsonFaults& faults, Plan& plan) {
  const auto text = [&](const char* key, std::string& field) {
    faults.attemptField(json, key, [&](const JsonReader& value) { field = value.string(); });
  };
  text("model", plan.model_path);
  faults.attemptField(json, "dimensions", [&](const JsonReader& dimensions) {
    for (const std::string& name : dimensions.keys()) {
      faults.attemptField(dimensions, name.c_str(), [&](const JsonReader& size) {
        plan.dimensions[name] = size.integer(0, INT64_MAX);
      });
    }
  });
  text("batch_dimension", plan.batch_dimension);
  text("loss", plan.loss);
  readGivenOptions(json, OptionPlace::kTraining, faults, plan.given);
  const bool has_cluster = faults.attemptField(
      json, "cluster", [&](const JsonReader& cluster) { plan.cluster = readCluster(cluster); });
  text("profile", plan.profile);
  faults.attemptField(json, "memory",
                      [&](const JsonReader& bytes) { plan.memory = bytes.integer(1, INT64_MAX); });
  if (!has_cluster) plan.cluster = uniformCluster(1, INT32_MAX);  // no device is out of range
  faults.attemptField(json, "microbatches",
                      [&](const JsonReader& count) { plan.microbatches = count.integer(1, INT32_MAX); });
  faults.attemptField(json, "cut_batch", [&](const JsonReader& cut) { plan.cut_batch = cut.boolean(); });
  faults.attemptField(json, "last_batch", [&](const JsonReader& last) {
    last.expectObject({"rows", "microbatches"});
    plan.last_batch = last.at("rows").integer(1, INT64_MAX);
    plan.last_microbatches = last.at("microbatches").integer(1, plan.last_batch);
  });
  faults.attemptField(json, "lengths", [&](const JsonReader& lengths) {
    lengths.expectObject({"dimension", "shorter"});
    plan.length_dimension = lengths.at("dimension").string();
    const auto longest = plan.dimensions.find(plan.length_dimension);
    if (longest == plan.dimensions.end())
      lengths.at("dimension")
          .failWith(fmt::format("found '{}'; expected one of `dimensions`", plan.length_dimension));
    plan.shorter_lengths = lengths.at("shorter").integers(1, longest->second - 1);
    const auto ascends = [](int64_t one, int64_t next) { return next >= one; };
    const std::vector<int64_t>& found = plan.shorter_lengths;
    if (found.empty() || std::adjacent_find(found.begin(), found.end(), ascends) != found.end())
      lengths.at("shorter").failWith("expected lengths that descend, one at least");
  });
  faults.attemptField(json, "copies_weights",
                      [&](const JsonReader& copies) { plan.copies_weights = copies.boolean(); });
}

void readSchedule(const JsonReader& json, JsonFaults& faults, Plan& plan) {
  faults.attemptField(json, "updates_per_step",
                      [&](const JsonReader& count) { plan.updates_per_step = count.integer(1, INT32_MAX); });
  readGivenOptions(json, OptionPlace::kExecution, faults, plan.given);
  faults.attemptField(json, "schedule",
                      [&](const JsonReader& text) { plan.schedule = text.parsed(parseScheduleSpec); });
  faults.attemptField(json, "schedule_orders",
                      [&](const JsonReader& orders) { plan.schedule_orders = orders.strings(); });
}

void expectPlan(const JsonReader& json) {
  std::vector<std::string_view> required = {"version", "model", "dimensions", "batch_dimension", "loss"};
  addGivenKeys(OptionPlace::kTraining, required);
  for (const char* key : {"cluster", "microbatches", "cut_batch", "schedule", "layers", "stages"})
    required.push_back(key);
  std::vector<std::string_view> optional = {"notes", "profile", "memory"};
  addGivenKeys(OptionPlace::kTrain, optional);
  addGivenKeys(OptionPlace::kFreeze, optional);
  for (const char* key : {"boundaries", "balance", "layer_count", "last_batch", "lengths", "copies_weights",
                          "updates_per_step"})
    optional.push_back(key);
  addGivenKeys(OptionPlace::kExecution, optional);
  for (const char* key : {"schedule_orders", "shardings", "strategies", "specs", "search", "alternatives",
                          "reasons", "stage_costs"})
    optional.push_back(key);
  json.expectObject(required, optional);
}

Plan readPlan(const Json& document, JsonFaults& faults) {
  Plan plan;
  const JsonReader json(document, "plan.json");
  faults.attempt([&] { expectPlan(json); });
  readTraining(json, faults, plan);
  readSchedule(json, faults, plan);
  const bool has_layers = faults.attemptField(json, "layers", [&](const JsonReader& layers) {
    for (const JsonReader& layer : layers.elements()) readLayer(layer, faults, plan);
  });
  if (has_layers)
    faults.attemptField(json, "stages", [&](const JsonReader& stages) { readStages(stages, faults, plan); });
  if (!plan.stages.empty()) readShardings(json, faults, plan);
  const auto list = [&](const char* key, std::vector<std::string>& field) {
    faults.attemptField(json, key, [&](const JsonReader& texts) { field = texts.strings(); });
  };
  readGivenOptions(json, OptionPlace::kTrain, faults, plan.given);
  readGivenOptions(json, OptionPlace::kFreeze, faults, plan.given);
  list("boundaries", plan.boundaries);
  faults.attemptField(json, "balance", [&](const JsonReader& text) { plan.balance = text.string(); });
  faults.attemptField(json, "layer_count",
                      [&](const JsonReader& count) { plan.layer_count = count.integer(0, INT32_MAX); });
  list("notes", plan.notes);
  if (json.has("search")) faults.attempt([&] { plan.search = readSearch(json); });
  return plan;
}

}  // namespace

Plan planFromJson(std::string_view text) {
  const Json document = parseJson(text, "plan.json");
  checkJsonVersion(document, "plan.json", kPlanVersion);
  JsonFaults faults;
  Plan plan = readPlan(document, faults);
  faults.throwIfAny("plan.json");
  return plan;
}

std::vector<std::string> planFaults(std::string_view text) {
  JsonFaults faults;
  faults.attempt([&] {
    const Json document = parseJson(text, "plan.json");
    checkJsonVersion(document, "plan.json", kPlanVersion);
    readPlan(document, faults);
  });
  return faults.messages();
}

}  // namespace pipeshard
