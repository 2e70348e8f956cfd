#include "partition/stages/balance.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <utility>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "partition/layers/layers.h"
#include "partition/layers/modules.h"
#include "partition/stages/stages.h"

namespace pipeshard {
namespace {

constexpr std::string_view kTypePrefix = "type:";
// Those that are a name alone.
constexpr std::array<std::pair<std::string_view, Balance::Kind>, 4> kNames = {
    {{"flops", Balance::Kind::kFlops},
     {"time", Balance::Kind::kTime},
     {"size", Balance::Kind::kSize},
     {"parameters", Balance::Kind::kParameters}}};

// "3,5,5,1"; empty if it is something else.
std::vector<int> parseCounts(std::string_view text) {
  std::vector<int> counts;
  while (true) {
    int count = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (error != std::errc() || count < 1) return {};
    counts.push_back(count);
    text.remove_prefix(end - text.data());
    if (text.empty()) return counts;
    if (text[0] != ',') return {};
    text.remove_prefix(1);
  }
}

IdVector<LayerId, int64_t> cutBytesByLayer(const Chain& chain, const LayerEnds& ends) {
  IdVector<LayerId, int64_t> bytes;
  for (int64_t end : ends) bytes.push_back(chain.cut_bytes[end]);
  return bytes;
}

// A copy of a weight, and a running statistic, stay with their readers. Error(kConfiguration) where that
// leaves too few places to cut at.
IdVector<LayerId, bool> placesToCut(const Chain& chain, const LayerEnds& ends, size_t stages) {
  const std::vector<bool> possible = stageEnds(chain);
  IdVector<LayerId, bool> may_end;
  for (int64_t end : ends) may_end.push_back(possible[end]);
  const auto places = static_cast<size_t>(std::count(may_end.begin(), may_end.end(), true));
  if (places < stages) {
    fail(ErrorCode::kConfiguration,
         "{} stages were asked for, but of {} layers only {} do not end between a copy of a weight and its "
         "reader, or between two calls of a batch normalization, which stay together; ask for fewer stages, "
         "or for more --layers",
         stages, ends.size(), places);
  }
  return may_end;
}

// How many layers to form, for stages that the layers are divided among.
int layerCount(const Chain& chain, int stages, int layers) {
  // fine enough for balance, coarse enough to find a narrow place near each cut
  constexpr int64_t kLayersPerStage = 4;
  const int64_t places =
      std::count(chain.beside_statistics.begin(), chain.beside_statistics.end(), true);  // the end is one
  if (layers == 0) return std::min(std::max<int64_t>(places, stages), kLayersPerStage * stages);
  if (layers < stages) fail(ErrorCode::kConfiguration, "{} layers are too few for {} stages", layers, stages);
  return layers;
}

Cuts cutByType(const Chain& chain, const Balance& balance, const std::vector<int>& widths, int layers) {
  if (layers > 0) {
    fail(ErrorCode::kUsage,
         "--layers and --balance type:{} exclude each other: the layers are the modules that match",
         balance.pattern);
  }
  const ModuleMatch match = matchModules(chain.training.graph, chain.nodes, balance.pattern);
  if (match.names.size() < widths.size()) {
    fail(ErrorCode::kConfiguration,
         "--balance type:{} matches {} ({}), too few for {} stages; ask for fewer stages or a wider pattern",
         balance.pattern,
         match.names.size() == 1 ? "one module" : fmt::format("{} modules", match.names.size()),
         fmt::join(match.names, ", "), widths.size());
  }
  UnitLayers units = unitLayers(match.unit);
  Cuts cuts{std::move(units.ends), {}};
  cuts.stage_ends = assignStages({.weight = std::move(units.weights),
                                  .cut_bytes = cutBytesByLayer(chain, cuts.layer_ends),
                                  .widths = widths,
                                  .even = true,
                                  .least_weight = 1});
  return cuts;
}

Cuts cutByCounts(const Chain& chain, const Balance& balance, const std::vector<int>& widths, int layers) {
  const std::string list = fmt::format("{}", fmt::join(balance.counts, ","));
  if (balance.counts.size() != widths.size()) {
    fail(ErrorCode::kConfiguration,
         "--balance {} lists {} stages, but there are {}; give one number per stage", list,
         balance.counts.size(), widths.size());
  }
  int64_t sum = std::accumulate(balance.counts.begin(), balance.counts.end(), int64_t{0});
  if (layers > 0 && sum != layers) {
    fail(ErrorCode::kConfiguration,
         "--balance {} holds {} layers, but --layers says {}; make the numbers add up to {}", list, sum,
         layers, layers);
  }
  if (sum > chain.count()) {
    fail(ErrorCode::kConfiguration,
         "--balance {} holds {} layers, but the model has only {} forward nodes to form layers of", list, sum,
         chain.count());
  }
  Cuts cuts{layersOf(chain, sum), {}};
  int last = -1;
  for (int count : balance.counts) cuts.stage_ends.push_back(LayerId(last += count));
  return cuts;
}

}  // namespace

Balance parseBalance(std::string_view text) {
  for (const auto& [name, kind] : kNames) {
    if (text == name) return {kind, "", {}};
  }
  if (text.starts_with(kTypePrefix))
    return {Balance::Kind::kType, std::string(text.substr(kTypePrefix.size())), {}};
  std::vector<int> counts = parseCounts(text);
  if (counts.empty()) {
    fail(ErrorCode::kUsage,
         "--balance \"{}\" is not understood; write flops, time, size, parameters, type:REGEX (modules or "
         "operators that match, e.g. type:block) or the number of layers of each stage, e.g. 3,5,5,1",
         text);
  }
  return {Balance::Kind::kCounts, "", std::move(counts)};
}

std::string balanceToString(const Balance& balance) {
  for (const auto& [name, kind] : kNames) {
    if (balance.kind == kind) return std::string(name);
  }
  return balance.kind == Balance::Kind::kType ? fmt::format("{}{}", kTypePrefix, balance.pattern)
                                              : fmt::format("{}", fmt::join(balance.counts, ","));
}

Cuts balanceStages(const Chain& chain, const Balance& balance, const std::vector<int>& widths, int layers,
                   const CostModel& model) {
  const int stages = widths.size();
  if (layers < 0)
    fail(ErrorCode::kUsage, "--layers {} is not understood; write a number, or 0 for an automatic choice",
         layers);
  if (stages > chain.count()) {
    fail(ErrorCode::kConfiguration, "{} stages were asked for, but the model has only {} forward nodes",
         stages, chain.count());
  }
  if (layers > chain.count()) {
    fail(ErrorCode::kConfiguration, "{} layers were asked for, but the model has only {} forward nodes",
         layers, chain.count());
  }
  if (balance.kind == Balance::Kind::kType) return cutByType(chain, balance, widths, layers);
  if (balance.kind == Balance::Kind::kCounts) return cutByCounts(chain, balance, widths, layers);
  Cuts cuts{layersOf(chain, layerCount(chain, stages, layers)), {}};
  StageProblem problem;
  problem.cut_bytes = cutBytesByLayer(chain, cuts.layer_ends);
  problem.widths = widths;
  problem.even = true;
  problem.may_end = placesToCut(chain, cuts.layer_ends, widths.size());
  if (balance.kind == Balance::Kind::kParameters || balance.kind == Balance::Kind::kSize) {
    const bool all = balance.kind == Balance::Kind::kSize;
    problem.weight = sumsByLayer(all ? nodeSizes(chain) : chain.parameter_bytes, cuts.layer_ends);
    problem.widths.assign(widths.size(), 1);  // every device of a stage holds all its parameters
  } else if (balance.kind == Balance::Kind::kTime) {
    problem.weight = sumsByLayer(nodeTimes(chain, model), cuts.layer_ends);
  } else {
    problem.weight = sumsByLayer(chain.flops, cuts.layer_ends);
    const IdVector<LayerId, int64_t> backward = sumsByLayer(chain.backward_flops, cuts.layer_ends);
    for (const LayerId layer : backward.ids()) problem.weight[layer] += backward[layer];
  }
  cuts.stage_ends = assignStages(problem);
  return cuts;
}

}  // namespace pipeshard
