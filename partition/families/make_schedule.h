// Schedules by name: the families that there are, and what a value such as {"interleaved", {{"v", 3}}}
// (ir/plan/schedule_spec.h) asks for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/plan/schedule_spec.h"
#include "partition/schedules/schedule.h"

namespace pipeshard {

struct ScheduleRequest {
  ScheduleSpec schedule;
  int ranks = 1;         // p
  int microbatches = 1;  // m
  ScheduleCosts costs = {};
  // by stage: those that take minibatches in turn, if the schedule asks for that; empty: one each
  IdVector<StageId, int> replicas = {};
};

// Which rank has which stages.
enum class StagePlacement : uint8_t {
  kLooped,  // stage s on rank s mod p; with one stage on each rank the only way
  kV,       // two stages on each rank, forth and back: s and 2p-1-s
};

// What theory says of the idle time of p equal ranks with m microbatches, v stages on each, and F = I = W.
struct BubbleFormula {
  std::string of_step;    // idle time over ranks x step: "(p-1)/(m+p-1)"; "" where there is no formula
  std::string of_useful;  // idle over busy time: "(p-1)/m"
  double step = 0;        // their values
  double useful = 0;
};

// One line per schedule: what help, messages, docs, the search and the report know of it.
struct ScheduleFamily {
  std::string name;
  std::string description;  // one sentence; its options
  int chunks = 1;           // v unless an option says otherwise
  bool asynchronous = false;
  bool splits_backward = false;
  bool automatic = false;      // made for given times, by a search of its own
  bool all_in_flight = false;  // all microbatches' forward passes come before a backward pass
  bool forward_only = false;   // does not train
  StagePlacement placement = StagePlacement::kLooped;
  // `--stages auto` tries it, as the `tried_as`-th of all (0: not at all), with so many stages per rank.
  int tried_as = 0;
  std::vector<int> tried_chunks = {1};
  // Nothing where p, m, v are none that the formula is for; nullptr: there is no formula.
  BubbleFormula (*bubble)(int64_t p, int64_t m, int64_t v) = nullptr;
};
const std::vector<ScheduleFamily>& scheduleFamilies();
std::vector<std::string> scheduleNames();
// The one that nobody needs to ask for: 1f1b.
ScheduleSpec usualSchedule();
// Of a text such as "interleaved:v=3". Error(kUsage) for an unknown name or option (lists those that exist).
ScheduleSpec parseSchedule(std::string_view text);
// Errors as makeSchedule.
const ScheduleFamily& familyOf(const ScheduleSpec& schedule);
// Those that `--stages auto` tries, in its order: those of one stage per rank, or of several.
std::vector<ScheduleSpec> triedSchedules(bool several_stages);
// Of a schedule's own ranks, microbatches and stages; nothing for orders of a file.
BubbleFormula bubbleFormula(const Schedule& schedule);
// Stages per pipeline rank that are asked for. Errors as makeSchedule.
int chunksOf(const ScheduleSpec& schedule);

// Errors: kUsage for an unknown name or option (lists those that exist); kConfiguration where the schedule
// does not exist for so many ranks or microbatches: the message says which numbers would do. The result
// passes verifySchedule.
Schedule makeSchedule(const ScheduleRequest& request);
Schedule makeSchedule(const ScheduleSpec& schedule, int ranks, int microbatches);
// Of a window of so many updates of so many microbatches each. Error(kConfiguration) where the schedule takes
// another number of microbatches per update (pipedream: one).
Schedule makeSchedule(const ScheduleSpec& schedule, int ranks, int microbatches, int updates,
                      const IdVector<StageId, int>& replicas = {});
// Errors as makeSchedule.
bool isAsynchronous(const ScheduleSpec& schedule);
// Whether the devices of a stage take the microbatches in turn: under asynchronous schedules, but with the
// option rows=1.
bool takesTurns(const ScheduleSpec& schedule);

}  // namespace pipeshard
