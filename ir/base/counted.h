// Numbers with a noun, for messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pipeshard {

// counted(1, "stage") is "1 stage", counted(3, "stage") "3 stages".
inline std::string counted(int64_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

}  // namespace pipeshard
