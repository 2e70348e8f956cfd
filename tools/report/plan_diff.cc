#include "tools/report/plan_diff.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ir/plan/given_options.h"
#include "ir/plan/plan_json.h"
#include "tools/report/text_table.h"

namespace pipeshard {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kAbsent = "-";

std::string textOf(const Json& json) { return json.is_string() ? json.get<std::string>() : json.dump(); }

// "h.12.attn.weight" -> "h.*.attn.weight".
std::string patternOf(const std::string& name) {
  std::string pattern;
  for (char c : name) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit) pattern += c;
    if (digit && (pattern.empty() || pattern.back() != '*')) pattern += '*';
  }
  return pattern;
}

// Which part a field is of, by its key.
std::string partOf(const std::string& key) {
  static const std::map<std::string, std::vector<std::string>> kKeys = {
      {"training", {"model", "dimensions", "batch_dimension", "loss", "version"}},
      {"devices", {"cluster", "memory", "devices"}},
      {"meshes", {"mesh_shape", "mesh"}},
      {"layers", {"first_node", "last_node", "first", "last", "positions"}},
      {"stages", {"layers", "boundaries"}},
      {"microbatches", {"microbatches", "cut_batch", "last_batch", "lengths", "updates_per_step"}},
      {"schedule", {"schedule", "schedule_orders"}},
      {"recomputation", {"recomputation"}},
      {"shardings", {"method", "constraints", "memory_limit"}},
      {"predictions",
       {"flops", "forward_flops", "backward_flops", "parameter_bytes", "peak_activations", "predicted",
        "optimal", "lower_bound_ns"}}};
  for (const GivenOption& option : givenOptions()) {
    if (option.key == key) return option.part;
  }
  for (const auto& [part, keys] : kKeys) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) return part;
  }
  return "other";
}

class Diff {
 public:
  // Fields of two objects, in the order of the left one; those that are not there are null.
  void fields(const std::string& prefix, const Json& left, const Json& right,
              const std::set<std::string>& apart = {}) {
    std::vector<std::string> keys;
    for (const Json* side : {&left, &right}) {
      if (!side->is_object()) continue;
      for (const auto& [key, value] : side->items()) {
        if (std::find(keys.begin(), keys.end(), key) == keys.end() && !apart.contains(key))
          keys.push_back(key);
      }
    }
    const auto of = [](const Json& side, const std::string& key) {
      return side.is_object() && side.contains(key) ? side.at(key) : Json();
    };
    for (const std::string& key : keys) field(partOf(key), prefix + key, of(left, key), of(right, key));
  }

  void field(const std::string& part, const std::string& where, const Json& left, const Json& right) {
    if (left == right) return;
    const bool both_objects = (left.is_object() || left.is_null()) && (right.is_object() || right.is_null());
    const bool lists =
        left.is_array() && right.is_array() && std::max(left.dump().size(), right.dump().size()) > 60;
    if (both_objects) {
      for (const auto& [key, value] : (left.is_object() ? left : right).items()) {
        field(part, where + "." + key, left.is_object() && left.contains(key) ? left.at(key) : Json(),
              right.is_object() && right.contains(key) ? right.at(key) : Json());
      }
      if (left.is_object() && right.is_object()) {
        for (const auto& [key, value] : right.items()) {
          if (!left.contains(key)) field(part, where + "." + key, Json(), value);
        }
      }
      return;
    }
    if (!lists)
      return add(part, where, left.is_null() ? kAbsent : textOf(left),
                 right.is_null() ? kAbsent : textOf(right));
    for (size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
      field(part, fmt::format("{}[{}]", where, i), i < left.size() ? left[i] : Json(),
            i < right.size() ? right[i] : Json());
    }
  }

  void add(const std::string& part, const std::string& where, const std::string& left,
           const std::string& right, std::vector<std::string> values = {}) {
    if (left != right) differences_.push_back({part, where, left, right, std::move(values)});
  }

  std::vector<PlanDifference> take() {
    const auto place = [](const PlanDifference& difference) {
      return std::find(planParts().begin(), planParts().end(), difference.part) - planParts().begin();
    };
    std::stable_sort(differences_.begin(), differences_.end(),
                     [&](const PlanDifference& a, const PlanDifference& b) { return place(a) < place(b); });
    return std::move(differences_);
  }

 private:
  std::vector<PlanDifference> differences_;
};

// By number, `number` of the entries at `key` of either plan; null where a plan has fewer.
void eachOf(const Json& left, const Json& right,
            const std::function<void(size_t, const Json&, const Json&)>& compare) {
  const Json none;
  for (size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
    compare(i, i < left.size() ? left[i] : none, i < right.size() ? right[i] : none);
  }
}

std::string layerText(const Json& layer) {
  if (layer.is_null()) return kAbsent;
  return fmt::format("{}..{} ({} to {})", layer.at("first").get<int64_t>(), layer.at("last").get<int64_t>(),
                     textOf(layer.at("first_node")), textOf(layer.at("last_node")));
}

std::string layersText(const Json& stage) {
  if (stage.is_null()) return kAbsent;
  return fmt::format("{}..{}", stage.at("first_layer").get<int64_t>(), stage.at("last_layer").get<int64_t>());
}

// By stage what "shardings" says of it.
Json shardingsByStage(const Json& plan) {
  Json by_stage = Json::array();
  for (size_t s = 0; s < plan.at("stages").size(); ++s) by_stage.push_back(Json());
  if (!plan.contains("shardings")) return by_stage;
  for (const Json& entry : plan.at("shardings")) {
    Json& of_stage = by_stage.at(entry.at("stage").get<size_t>());
    of_stage = entry;
    of_stage.erase("stage");
  }
  return by_stage;
}

