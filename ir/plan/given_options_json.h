// GivenOptions in plan.json. For the sources of ir/ only.
#pragma once

#include <string_view>
#include <vector>

#include "ir/base/json_reader.h"
#include "ir/plan/given_options.h"

namespace pipeshard {

// All of one place, in the order of the table.
void addGivenOptions(const GivenOptions& options, OptionPlace place, Json& document);
// Every fault is one of `faults`, by Error(kConfiguration) as JsonReader. What is not there stays as it is.
void readGivenOptions(const JsonReader& json, OptionPlace place, JsonFaults& faults, GivenOptions& options);
// What JsonReader::expectObject has to know of them.
void addGivenKeys(OptionPlace place, std::vector<std::string_view>& keys);

}  // namespace pipeshard
