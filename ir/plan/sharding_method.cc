#include "ir/plan/sharding_method.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <vector>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/near_matches.h"

namespace pipeshard {
namespace {

struct MethodFacts {
  std::string_view name;
  BatchAxes batch = BatchAxes::kFree;
  bool grid = false;
};

// By kind; messages list them in this order.
constexpr std::array<MethodFacts, 9> kMethods = {{{"auto"},
                                                  {"data-parallel", BatchAxes::kAll},
                                                  {"zero2", BatchAxes::kAll},
                                                  {"zero3", BatchAxes::kAll},
                                                  {"tensor-parallel", BatchAxes::kNone},
                                                  {"manual"},
                                                  {"megatron", BatchAxes::kFirst, true},
                                                  {"megatron-zero2", BatchAxes::kFirst, true},
                                                  {"exhaustive"}}};

const MethodFacts& factsOf(ShardingKind kind) { return kMethods.at(static_cast<size_t>(kind)); }

std::optional<ShardingKind> kindNamed(std::string_view name) {
  const auto found = std::find_if(kMethods.begin(), kMethods.end(),
                                  [name](const MethodFacts& facts) { return facts.name == name; });
  if (found == kMethods.end()) return std::nullopt;
  return static_cast<ShardingKind>(found - kMethods.begin());
}

std::optional<int> readCount(std::string_view text) {
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 1) return std::nullopt;
  return count;
}

// "2,4" of "megatron:2,4".
ShardingMethod parseGrid(ShardingKind kind, std::string_view counts) {
  const size_t comma = counts.find(',');
  const auto data = readCount(counts.substr(0, comma));
  const auto tensor = comma == std::string_view::npos ? std::nullopt : readCount(counts.substr(comma + 1));
  if (data && tensor) return {kind, *data, *tensor};
  const std::string_view name = factsOf(kind).name;
  fail(ErrorCode::kConfiguration,
       "method \"{}:{}\": expected {}:DP,TP with two numbers of devices, as in {}:2,4", name, counts, name,
       name);
}

[[noreturn]] void failUnknown(std::string_view text) {
  std::vector<std::string> names;
  for (const MethodFacts& facts : kMethods)
    names.push_back(fmt::format("{}{}", facts.name, facts.grid ? ":DP,TP" : ""));
  const std::vector<std::string> near = nearMatches(text, names);
  fail(ErrorCode::kConfiguration, "there is no sharding method \"{}\"{}; the methods are {}", text,
       near.empty() ? "" : fmt::format("; did you mean {}?", fmt::join(near, " or ")),
       fmt::join(names, ", "));
}

}  // namespace

BatchAxes ShardingMethod::batchAxes() const { return factsOf(kind).batch; }

bool ShardingMethod::hasGrid() const { return factsOf(kind).grid; }

ShardingMethod parseShardingMethod(std::string_view text) {
  const ShardingMethod method = parseSearchedMethod(text);
  if (method.isAnyGrid()) failUnknown(text);
  return method;
}

ShardingMethod parseSearchedMethod(std::string_view text) {
  if (const auto kind = kindNamed(text)) return {*kind};
  const size_t colon = text.find(':');
  const auto kind = colon == std::string_view::npos ? std::nullopt : kindNamed(text.substr(0, colon));
  if (!kind || !factsOf(*kind).grid) failUnknown(text);
  return parseGrid(*kind, text.substr(colon + 1));
}

std::string shardingMethodToString(const ShardingMethod& method) {
  const std::string_view name = factsOf(method.kind).name;
  return method.hasGrid() && !method.isAnyGrid() ? fmt::format("{}:{},{}", name, method.data, method.tensor)
                                                 : std::string(name);
}

}  // namespace pipeshard
