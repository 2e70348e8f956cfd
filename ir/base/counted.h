// Numbers with a noun, and lists of names, for messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pipeshard {

// counted(1, "stage") is "1 stage", counted(3, "stage") "3 stages".
inline std::string counted(int64_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

// "a, b, c"; of more than `most` names the first ones: "a, b and 7 more".
inline std::string listed(const std::vector<std::string>& names, size_t most) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < most; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
  return text;
}

}  // namespace pipeshard
