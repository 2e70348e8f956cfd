// Checks of option values that say in words what is wrong with them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "ir/base/ids.h"

namespace pipeshard {

// A whole number from 1 to `high`: "--steps: expected a whole number from 1 to 2147483647, found 0.5".
CLI::Validator positiveWhole(int64_t high = INT32_MAX);

// A number from `low` to `high`, both included; not "nan".
CLI::Validator numberFrom(double low, double high);

// A value of nothing but blanks is a usage error that names the option and what it takes; so is an unset
// variable of the shell. For all options of `app` and its subcommands; to be called when they are declared.
void refuseBlankValues(CLI::App& app);

// Error(kUsage) "--patience goes with --listen" where one of the options is given that do nothing without
// `what`, which is not there.
void refuseInVain(const CLI::App& command, const std::vector<std::string>& options, const std::string& what);

// Likewise of all options of a group: "--dim goes with ...".
void refuseGroupInVain(const CLI::App& command, const std::string& group, const std::string& what);

// Ranks as people list them: "17,500-503" is 17, 500, 501, 502, 503. Error(kUsage) naming `option` for what
// is no such list, or has more than 1,024.
std::vector<RankId> parseRanks(const std::string& option, const std::string& text);

// "29600-29699", or "29600" alone. Error(kUsage) naming `option` for what is no range of ports from 1 to
// 65535.
std::pair<int, int> parsePorts(const std::string& option, const std::string& text);

}  // namespace pipeshard
