#include "runtime/machine/handover.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

// Room for the descriptors beside a message.
struct ControlRoom {
  alignas(cmsghdr) char bytes[CMSG_SPACE(kMostHandedOver * sizeof(int))] = {};
};

}  // namespace

HandoverSockets makeHandoverSockets() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
    fail(ErrorCode::kOutOfMemory, "cannot make a pair of sockets: {}; check `ulimit -n`",
         std::strerror(errno));
  HandoverSockets sockets{Descriptor(ends[0]), Descriptor(ends[1])};
  ::fcntl(sockets.parent.get(), F_SETFD, FD_CLOEXEC);
  return sockets;
}

bool handOver(const Descriptor& socket, const std::string& text, std::span<const int> descriptors) {
  if (descriptors.size() > kMostHandedOver || text.size() > kLongestHandover) return false;
  ControlRoom room;
  ::iovec piece{const_cast<char*>(text.data()), text.size()};
  ::msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = room.bytes;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    ::cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent = -1;
  do {
    sent = ::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(text.size());
}

std::optional<Handover> takeHandover(int socket) {
  Handover taken;
  taken.text.resize(kLongestHandover);
  ControlRoom room;
  ::iovec piece{taken.text.data(), taken.text.size()};
  ::msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = room.bytes;
  message.msg_controllen = sizeof room.bytes;
  ssize_t got = -1;
  do {
    got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  // Owned first, so that none is left open where the rest is refused.
  for (::cmsghdr* header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr; header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + CMSG_LEN(0) < header->cmsg_len; at += sizeof(int)) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + at, sizeof descriptor);
      taken.descriptors.emplace_back(descriptor);
    }
  }
  if (got <= 0 || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return std::nullopt;
  taken.text.resize(static_cast<size_t>(got));
  return taken;
}

}  // namespace pipeshard
