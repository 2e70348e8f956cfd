// This machine's name, for messages.
#pragma once

#include <string>

namespace pipeshard {

std::string hostName();

}  // namespace pipeshard
