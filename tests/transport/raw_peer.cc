#include "tests/transport/raw_peer.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace pipeshard {

RawPeer::RawPeer(const std::string& endpoint) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  if (socket_ < 0 || ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw std::runtime_error("cannot connect to " + endpoint);
  }
}

RawPeer::RawPeer(RawPeer&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}

RawPeer::~RawPeer() {
  if (socket_ >= 0) ::close(socket_);
}

int64_t RawPeer::sendSome(std::string_view bytes) const {
  const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) return errno == EAGAIN ? 0 : -1;
  return sent;
}

bool RawPeer::send(const std::string& bytes) const {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t sent = ::send(socket_, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    done += static_cast<size_t>(sent);
  }
  return true;
}

bool RawPeer::isClosedWithin(std::chrono::milliseconds timeout) const {
  const auto end = std::chrono::steady_clock::now() + timeout;
  std::array<char, 4096> bytes{};
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    pollfd item{socket_, POLLIN, 0};
    if (left <= 0 || ::poll(&item, 1, left) <= 0) return false;
    if (::recv(socket_, bytes.data(), bytes.size(), 0) <= 0) return true;
  }
}

std::string greeting(const std::string& mechanism) {
  std::string bytes =
      std::string("\xff", 1) + std::string(8, '\0') + "\x7f" + std::string("\x03\x00", 2) + mechanism;
  bytes.resize(64, '\0');
  return bytes;
}

std::string readyCommand() {
  const std::string body = std::string("\x05READY\x0bSocket-Type", 18) + std::string("\0\0\0\x06", 4) +
                           "DEALER" + std::string("\x08Identity", 9) + std::string(4, '\0');
  return std::string("\x04", 1) + static_cast<char>(body.size()) + body;
}

std::string frameHeader(uint64_t size, bool more) {
  std::string header(1, more ? '\x03' : '\x02');  // a long frame
  for (int shift = 56; shift >= 0; shift -= 8) header += static_cast<char>(size >> shift);
  return header;
}

MemoryUse memoryUse() {
  std::ifstream file("/proc/self/statm");
  MemoryUse use;
  file >> use.virtual_size >> use.resident;
  use.virtual_size *= ::sysconf(_SC_PAGESIZE);
  use.resident *= ::sysconf(_SC_PAGESIZE);
  return use;
}

}  // namespace pipeshard
