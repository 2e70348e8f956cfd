#include "ir/plan/search_record_json.h"

#include <nlohmann/json.hpp>

namespace pipeshard {
namespace {

Json stageToJson(const SearchedStage& stage) {
  return {{"layers", {stage.first_layer, stage.last_layer}},
          {"device", stage.first_device},
          {"submesh", {stage.nodes, stage.devices_per_node}},
          {"mesh", stage.mesh},
          {"method", shardingMethodToString(stage.method)},
          {"recomputation", recomputationName(stage.recomputation)},
          {"pass_ns", stage.pass_ns},
          {"step_ns", stage.step_ns},
          {"memory_bytes", stage.memory_bytes}};
}

// Two integers.
std::pair<int, int> pairOf(const JsonReader& json, int64_t low) {
  const std::vector<int64_t> numbers = json.integers(low, INT32_MAX);
  if (numbers.size() != 2) json.failExpected("two integers");
  return {static_cast<int>(numbers[0]), static_cast<int>(numbers[1])};
}

SearchedStage stageFromJson(const JsonReader& json) {
  json.expectObject({"layers", "device", "submesh", "mesh", "method", "recomputation", "pass_ns", "step_ns",
                     "memory_bytes"});
  SearchedStage stage;
  std::tie(stage.first_layer, stage.last_layer) = pairOf(json.at("layers"), 0);
  stage.first_device = json.at("device").integer(0, INT32_MAX);
  std::tie(stage.nodes, stage.devices_per_node) = pairOf(json.at("submesh"), 1);
  stage.mesh.clear();
  for (const int64_t size : json.at("mesh").integers(1, INT32_MAX)) stage.mesh.push_back(size);
  stage.method = json.at("method").parsed(parseShardingMethod);
  stage.recomputation = *recomputationFromName(json.at("recomputation").string(recomputationNames()));
  stage.pass_ns = json.at("pass_ns").integer(0, INT64_MAX);
  stage.step_ns = json.at("step_ns").integer(0, INT64_MAX);
  stage.memory_bytes = json.at("memory_bytes").integer(0, INT64_MAX);
  return stage;
}

SearchedPlan planFromJson(const JsonReader& json) {
  json.expectObject({"step_ns", "memory_bytes", "microbatches", "schedule", "stages"});
  SearchedPlan plan;
  plan.step_ns = json.at("step_ns").integer(0, INT64_MAX);
  plan.memory_bytes = json.at("memory_bytes").integer(0, INT64_MAX);
  plan.microbatches = json.at("microbatches").integer(1, INT32_MAX);
  plan.schedule = json.at("schedule").parsed(parseScheduleSpec);
  for (const JsonReader& stage : json.at("stages").elements()) plan.stages.push_back(stageFromJson(stage));
  return plan;
}

PlanReason reasonFromJson(const JsonReader& json) {
  json.expectObject({"about", "chosen", "instead", "step_ns", "why"});
  return {json.at("about").string(), json.at("chosen").string(), json.at("instead").string(),
          json.at("step_ns").integer(0, INT64_MAX), json.at("why").string()};
}

}  // namespace

void addSearch(const SearchRecord& record, Json& document) {
  document["search"] = {
      {"complete", record.complete}, {"objective", record.objective}, {"chosen", record.chosen}};
  document["alternatives"] = Json::array();
  for (const SearchedPlan& plan : record.alternatives) {
    Json stages = Json::array();
    for (const SearchedStage& stage : plan.stages) stages.push_back(stageToJson(stage));
    document["alternatives"].push_back({{"step_ns", plan.step_ns},
                                        {"memory_bytes", plan.memory_bytes},
                                        {"microbatches", plan.microbatches},
                                        {"schedule", scheduleSpecToString(plan.schedule)},
                                        {"stages", std::move(stages)}});
  }
  document["reasons"] = Json::array();
  for (const PlanReason& reason : record.reasons) {
    document["reasons"].push_back({{"about", reason.about},
                                   {"chosen", reason.chosen},
                                   {"instead", reason.instead},
                                   {"step_ns", reason.step_ns},
                                   {"why", reason.why}});
  }
  document["stage_costs"] = Json::array();
  for (const SearchedStage& stage : record.stage_costs) document["stage_costs"].push_back(stageToJson(stage));
}

SearchRecord readSearch(const JsonReader& json) {
  SearchRecord record;
  const JsonReader search = json.at("search");
  search.expectObject({"complete", "objective", "chosen"});
  record.complete = search.at("complete").boolean();
  record.objective = search.at("objective").string();
  if (json.has("alternatives")) {
    for (const JsonReader& plan : json.at("alternatives").elements())
      record.alternatives.push_back(planFromJson(plan));
  }
  const int64_t alternatives = record.alternatives.size();
  record.chosen = search.at("chosen").integer(0, alternatives == 0 ? 0 : alternatives - 1);
  if (json.has("reasons")) {
    for (const JsonReader& reason : json.at("reasons").elements())
      record.reasons.push_back(reasonFromJson(reason));
  }
  if (json.has("stage_costs")) {
    for (const JsonReader& stage : json.at("stage_costs").elements())
      record.stage_costs.push_back(stageFromJson(stage));
  }
  return record;
}

}  // namespace pipeshard
