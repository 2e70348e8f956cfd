#include "ir/program/program_set_json.h"

#include <functional>
#include <map>
#include <tuple>

#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/json_reader.h"
#include "ir/program/constant_json.h"
#include "ir/program/program_json.h"

namespace pipeshard {
namespace {

constexpr const char* kWhat = "ranks.json";

// `items`, one per line, as `toJson` makes them, inside of an object that is inside of the document.
template <typename T, typename ToJson>
std::string linesOf(const std::vector<T>& items, const ToJson& to_json) {
  std::string text = "[";
  for (size_t i = 0; i < items.size(); ++i)
    text += (i == 0 ? "\n      " : ",\n      ") + dumpJsonLine(to_json(items[i]));
  return text + (items.empty() ? "]" : "\n    ]");
}

// Things of which equal ones are written once.
template <typename T, typename Less = std::less<T>>
class Distinct {
 public:
  std::vector<size_t> placesOf(const std::vector<T>& items) {
    std::vector<size_t> places;
    for (const T& item : items) {
      const auto [found, is_new] = places_.try_emplace(item, items_.size());
      if (is_new) items_.push_back(item);
      places.push_back(found->second);
    }
    return places;
  }
  const std::vector<T>& items() const { return items_; }

 private:
  std::map<T, size_t, Less> places_;
  std::vector<T> items_;
};

struct ConstantLess {
  bool operator()(const Constant& a, const Constant& b) const {
    return std::tie(a.data_type, a.shape, a.bytes) < std::tie(b.data_type, b.shape, b.bytes);
  }
};

std::string tableToJson(const BindingTable& table) {
  Distinct<Shape> starts;
  Distinct<Constant, ConstantLess> constants;
  std::vector<Json> bindings;
  for (const RankBinding& binding : table.ranks) {
    bindings.push_back({{"kind", binding.kind.index()},
                        {"peers", positionsOf(binding.peers)},
                        {"groups", binding.groups},
                        {"starts", starts.placesOf(binding.starts)}});
    if (!binding.constants.empty()) bindings.back()["constants"] = constants.placesOf(binding.constants);
  }
  std::string text = fmt::format(
      "{{\n    \"kinds\": {},\n    \"groups\": {},\n    \"starts\": {}", table.kinds,
      linesOf(table.groups, [](const std::vector<RankId>& group) { return Json(positionsOf(group)); }),
      linesOf(starts.items(), [](const Shape& start) { return Json(start); }));
  if (!constants.items().empty())
    text += ",\n    \"constants\": " + linesOf(constants.items(), constantToJson);
  return text + ",\n    \"bindings\": " + linesOf(bindings, [](const Json& binding) { return binding; }) +
         "\n  }";
}

std::vector<size_t> positionsFrom(const JsonReader& json, size_t count) {
  const std::vector<int64_t> numbers = json.integers(0, static_cast<int64_t>(count) - 1);
  return {numbers.begin(), numbers.end()};
}

BindingTable tableFromJson(const JsonReader& json, size_t ranks) {
  json.expectObject({"kinds", "groups", "starts", "bindings"}, {"constants"});
  BindingTable table;
  table.kinds = json.at("kinds").integer(1, static_cast<int64_t>(ranks));
  for (const JsonReader& group : json.at("groups").elements())
    table.groups.push_back(idsAt<RankId>(positionsFrom(group, ranks)));
  std::vector<Shape> starts;
  for (const JsonReader& start : json.at("starts").elements()) starts.push_back(start.integers(0, INT64_MAX));
  std::vector<Constant> constants;
  if (json.has("constants")) {
    for (const JsonReader& item : json.at("constants").elements())
      constants.push_back(constantFromJson(item));
  }
  for (const JsonReader& item : json.at("bindings").elements()) {
    item.expectObject({"kind", "peers", "groups", "starts"}, {"constants"});
    RankBinding& binding = table.ranks.emplace_back();
    binding.kind = KindId(item.at("kind").integer(0, static_cast<int64_t>(table.kinds) - 1));
    binding.peers = idsAt<RankId>(positionsFrom(item.at("peers"), ranks));
    binding.groups = positionsFrom(item.at("groups"), table.groups.size());
    for (const size_t start : positionsFrom(item.at("starts"), starts.size()))
      binding.starts.push_back(starts[start]);
    if (!item.has("constants")) continue;
    for (const size_t constant : positionsFrom(item.at("constants"), constants.size()))
      binding.constants.push_back(constants[constant]);
  }
  if (table.ranks.size() != ranks)
    json.at("bindings")
        .failWith(fmt::format("found those of {} ranks; expected {}", table.ranks.size(), ranks));
  return table;
}

}  // namespace

BindingTable bindingsOf(const ProgramSet& set) { return {set.kinds.size(), set.groups, set.ranks}; }

std::string rankTablesToJson(const RankTables& tables) {
  std::string text = fmt::format("{{\n  \"version\": {},\n  \"ranks\": {},\n  \"whole\": {}", kKindVersion,
                                 tables.whole.ranks.size(), tableToJson(tables.whole));
  if (tables.last) text += ",\n  \"last_batch\": " + tableToJson(*tables.last);
  for (size_t k = 0; k < tables.shorter.size(); ++k)
    text += (k == 0 ? ",\n  \"shorter\": [" : ", ") + tableToJson(tables.shorter[k]);
  if (!tables.shorter.empty()) text += "]";
  return text + "\n}\n";
}

RankTables rankTablesFromJson(std::string_view text) {
  const Json document = parseJson(text, kWhat);
  checkJsonVersion(document, kWhat, kKindVersion);
  const JsonReader json(document, kWhat);
  json.expectObject({"version", "ranks", "whole"}, {"last_batch", "shorter"});
  const size_t ranks = json.at("ranks").integer(1, INT32_MAX);
  RankTables tables{tableFromJson(json.at("whole"), ranks), std::nullopt, {}};
  if (json.has("last_batch")) tables.last = tableFromJson(json.at("last_batch"), ranks);
  if (!json.has("shorter")) return tables;
  for (const JsonReader& shorter : json.at("shorter").elements())
    tables.shorter.push_back(tableFromJson(shorter, ranks));
  return tables;
}

}  // namespace pipeshard
