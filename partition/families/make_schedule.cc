#include "partition/families/make_schedule.h"

#include <algorithm>
#include <charconv>
#include <map>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "partition/families/families.h"
#include "partition/schedules/schedule_verify.h"

namespace pipeshard {
namespace {

// "interleaved:v=3,group=4" taken apart.
struct ScheduleText {
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
  fail(ErrorCode::kUsage, "--schedule {}: found \"{}\"; expected options of {} ({}), as in {}:{}=2", text,
       option, family.about.name, fmt::join(known, ", "), family.about.name, known.front());
}

ScheduleText parseText(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const auto entry = std::find_if(familyEntries().begin(), familyEntries().end(),
                                  [&](const auto& e) { return e.about.name == name; });
  if (entry == familyEntries().end()) {
    fail(ErrorCode::kUsage, "there is no schedule \"{}\"; the schedules are {}", name,
         fmt::join(scheduleNames(), ", "));
  }
  ScheduleText result{&*entry, entry->about.chunks, {}};
  std::string_view rest = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  while (!rest.empty()) {
    const std::string_view option = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), option.size() + 1));
    const size_t equals = option.find('=');
    const std::string key(option.substr(0, equals));
    const std::string_view number =
        equals == std::string_view::npos ? std::string_view() : option.substr(equals + 1);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    const bool chunks = key == "v" && entry->most_chunks != 1;
    const bool known =
        chunks || std::find(entry->options.begin(), entry->options.end(), key) != entry->options.end();
    if (!known || error != std::errc() || end != number.data() + number.size() || value < 0)
      failOption(text, option, *entry);
    if (!chunks && !result.options.emplace(key, value).second) failOption(text, option, *entry);
    if (!chunks) continue;
    constexpr int64_t kMostChunks = 4096;
    if (value < 1 || value > (entry->most_chunks > 0 ? entry->most_chunks : kMostChunks))
      failOption(text, option, *entry);
    result.chunks = value;
  }
  return result;
}

std::string canonicalName(const ScheduleText& text) {
  std::vector<std::string> options;
  if (text.family->most_chunks != 1 && (text.chunks != 1 || text.family->about.chunks != 1))
    options.push_back(fmt::format("v={}", text.chunks));
  for (const auto& [key, value] : text.options) options.push_back(fmt::format("{}={}", key, value));
  return options.empty() ? text.family->about.name
                         : fmt::format("{}:{}", text.family->about.name, fmt::join(options, ","));
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

const ScheduleFamily& familyOf(std::string_view text) { return parseText(text).family->about; }

std::vector<std::string> triedSchedules(bool several_stages) {
  std::map<int, std::vector<std::string>> tried;  // by place
  for (const FamilyEntry& entry : familyEntries()) {
    const ScheduleFamily& family = entry.about;
    if (family.tried_as == 0) continue;
    for (const int chunks : family.tried_chunks) {
      if ((chunks > 1) != several_stages) continue;
      const bool says_chunks = entry.most_chunks != 1;
      tried[family.tried_as].push_back(says_chunks ? fmt::format("{}:v={}", family.name, chunks)
                                                   : family.name);
    }
  }
  std::vector<std::string> texts;
  for (const auto& [place, of_family] : tried) texts.insert(texts.end(), of_family.begin(), of_family.end());
  return texts;
}

BubbleFormula bubbleFormula(const Schedule& schedule) {
  const int64_t p = schedule.ranks();
  const int64_t m = schedule.microbatches;
  if (schedule.forward_only || schedule.asynchronous() || p < 1 || m < 1) return {};
  const std::string name = schedule.name.substr(0, schedule.name.find(':'));
  for (const ScheduleFamily& family : scheduleFamilies()) {
    if (family.name == name)
      return family.bubble == nullptr ? BubbleFormula() : family.bubble(p, m, schedule.stages / p);
  }
  return {};
}

int chunksOf(std::string_view text) { return parseText(text).chunks; }

Schedule makeSchedule(const ScheduleRequest& request) {
  PIPESHARD_CHECK(request.ranks >= 1 && request.microbatches >= 1, "{} ranks, {} microbatches", request.ranks,
                  request.microbatches);
  const ScheduleText text = parseText(request.text);
  constexpr int64_t kMostPasses = 1 << 24;
  const int64_t passes = int64_t{request.ranks} * text.chunks * request.microbatches;
  if (passes > kMostPasses) {
    fail(ErrorCode::kConfiguration,
         "schedule {}: found {} forward passes ({} ranks, {} stages on each, {} microbatches); expected at "
         "most {}",
         request.text, passes, request.ranks, text.chunks, request.microbatches, kMostPasses);
  }
  Schedule schedule = text.family->make({request.ranks, request.microbatches, text.chunks, text.options,
                                         request.costs, request.replicas, canonicalName(text)});
  schedule.name = canonicalName(text);
  schedule.microbatches = request.microbatches;
  schedule.stages = schedule.rank_of_stage.size();
  verifySchedule(schedule);
  return schedule;
}

Schedule makeSchedule(std::string_view text, int ranks, int microbatches) {
  return makeSchedule(ScheduleRequest{std::string(text), ranks, microbatches, {}});
}

bool isAsynchronous(std::string_view text) { return parseText(text).family->about.asynchronous; }

bool takesTurns(std::string_view text) {
  const ScheduleText parsed = parseText(text);
  const auto rows = parsed.options.find("rows");
  return parsed.family->about.asynchronous && (rows == parsed.options.end() || rows->second == 0);
}

Schedule makeSchedule(std::string_view text, int ranks, int microbatches, int updates,
                      const IdVector<StageId, int>& replicas) {
  ScheduleText parsed = parseText(text);
  if (!parsed.family->about.asynchronous) {
    if (updates != 1)
      fail(ErrorCode::kConfiguration, "schedule {}: found {} updates in a step; expected one", text, updates);
    return makeSchedule(text, ranks, microbatches);
  }
  const std::vector<std::string>& options = parsed.family->options;
  const bool has_m = std::find(options.begin(), options.end(), "m") != options.end();
  if (has_m && parsed.options.try_emplace("m", microbatches).first->second != microbatches) {
    fail(ErrorCode::kConfiguration,
         "schedule {}: found {} microbatches per update; expected {}: give --microbatches {} as well, or "
         "leave out the option m",
         text, microbatches, parsed.options.at("m"), parsed.options.at("m"));
  }
  constexpr int64_t kMostMicrobatches = 1 << 20;
  const int64_t window = int64_t{microbatches} * updates;
  if (window > kMostMicrobatches) {
    fail(ErrorCode::kConfiguration,
         "schedule {}: found a window of {} updates of {} microbatches; expected at most {} microbatches",
         text, updates, microbatches, kMostMicrobatches);
  }
  const int all_microbatches = window;
  const Schedule schedule = makeSchedule({canonicalName(parsed), ranks, all_microbatches, {}, replicas});
  if (schedule.microbatches_per_update == microbatches) return schedule;
  fail(ErrorCode::kConfiguration,
       "schedule {}: found {} microbatches per update; expected {} (--microbatches {})", text, microbatches,
       schedule.microbatches_per_update, schedule.microbatches_per_update);
}

}  // namespace pipeshard
