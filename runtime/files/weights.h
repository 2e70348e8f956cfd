// Initial content of a program's persistent buffers.
#pragma once

#include <span>
#include <string>

#include "ir/program/program.h"

namespace pipeshard {

// The weight that the content of a buffer with a source comes from: of a state that starts as its parameter
// ("w.moving_average") the parameter, else what the buffer holds.
inline std::string sourceName(const Buffer& buffer) {
  const bool state = buffer.kind == BufferKind::kOptimizerState;
  return state ? buffer.value.substr(0, buffer.value.rfind('.')) : buffer.value;
}

// Writes what `buffer` starts with: its source, converted from source_type to data_type; zeros without a
// source; numbers drawn from `seed` for a weight that no file has. Of a buffer with a part, its box of the
// source. Only the bytes referred to are read from the weight's file, and what lies between them where that
// is little (up to 4 KiB at a time); never more than 1 MiB is held beside `out`, or as much as `out` for a
// matrix that the file has transposed. A relative location starts at `directory`. Errors: kMissingInput (no
// such file, too short), kConfiguration (bytes do not fit type and shape); both name the buffer.
void loadInitialContent(const Buffer& buffer, const std::string& directory, uint64_t seed,
                        std::span<std::byte> out);

}  // namespace pipeshard
