// Logs whose lines begin with their step, in its order: cut and looked into in bounded memory, whatever their
// size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pipeshard {

// Cuts the log behind the last whole line of a step up to `step`: what follows is of steps that are done
// again, or was cut off. Without such a line `heading` stays, where it begins with it, and nothing else.
// Reads from the end, no further than that line. The last step that was taken out; nothing where none was, or
// where there is no such file. Errors: kMissingInput (it is no plain file, cannot be read), as failToWrite
// (it cannot be written).
std::optional<int64_t> cutLogBehind(const std::string& path, int64_t step, std::string_view heading = "");

// Its first line, or as much of it as `most_bytes`; nothing where there is no such file, or nothing in it.
// Errors: kMissingInput.
std::optional<std::string> firstLineOf(const std::string& path, size_t most_bytes);

}  // namespace pipeshard
