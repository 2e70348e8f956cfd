// A pair of connected sockets between a process and its child, on which words and open descriptors travel: so
// a child that runs already gets what else it could only inherit. Messages keep their bounds and their order.
//
//   HandoverSockets sockets = makeHandoverSockets();   // sockets.child is inherited by the next child
//   handOver(sockets.parent, "two files", std::array{5, 7});
//   std::optional<Handover> got = takeHandover(child_end);   // in the child; got->descriptors are its own
//
// Thread rules: one thread at a time uses an end.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/files/posix_file.h"

namespace pipeshard {

struct HandoverSockets {
  Descriptor parent;  // close-on-exec
  Descriptor child;   // not so: it is for the next child alone, and to be closed here when that has begun
};
// Error(kOutOfMemory) where the system has none.
HandoverSockets makeHandoverSockets();

// What the kernel carries in one message; more cannot be handed over.
inline constexpr size_t kMostHandedOver = 250;
inline constexpr size_t kLongestHandover = 128 * 1024;  // bytes of text

struct Handover {
  std::string text;
  std::vector<Descriptor> descriptors;  // close-on-exec, in the order given
};

// Never waits. False: the other end is gone or does not read, or there is too much of it; nothing was sent.
// `text` is not empty.
bool handOver(const Descriptor& socket, const std::string& text, std::span<const int> descriptors = {});
// Waits for the next message. Nothing: the other end is gone, or it did not come whole.
std::optional<Handover> takeHandover(int socket);

}  // namespace pipeshard
