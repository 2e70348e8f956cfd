#include "partition/stages/megatron_grid.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "partition/families/make_schedule.h"
#include "partition/families/plan_schedule.h"
#include "partition/stages/partition_options.h"

namespace pipeshard {
namespace {

constexpr std::string_view kMegatron = "megatron:";
constexpr int kMostSize = 1 << 10;  // of a factor: the number of devices still is an int

void useSchedule(const std::string& given, const MegatronGrid& grid, PartitionOptions& options) {
  if (grid.chunks > 1 && options.schedule.value_or(usualSchedule()) == ScheduleChoice(usualSchedule()))
    options.schedule = ScheduleSpec{"interleaved"}.with("v", grid.chunks);
  const AskedSchedule schedule = askSchedule(options.schedule);
  const bool fits =
      schedule.given ? schedule.given->stages == grid.pipeline * grid.chunks : schedule.chunks == grid.chunks;
  if (fits) return;
  fail(ErrorCode::kConfiguration,
       "{}: found {} on each pipeline rank, but --schedule {} has {}; leave --schedule out, or make them "
       "equal",
       given, counted(grid.chunks, "stage"), schedule.text, schedule.chunks);
}

}  // namespace

std::optional<MegatronGrid> parseMegatronGrid(std::string_view text) {
  if (!text.starts_with(kMegatron)) return std::nullopt;
  const std::string_view counts = text.substr(kMegatron.size());
  if (std::count(counts.begin(), counts.end(), ',') == 1) return std::nullopt;
  std::vector<int> sizes;
  bool are_sizes = true;
  for (std::string_view rest = counts; are_sizes; rest.remove_prefix(rest.find(',') + 1)) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    int& size = sizes.emplace_back();
    const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), size);
    are_sizes = error == std::errc() && end == entry.data() + entry.size() && size >= 1 && size <= kMostSize;
    if (rest.find(',') == std::string_view::npos) break;
  }
  if (are_sizes && sizes.size() == 3) return MegatronGrid{sizes[0], sizes[1], sizes[2], 1};
  if (are_sizes && sizes.size() == 4) return MegatronGrid{sizes[0], sizes[1], sizes[2], sizes[3]};
  fail(ErrorCode::kUsage,
       "\"{}\" is not understood; write megatron:DP,TP,PP or megatron:DP,TP,PP,V with numbers from 1 on, as "
       "in megatron:2,2,4",
       text);
}

std::string megatronGridToString(const MegatronGrid& grid) {
  return fmt::format("{}{},{},{}{}", kMegatron, grid.data, grid.tensor, grid.pipeline,
                     grid.chunks > 1 ? fmt::format(",{}", grid.chunks) : "");
}

void useMegatronGrid(PartitionOptions& options) {
  using Kind = StagesRequest::Kind;
  const Kind stages = options.stages.kind;
  const std::optional<MegatronGrid> of_stages =
      stages == Kind::kGrid ? std::optional(options.stages.grid) : std::nullopt;
  const std::optional<MegatronGrid> of_method = std::exchange(options.method_grid, {});
  if (!of_stages && !of_method) return;
  const MegatronGrid grid = of_stages ? *of_stages : *of_method;
  const std::string given =
      fmt::format("{} {}", of_stages ? "--stages" : "--method", megatronGridToString(grid));
  const bool other_stages =
      of_method && !of_stages && stages != Kind::kPerDevice && stages != Kind::kSearched;
  const bool other_method = of_stages && (options.sharding.method || (of_method && of_method != of_stages));
  if (other_stages || other_method || !options.boundaries.empty() || !options.stage_devices.empty()) {
    fail(ErrorCode::kUsage, "{} says stages, their devices and how they are sharded; leave out {}", given,
         other_stages                  ? "--stages"
         : other_method                ? "--method"
         : !options.boundaries.empty() ? "--boundary"
                                       : "--stage-devices");
  }
  const int64_t devices = int64_t{grid.data} * grid.tensor * grid.pipeline;
  if (devices > options.cluster.deviceCount()) {
    fail(ErrorCode::kConfiguration, "{}: found a grid of {} devices; expected at most {}, as the cluster has",
         given, devices, options.cluster.deviceCount());
  }
  useSchedule(given, grid, options);
  const int width = grid.data * grid.tensor;
  options.stages = uniformStages(grid.pipeline * grid.chunks);
  options.stage_devices.assign(grid.pipeline, width);
  options.sharding.method.reset();
  if (width > 1) options.sharding.method = {ShardingKind::kMegatron, grid.data, grid.tensor};
}

}  // namespace pipeshard
