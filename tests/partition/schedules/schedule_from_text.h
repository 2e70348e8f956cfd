// Schedules by their texts, as --schedule takes them: "interleaved:v=3".
#pragma once

#include <string_view>

#include "partition/families/make_schedule.h"

namespace pipeshard {

inline Schedule makeSchedule(std::string_view text, int ranks, int microbatches) {
  return makeSchedule(parseSchedule(text), ranks, microbatches);
}
inline Schedule makeSchedule(std::string_view text, int ranks, int microbatches, int updates) {
  return makeSchedule(parseSchedule(text), ranks, microbatches, updates);
}
inline int chunksOf(std::string_view text) { return chunksOf(parseSchedule(text)); }

}  // namespace pipeshard