// By value (or node): what the stages that name it say, in their order.
std::map<std::string, std::string> shardingsByName(const Json& plan, const char* list, const char* name,
                                                   const char* what) {
  std::map<std::string, std::string> result;
  if (!plan.contains(list)) return result;
  for (const Json& entry : plan.at(list)) {
    std::string& text = result[entry.at(name)];
    const std::string said = entry.at(what);
    if (text.empty()) {
      text = said;
    } else if (text != said) {
      text += " | " + said;
    }
  }
  return result;
}

// What it means that a value is not listed: where all stages of several devices are sharded, it is kept
// whole.
std::string unlisted(const Json& plan) {
  const Json shardings = shardingsByStage(plan);
  for (size_t s = 0; s < shardings.size(); ++s) {
    if (shardings[s].is_null() && plan.at("stages")[s].at("devices").size() > 1) return kAbsent;
  }
  return plan.contains("shardings") ? "whole" : kAbsent;
}

void compareNames(const Json& left, const Json& right, const char* list, const char* name, const char* what,
                  Diff& diff) {
  const std::map<std::string, std::string> from = shardingsByName(left, list, name, what);
  const std::map<std::string, std::string> to = shardingsByName(right, list, name, what);
  std::map<std::tuple<std::string, std::string, std::string>, std::vector<std::string>> groups;
  const std::string not_from = unlisted(left), not_to = unlisted(right);
  const auto said = [](const std::map<std::string, std::string>& side, const std::string& absent,
                       const std::string& key) {
    const auto found = side.find(key);
    return found == side.end() ? absent : found->second.empty() ? std::string("whole") : found->second;
  };
  std::set<std::string> names;
  for (const auto* side : {&from, &to}) {
    for (const auto& [key, text] : *side) names.insert(key);
  }
  for (const std::string& key : names) {
    const std::string before = said(from, not_from, key), after = said(to, not_to, key);
    if (before != after) groups[{patternOf(key), before, after}].push_back(key);
  }
  for (auto& [group, values] : groups) {
    const auto& [pattern, before, after] = group;
    const std::string where = values.size() == 1
                                  ? fmt::format("{} {}", name, values[0])
                                  : fmt::format("{} {} ({} of them)", name, pattern, values.size());
    diff.add("shardings", where, before, after, std::move(values));
  }
}

}  // namespace

const std::vector<std::string>& planParts() {
  static const std::vector<std::string> kParts = {"training",  "devices",      "meshes",   "layers",
                                                  "stages",    "microbatches", "schedule", "recomputation",
                                                  "shardings", "predictions",  "other"};
  return kParts;
}

std::vector<PlanDifference> diffPlans(const Plan& left_plan, const Plan& right_plan) {
  const Json left = Json::parse(planToJson(left_plan)), right = Json::parse(planToJson(right_plan));
  Diff diff;
  diff.fields("", left, right, {"layers", "stages", "shardings", "strategies", "specs"});
  if (left.at("layers").size() != right.at("layers").size()) {
    diff.add("layers", "layers", std::to_string(left.at("layers").size()),
             std::to_string(right.at("layers").size()));
  }
  eachOf(left.at("layers"), right.at("layers"), [&](size_t i, const Json& from, const Json& to) {
    diff.add("layers", fmt::format("layer {}", i), layerText(from), layerText(to));
    diff.fields(fmt::format("layer {}: ", i), from, to, {"first", "last", "first_node", "last_node"});
  });
  if (left.at("stages").size() != right.at("stages").size()) {
    diff.add("stages", "stages", std::to_string(left.at("stages").size()),
             std::to_string(right.at("stages").size()));
  }
  eachOf(left.at("stages"), right.at("stages"), [&](size_t i, const Json& from, const Json& to) {
    const std::string prefix = fmt::format("stage {}: ", i);
    diff.add("stages", prefix + "layers", layersText(from), layersText(to));
    diff.fields(prefix, from, to, {"first_layer", "last_layer"});
  });
  eachOf(shardingsByStage(left), shardingsByStage(right), [&](size_t i, const Json& from, const Json& to) {
    diff.fields(fmt::format("sharding of stage {}: ", i), from, to);
  });
  compareNames(left, right, "specs", "value", "spec", diff);
  compareNames(left, right, "strategies", "node", "uses", diff);
  return diff.take();
}

std::string printDifferences(const std::vector<PlanDifference>& differences, size_t most_rows) {
  std::string text;
  for (const std::string& part : planParts()) {
    std::vector<std::vector<std::string>> rows;
    size_t hidden = 0;
    for (const PlanDifference& difference : differences) {
      if (difference.part != part) continue;
      if (rows.size() == most_rows) {
        ++hidden;
        continue;
      }
      rows.push_back({"  " + difference.where, difference.left, difference.right});
    }
    if (rows.empty()) continue;
    rows.insert(rows.begin(), {part, "first", "second"});
    text += (text.empty() ? "" : "\n") + formatTable(rows);
    if (hidden > 0) text += fmt::format("  ... and {} more (--json lists all)\n", hidden);
  }
  return text;
}

std::string differencesToJson(const std::vector<PlanDifference>& differences) {
  Json document;
  document["equal"] = differences.empty();
  document["differences"] = Json::array();
  for (const PlanDifference& difference : differences) {
    Json& entry = document["differences"].emplace_back();
    entry = {{"part", difference.part},
             {"where", difference.where},
             {"first", difference.left},
             {"second", difference.right}};
    if (!difference.values.empty()) entry["values"] = difference.values;
  }
  return document.dump(1) + "\n";
}

}  // namespace pipeshard
