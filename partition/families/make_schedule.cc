#include "partition/families/make_schedule.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "partition/families/families.h"
#include "partition/schedules/schedule_verify.h"

namespace pipeshard {
namespace {

// What a value asks of its family.
struct AskedOptions {
  const FamilyEntry* family = nullptr;
  int chunks = 1;
  std::map<std::string, int64_t> options;
};

[[noreturn]] void failOption(std::string_view text, std::string_view option, const FamilyEntry& family) {
  std::vector<std::string> known = family.options;
  if (family.most_chunks != 1) known.insert(known.begin(), "v");
  if (known.empty())
    fail(ErrorCode::kUsage, "--schedule {}: found \"{}\"; {} has no options", text, option,
         family.about.name);
  fail(ErrorCode::kUsage,
       "--schedule {}: found \"{}\"; expected options of {} ({}), each an integer, as in {}:{}=2", text,
       option, family.about.name, fmt::join(known, ", "), family.about.name, known.front());
}

// `text` is the whole one, for messages.
AskedOptions understand(const ScheduleSpec& schedule, std::string_view text) {
  const auto entry =
      std::find_if(familyEntries().begin(), familyEntries().end(),
                   [&](const FamilyEntry& known) { return known.about.name == schedule.family; });
  if (entry == familyEntries().end()) {
    fail(ErrorCode::kUsage, "there is no schedule \"{}\"; the schedules are {}", schedule.family,
         fmt::join(scheduleNames(), ", "));
  }
  AskedOptions result{&*entry, entry->about.chunks, {}};
  for (const auto& [name, value] : schedule.options) {
    const auto refuse = [&, &name = name, &value = value] {
      failOption(text, fmt::format("{}={}", name, value), *entry);
    };
    if (name == "v" && entry->most_chunks != 1) {
      constexpr int64_t kMostChunks = 4096;
      if (value < 1 || value > (entry->most_chunks > 0 ? entry->most_chunks : kMostChunks)) refuse();
      result.chunks = value;
      continue;
    }
    const bool known = std::find(entry->options.begin(), entry->options.end(), name) != entry->options.end();
    if (!known || !result.options.emplace(name, value).second) refuse();
  }
  return result;
}

AskedOptions understand(const ScheduleSpec& schedule) {
  return understand(schedule, scheduleSpecToString(schedule));
}

ScheduleSpec canonicalOf(const AskedOptions& asked) {
  ScheduleSpec result{asked.family->about.name};
  if (asked.family->most_chunks != 1 && (asked.chunks != 1 || asked.family->about.chunks != 1))
    result.options.push_back({"v", asked.chunks});
  for (const auto& [name, value] : asked.options) result.options.push_back({name, value});
  return result;
}

}  // namespace

const std::vector<ScheduleFamily>& scheduleFamilies() {
  static const std::vector<ScheduleFamily> families = [] {
    std::vector<ScheduleFamily> result;
    for (const FamilyEntry& entry : familyEntries()) result.push_back(entry.about);
    return result;
  }();
  return families;
}

std::vector<std::string> scheduleNames() {
  std::vector<std::string> names;
  for (const ScheduleFamily& family : scheduleFamilies()) names.push_back(family.name);
  return names;
}

ScheduleSpec usualSchedule() { return {"1f1b"}; }

ScheduleSpec parseSchedule(std::string_view text) {
  ScheduleText read = readScheduleText(text);
  const AskedOptions asked = understand(read.spec, text);
  if (!read.understood) failOption(text, read.wrong, *asked.family);
  return std::move(read.spec);
}

const ScheduleFamily& familyOf(const ScheduleSpec& schedule) { return understand(schedule).family->about; }

std::vector<ScheduleSpec> triedSchedules(bool several_stages) {
  std::map<int, std::vector<ScheduleSpec>> tried;  // by place
  for (const FamilyEntry& entry : familyEntries()) {
    const ScheduleFamily& family = entry.about;
    if (family.tried_as == 0) continue;
    for (const int chunks : family.tried_chunks) {
      if ((chunks > 1) != several_stages) continue;
      ScheduleSpec& schedule = tried[family.tried_as].emplace_back(ScheduleSpec{family.name});
      if (entry.most_chunks != 1) schedule.options.push_back({"v", chunks});
    }
  }
  std::vector<ScheduleSpec> schedules;
  for (const auto& [place, of_family] : tried)
    schedules.insert(schedules.end(), of_family.begin(), of_family.end());
  return schedules;
}

BubbleFormula bubbleFormula(const Schedule& schedule) {
  const int64_t p = schedule.ranks();
  const int64_t m = schedule.microbatches;
  if (schedule.forward_only || schedule.asynchronous() || p < 1 || m < 1) return {};
  for (const ScheduleFamily& family : scheduleFamilies()) {
    if (family.name == schedule.spec.family)
      return family.bubble == nullptr ? BubbleFormula() : family.bubble(p, m, schedule.stages / p);
  }
  return {};
}

int chunksOf(const ScheduleSpec& schedule) { return understand(schedule).chunks; }

Schedule makeSchedule(const ScheduleRequest& request) {
  PIPESHARD_CHECK(request.ranks >= 1 && request.microbatches >= 1, "{} ranks, {} microbatches", request.ranks,
                  request.microbatches);
  const AskedOptions asked = understand(request.schedule);
  constexpr int64_t kMostPasses = 1 << 24;
  const int64_t passes = int64_t{request.ranks} * asked.chunks * request.microbatches;
  if (passes > kMostPasses) {
    fail(ErrorCode::kConfiguration,
         "schedule {}: found {} forward passes ({} ranks, {} stages on each, {} microbatches); expected at "
         "most {}",
         scheduleSpecToString(request.schedule), passes, request.ranks, asked.chunks, request.microbatches,
         kMostPasses);
  }
  const ScheduleSpec canonical = canonicalOf(asked);
  Schedule schedule = asked.family->make({request.ranks, request.microbatches, asked.chunks, asked.options,
                                          request.costs, request.replicas, scheduleSpecToString(canonical)});
  schedule.spec = canonical;
  schedule.microbatches = request.microbatches;
  schedule.stages = schedule.rank_of_stage.size();
  verifySchedule(schedule);
  return schedule;
}

Schedule makeSchedule(const ScheduleSpec& schedule, int ranks, int microbatches) {
  return makeSchedule(ScheduleRequest{schedule, ranks, microbatches, {}});
}

bool isAsynchronous(const ScheduleSpec& schedule) { return understand(schedule).family->about.asynchronous; }

bool takesTurns(const ScheduleSpec& schedule) {
  const AskedOptions asked = understand(schedule);
  const auto rows = asked.options.find("rows");
  return asked.family->about.asynchronous && (rows == asked.options.end() || rows->second == 0);
}

Schedule makeSchedule(const ScheduleSpec& schedule, int ranks, int microbatches, int updates,
                      const IdVector<StageId, int>& replicas) {
  AskedOptions asked = understand(schedule);
  const std::string text = scheduleSpecToString(schedule);
  if (!asked.family->about.asynchronous) {
    if (updates != 1)
      fail(ErrorCode::kConfiguration, "schedule {}: found {} updates in a step; expected one", text, updates);
    return makeSchedule(schedule, ranks, microbatches);
  }
  const std::vector<std::string>& options = asked.family->options;
  const bool has_m = std::find(options.begin(), options.end(), "m") != options.end();
  if (has_m && asked.options.try_emplace("m", microbatches).first->second != microbatches) {
    fail(ErrorCode::kConfiguration,
         "schedule {}: found {} microbatches per update; expected {}: give --microbatches {} as well, "
         "without --accumulate, or leave out the option m",
         text, microbatches, asked.options.at("m"), asked.options.at("m"));
  }
  constexpr int64_t kMostMicrobatches = 1 << 20;
  const int64_t window = int64_t{microbatches} * updates;
  if (window > kMostMicrobatches) {
    fail(ErrorCode::kConfiguration,
         "schedule {}: found a window of {} updates of {} microbatches; expected at most {} microbatches",
         text, updates, microbatches, kMostMicrobatches);
  }
  const int all_microbatches = window;
  const Schedule made = makeSchedule({canonicalOf(asked), ranks, all_microbatches, {}, replicas});
  if (made.microbatches_per_update == microbatches) return made;
  fail(ErrorCode::kConfiguration,
       "schedule {}: found {} microbatches per update; expected {} (--microbatches {}, without --accumulate)",
       text, microbatches, made.microbatches_per_update, made.microbatches_per_update);
}

}  // namespace pipeshard
