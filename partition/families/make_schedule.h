// Schedules by name: the families that there are, and what a text such as "interleaved:v=3" asks for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "partition/schedules/schedule.h"

namespace pipeshard {

struct ScheduleRequest {
  // "1f1b", "interleaved:v=3", "eager-1f1b:extra=2"; names and options: scheduleFamilies()
  std::string text;
  int ranks = 1;         // p
  int microbatches = 1;  // m
  ScheduleCosts costs = {};
  // by stage: those that take minibatches in turn, if the text asks for that; empty: one each
  std::vector<int> replicas = {};
};

// One line per schedule, for --help, messages and docs.
struct ScheduleFamily {
  std::string name;
  std::string description;  // one sentence; its options
  int chunks = 1;           // v unless the text says otherwise
  bool asynchronous = false;
  bool splits_backward = false;
};
const std::vector<ScheduleFamily>& scheduleFamilies();
std::vector<std::string> scheduleNames();
// Stages per pipeline rank that the text asks for. Errors as makeSchedule.
int chunksOf(std::string_view text);

// Errors: kUsage for an unknown name or option (lists those that exist); kConfiguration where the schedule
// does not exist for so many ranks or microbatches: the message says which numbers would do. The result
// passes verifySchedule.
Schedule makeSchedule(const ScheduleRequest& request);
Schedule makeSchedule(std::string_view text, int ranks, int microbatches);
// Of a window of so many updates of so many microbatches each. Error(kConfiguration) where the schedule takes
// another number of microbatches per update (pipedream: one).
Schedule makeSchedule(std::string_view text, int ranks, int microbatches, int updates,
                      const std::vector<int>& replicas = {});
// Whether the text asks for an asynchronous schedule. Errors as makeSchedule.
bool isAsynchronous(std::string_view text);
// Whether the devices of a stage take the microbatches in turn: under asynchronous schedules, unless the text
// has the option rows=1.
bool takesTurns(std::string_view text);

}  // namespace pipeshard
