// Changes of inputs that a format's own reader lets through to what lies behind it: numbers, names and parts
// of a document are replaced, doubled and left out, not bytes.
#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace pipeshard::testing {

using FuzzDice = std::minstd_rand;

// "" where the input is none of this form.
std::string mutateJson(const std::string& input, FuzzDice& dice);
std::string mutateModel(const std::string& input, FuzzDice& dice);

}  // namespace pipeshard::testing
