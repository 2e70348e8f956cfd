// Initial content of a program's persistent buffers.
#pragma once

#include <span>
#include <string>

#include "ir/program.h"

namespace pipeshard {

// Writes what `buffer` starts with: its source, converted from source_type to data_type; zeros without a source. Only the
// bytes referred to are read from the weight's file; a relative location starts at `directory`.
// Errors: kMissingInput (no such file, too short), kConfiguration (bytes do not fit type and shape); both name the buffer.
void loadInitialContent(const Buffer& buffer, const std::string& directory, std::span<std::byte> out);

}  // namespace pipeshard
