// Schedules as text, in the form of torch.distributed.pipelining: a line per pipeline rank, actions separated
// by commas ("0F0,0F1,,0B0"; empty cells are skipped), an overlapped pair as "(0F3;7B1)OVERLAP_F_B". UPDATE
// is ours: torch has no asynchronous schedules.
#pragma once

#include <string>
#include <string_view>

#include "partition/schedules/schedule.h"

namespace pipeshard {

std::string scheduleToCsv(const ScheduleOrders& orders);

// All actions that the text has, but torch's UNSHARD and RESHARD, which mean nothing here.
// Error(kConfiguration) "WHAT:line:column: ..." for what is no action (`what` is the file).
ScheduleOrders ordersFromCsv(std::string_view text, std::string_view what);

// Stages, microbatches and placement follow from the actions. Sends, receives and REDUCE_GRAD are dropped:
// emission places its own. Error(kConfiguration) as ordersFromCsv, and for UPDATE: a file does not say which
// weights are read. The result passes verifySchedule.
Schedule scheduleFromCsv(std::string_view text, std::string_view what);

}  // namespace pipeshard
