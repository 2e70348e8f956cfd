// The order in which a rank gives its device what ranks give each other, for all programs of a folder.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/program/communication_order.h"
#include "ir/program/step_size.h"

namespace pipeshard {

class ProgramFolder;  // runtime/execute/rank_image.h

struct DeviceOrder {
  std::map<StepSize, std::vector<CommunicationStep>> steps;  // of one rank
  std::vector<std::vector<RankId>> groups;                   // of all collectives of all ranks, ascending
};

// Takes the programs of all ranks; all ranks find orders that fit each other. Error(kConfiguration) with the
// circle of waits, where it cannot be proven that a step ends. Errors as ProgramFolder and verifySample.
DeviceOrder deviceOrder(ProgramFolder& programs, RankId rank);

}  // namespace pipeshard
