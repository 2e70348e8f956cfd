// program.json: a Program as text and back.
#pragma once

#include <string>
#include <string_view>

#include "ir/program/program.h"

namespace pipeshard {

// program.json. parse throws Error(kConfiguration) naming the field; version mismatch:
// Error(kVersionMismatch).
std::string programToJson(const Program& program);
Program programFromJson(std::string_view text);

}  // namespace pipeshard
