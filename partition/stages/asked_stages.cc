#include "partition/stages/asked_stages.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "partition/families/make_schedule.h"

namespace pipeshard {
namespace {

constexpr int64_t kMostTried = 32;  // microbatches per pipeline rank, where nobody says how many

std::string readStageFileText(const std::string& path) {
  constexpr uint64_t kMostBytes = 16 << 20;
  if (std::optional<std::string> text = readTextFile(path, kMostBytes, "a stage file"))
    return *std::move(text);
  const bool means_file = path.find('/') != std::string::npos || path.ends_with(".json");
  fail(means_file ? ErrorCode::kMissingInput : ErrorCode::kUsage,
       "--stages \"{}\" is not understood; write auto (searched), per-device (one stage per device), "
       "uniform:K (K stages of equal work), megatron:DP,TP,PP[,V] (PP equal stages on DP x TP devices each) "
       "or the path of a stage file (docs/stages.md); there is no file of this name that can be read",
       path);
}

bool scheduleExists(const ScheduleSpec& schedule, int ranks, int64_t microbatches) {
  try {
    makeSchedule(schedule, ranks, microbatches, 1);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfiguration) throw;
    return false;
  }
}

}  // namespace

StageFile readStageFile(const PartitionOptions& options) {
  const std::string& path = options.stages.file;
  return parseStageFile(readStageFileText(path), path, options.cluster, options.layers);
}

StageCount givenCount(const PartitionOptions& options, const Balance& balance,
                      const AskedSchedule& schedule) {
  if (!options.boundaries.empty()) return {static_cast<int>(options.boundaries.size()) + 1, "--boundary"};
  if (options.stages.kind != StagesRequest::Kind::kPerDevice)
    return {options.stages.count, "--stages " + stagesToString(options.stages)};
  if (schedule.given) return {schedule.given->stages, "--schedule " + schedule.text};
  if (!options.stage_devices.empty())
    return {static_cast<int>(options.stage_devices.size()) * schedule.chunks, "--stage-devices"};
  if (balance.kind == Balance::Kind::kCounts)
    return {static_cast<int>(balance.counts.size()), "--balance " + balanceToString(balance)};
  return {};
}

AskedStages askedStages(const PartitionOptions& options) {
  const AskedSchedule schedule = askSchedule(options.schedule);
  AskedStages asked;
  if (options.stages.kind == StagesRequest::Kind::kSearched) {
    asked.ranks = options.cluster.deviceCount();
    return asked;
  }
  if (schedule.given) asked.microbatches = schedule.given->microbatches;
  if (options.stages.kind == StagesRequest::Kind::kFile) {
    const StageFile file = readStageFile(options);
    std::set<std::vector<RankId>> groups;
    for (const StageSpec& stage : file.stages) {
      groups.insert(stage.devices);
      asked.widest = std::max(asked.widest, stage.mesh_shape[0]);
    }
    asked.ranks = groups.size();
    return asked;
  }
  const int devices = options.cluster.deviceCount();
  const StageCount given = givenCount(options, options.balance.value_or(Balance{}), schedule);
  asked.ranks = given.stages > 0 ? schedule.ranksFor(given.stages, given.subject) : devices;
  if (const std::optional<ShardingMethod>& method = options.sharding.method) {
    if (method->batchAxes() == BatchAxes::kFirst) asked.widest = std::max(1, method->data);
    if (method->batchAxes() != BatchAxes::kAll) return asked;
  }
  if (schedule.turns()) {  // then a microbatch is under way on every device
    if (!options.stage_devices.empty())
      asked.ranks = std::accumulate(options.stage_devices.begin(), options.stage_devices.end(), 0);
    return asked;
  }
  asked.widest = std::max(1, devices / asked.ranks);
  for (int width : options.stage_devices) asked.widest = std::max(asked.widest, width);
  return asked;
}

int64_t chooseMicrobatches(int64_t batch, const PartitionOptions& options, const AskedStages& stages) {
  if (stages.microbatches > 0) return stages.microbatches;
  const AskedSchedule schedule = askSchedule(options.schedule);
  const auto fits = [&](int64_t count) {
    return count == 1 || (batch % count == 0 && batch / count >= stages.widest);
  };
  const auto exists = [&](int64_t count) {
    return fits(count) && (schedule.given || scheduleExists(schedule.spec, stages.ranks, count));
  };
  const int64_t usual = std::min<int64_t>(batch, 2 * stages.ranks);
  for (int64_t count = usual; count >= 1; --count) {
    if (exists(count)) return count;
  }
  const int64_t most = std::min<int64_t>(batch, kMostTried * stages.ranks);
  for (int64_t count = usual + 1; count <= most; ++count) {
    if (exists(count)) return count;
  }
  for (int64_t count = usual; count > 1; --count) {
    if (fits(count)) return count;
  }
  return 1;
}

}  // namespace pipeshard
