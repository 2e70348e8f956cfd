// Checks of option values that say in words what is wrong with them.
#pragma once

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

namespace pipeshard {

// A whole number from 1 to `high`: "--steps: expected a whole number from 1 to 2147483647, found 0.5".
CLI::Validator positiveWhole(int64_t high = INT32_MAX);

// A number from `low` to `high`, both included; not "nan".
CLI::Validator numberFrom(double low, double high);

}  // namespace pipeshard
