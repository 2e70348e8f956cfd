// What the command writes for people, made safe: names come from files of others, terminals die, disks are
// full.
#pragma once

#include <cstdio>
#include <string_view>

namespace pipeshard {

// Called first of all. From then on stdout and stderr show control characters of what is printed as \xNN (all
// but line feed and tab), so also those that change the direction of writing, and bytes that are no UTF-8;
// printing never fails: what a terminal or a reader that is gone, or a closed
// descriptor, would have shown is dropped, and the command goes on to what it has to write. A reader that is
// gone is one SIGPIPE where that has a handler (SignalWatch: a run ends by it), and none otherwise.
// Descriptors 0, 1 and 2 that are closed become /dev/null, so that no file gets their numbers.
void guardStandardStreams();

// Goes to the start of the line and empties it.
inline constexpr std::string_view kEraseLine = "\r\033[K";

// Prints control sequences of our own as they are.
void printControl(std::FILE* stream, std::string_view text);

// Prints what is still buffered. The error number where standard output could not be written (a full disk),
// 0 otherwise.
int finishStandardStreams();

}  // namespace pipeshard
