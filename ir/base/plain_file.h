// Plain files, read as they come, and made: what text_file.h and text_lines.h stand on.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>

namespace pipeshard {

// A descriptor, closed at the end; -1: none.
struct OpenFile {
  int descriptor;
  explicit OpenFile(int opened) : descriptor(opened) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile();
};

// Opens for reading, and never waits. -1 where it cannot be opened, and errno says why; `bytes` is its size
// otherwise, which is 0 for files of /proc. Error(kMissingInput) for a folder, a named pipe, a device and the
// like: "PATH is a named pipe; expected a file".
int openPlainFile(const std::string& path, uint64_t& bytes);

// As many as there are, and no more than have room; 0 at the end. Error(kMissingInput) when it cannot be
// read.
size_t readSome(const OpenFile& file, std::span<char> room, const std::string& path);

// Makes a file beside `path`, to be written and then renamed: "PATH.tmp.PID", with a number behind where that
// is there already. It is a new one: no link or pipe that somebody has prepared is followed. -1 where none
// can be made, and errno says why.
int createBeside(const std::string& path, mode_t mode, std::string& name);

// Error(kMissingInput) with the reason that errno gives.
[[noreturn]] void failToRead(const std::string& path);

}  // namespace pipeshard
