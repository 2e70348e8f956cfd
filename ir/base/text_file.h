// Small files of text, read and written whole. What cannot be written is explained here, once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pipeshard {

// No plan, program or trace is larger.
inline constexpr uint64_t kMostTextBytes = uint64_t{1} << 30;

// The whole file; nothing where it cannot be opened: callers know what the file was to be, and say so. Never
// waits: Error(kMissingInput) for a folder, a named pipe, a device and the like. Error(kConfiguration) for
// more bytes than a file of its kind can have: "PATH is too large for WHAT".
std::optional<std::string> readTextFile(const std::string& path, uint64_t most_bytes = kMostTextBytes,
                                        std::string_view what = "a file of text");
// Error(kMissingInput) where it cannot be opened, too.
std::string requireTextFile(const std::string& path, uint64_t most_bytes = kMostTextBytes,
                            std::string_view what = "a file of text");

// Why a file of the user's choice cannot be written: Error(kMissingInput) where its folder is missing,
// Error(kConfiguration) where it is a folder or not for this user to write, else Error(kDiskFull).
[[noreturn]] void failToWrite(const std::string& path, int error_number);

// "-" is no file: Error(kUsage), which names /dev/stdout, here and in writeTextFile.
// Throws as failToWrite does if the file cannot be opened for writing: asked before long work. Leaves no new
// file, and never waits: Error(kConfiguration) for a named pipe that nobody reads.
void requireWritable(const std::string& path);

// Writes text to a file, which is made or replaced, whole or not at all: a disk that is full leaves what was
// there. Pipes and devices are written as they are. Errors as failToWrite and requireWritable.
void writeTextFile(const std::string& path, const std::string& text);

}  // namespace pipeshard
