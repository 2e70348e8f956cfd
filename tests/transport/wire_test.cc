// What is particular to the wire: who may take part, what can be read and replayed on the line, what it takes
// of a machine, and failures between hosts.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

#include "tests/expect_error.h"
#include "tests/sanitizers.h"
#include "tests/transport/process_entries.h"
#include "tests/transport/ranks.h"
#include "tests/transport/raw_peer.h"
#include "tests/transport/wire_hosts.h"
#include "transport/control/control_socket.h"
#include "transport/wire/wire_communicator.h"
#include "transport/wire/wire_frame.h"

namespace pipeshard::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

const Group kBoth = idsAt<RankId>({0, 1});

// Runs ranks over the hosts; what the launcher has of their ends is let go once they have opened.
std::vector<RankResult> runOver(WireHosts& hosts, int size, std::chrono::milliseconds timeout,
                                const std::function<void(Communicator&)>& body,
                                const Meanwhile& meanwhile = nullptr) {
  return runRanks(
      size,
      [&](int rank) {
        const auto communicator = hosts.open(RankId(rank), 0, timeout, 5s);
        body(*communicator);
      },
      40s,
      [&](const std::vector<pid_t>& ranks) {
        for (int rank = 0; rank < size; ++rank) hosts.letGo(RankId(rank));
        if (meanwhile) meanwhile(ranks);
      });
}

int portOf(const std::string& endpoint) { return std::stoi(endpoint.substr(endpoint.rfind(':') + 1)); }

int connectTo(const std::string& endpoint) {
  const int peer = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  address.sin_port = ::htons(static_cast<uint16_t>(portOf(endpoint)));
  if (::connect(peer, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    throw std::runtime_error("connect");
  return peer;
}

// Between a host and another one: passes everything on, and keeps it.
class Wiretap {
 public:
  explicit Wiretap(std::string target) : target_(std::move(target)) {
    listening_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    if (::bind(listening_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        ::listen(listening_, 8) != 0 ||
        ::getsockname(listening_, reinterpret_cast<sockaddr*>(&address), &length) != 0)
      throw std::runtime_error("listen");
    endpoint_ = fmt::format("tcp://127.0.0.1:{}", ntohs(address.sin_port));
    thread_ = std::jthread([this](const std::stop_token& stop) { pass(stop); });
  }
  ~Wiretap() {
    thread_.request_stop();
    thread_.join();
    ::close(listening_);
  }
  const std::string& endpoint() const { return endpoint_; }
  // What came from whoever connected.
  std::string sent() const {
    const std::lock_guard lock(mutex_);
    return sent_;
  }

 private:
  void pass(const std::stop_token& stop) {
    std::array<pollfd, 3> items{{{listening_, POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}}};
    std::vector<char> bytes(1 << 16);
    while (!stop.stop_requested()) {
      if (::poll(items.data(), items.size(), 50) <= 0) continue;
      if (items[0].revents != 0 && items[1].fd < 0) {
        items[1].fd = ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
        items[2].fd = connectTo(target_);
      }
      for (const int from : {1, 2}) {
        if (items[from].fd < 0 || items[from].revents == 0) continue;
        const ssize_t got = ::read(items[from].fd, bytes.data(), bytes.size());
        if (got <= 0) {
          for (const int end : {1, 2}) ::close(std::exchange(items[end].fd, -1));
          break;
        }
        for (ssize_t done = 0; done < got;) {
          const ssize_t count = ::send(items[3 - from].fd, bytes.data() + done, got - done, MSG_NOSIGNAL);
          if (count <= 0) break;
          done += count;
        }
        const std::lock_guard lock(mutex_);
        if (from == 1) sent_.append(bytes.data(), got);
      }
    }
    for (const int end : {1, 2}) {
      if (items[end].fd >= 0) ::close(items[end].fd);
    }
  }

  std::string target_;
  std::string endpoint_;
  int listening_ = -1;
  mutable std::mutex mutex_;
  std::string sent_;
  std::jthread thread_;
};

// No 16 bytes of `secret` (without repetitions) are in `text`.
bool hasNothingOf(const std::string& text, std::string_view secret) {
  for (size_t i = 0; i + 16 <= secret.size(); i += 16) {
    if (text.find(secret.substr(i, 16)) != std::string::npos) return false;
  }
  return true;
}

std::string knownPattern(size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += fmt::format("tensor {:08d} ", text.size());
  text.resize(bytes);
  return text;
}

// Ranks are forked while threads of relays run, which sanitizers do not allow.
constexpr const char* kForks =
    "a fork beside running threads: AddressSanitizer's locks may stay locked in it, ThreadSanitizer ends it";
// As behind a firewall: host 1 tries an address where nobody is.
TEST(Wire, AHostThatDoesNotAnswerIsKnown) {
  WireHosts reached(hostsOf(2, 2));
  const auto end = Clock::now() + 20s;
  while (!reached.relay(1).unanswered().empty() && Clock::now() < end) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(reached.relay(1).unanswered().empty());
  WireHosts walled(hostsOf(2, 2), [](int, int, const RelayAddress& address) {
    return RelayAddress{"tcp://127.0.0.1:1", address.public_key};
  });
  std::this_thread::sleep_for(500ms);
  EXPECT_EQ(walled.relay(1).unanswered(), std::vector<int>{0});
  EXPECT_TRUE(walled.relay(0).unanswered().empty());  // which is connected to
}

TEST(Wire, NothingOfATensorCanBeReadOnTheLine) {
  SKIP_UNDER_SANITIZERS(kForks);
  constexpr size_t kBytes = 1 << 20;
  const std::string secret = knownPattern(kBytes);
  ASSERT_FALSE(hasNothingOf("what comes before " + secret, secret.substr(0, 64)));
  std::unique_ptr<Wiretap> tap;
  WireHosts hosts(hostsOf(2, 2), [&](int host, int, const RelayAddress& address) {
    if (host == 0) return address;
    tap = std::make_unique<Wiretap>(address.endpoint);
    return RelayAddress{tap->endpoint(), address.public_key};
  });
  expectSuccess(runOver(hosts, 2, 10s, [&](Communicator& communicator) {
    std::string data = communicator.rank() == RankId(1) ? secret : std::string(kBytes, ' ');
    const auto bytes = std::as_writable_bytes(std::span(data));
    for (const size_t count : {kBytes, size_t{64}}) {  // in pieces, and with its header
      if (communicator.rank() == RankId(1)) communicator.send(RankId(0), bytes.first(count))->wait();
      if (communicator.rank() == RankId(0)) communicator.receive(RankId(1), bytes.first(count));
    }
    require(data == secret, "something else came");
  }));
  const std::string captured = tap->sent();
  EXPECT_GT(captured.size(), kBytes);
  EXPECT_TRUE(hasNothingOf(captured, std::string_view(secret).substr(0, 1 << 14)));
}

// What was recorded is sent again, on a connection of its own.
TEST(Wire, WhatWasRecordedCannotBeReplayed) {
  SKIP_UNDER_SANITIZERS(kForks);
  std::unique_ptr<Wiretap> tap;
  std::string target;
  WireHosts hosts(hostsOf(2, 2), [&](int host, int, const RelayAddress& address) {
    if (host == 0) return address;
    target = address.endpoint;
    tap = std::make_unique<Wiretap>(address.endpoint);
    return RelayAddress{tap->endpoint(), address.public_key};
  });
  std::atomic<bool> replayed{false};
  expectSuccess(runOver(
      hosts, 2, 20s,
      [&](Communicator& communicator) {
        std::array<std::byte, 8> word{};
        for (int i = 0; i < 200; ++i) {
          word[0] = static_cast<std::byte>(i);
          if (communicator.rank() == RankId(1)) {
            communicator.send(RankId(0), word)->wait();
            std::this_thread::sleep_for(5ms);
          } else {
            word.fill(std::byte{255});
            communicator.receive(RankId(1), word);
            require(word[0] == static_cast<std::byte>(i), "message {} came where {} was due", word[0], i);
          }
        }
      },
      [&](const std::vector<pid_t>&) {
        for (const auto end = Clock::now() + 10s; tap->sent().size() < 1'000 && Clock::now() < end;)
          std::this_thread::sleep_for(5ms);
        EXPECT_GE(tap->sent().size(), 1'000U);  // more than a handshake
        const RawPeer peer(target);
        peer.send(tap->sent());
        replayed = peer.isClosedWithin(5s);
      }));
  EXPECT_TRUE(replayed) << "the replayed bytes were not refused";
}

TEST(Wire, StrangersAreRefusedAndToldOfWhileTheJobGoesOn) {
  SKIP_UNDER_SANITIZERS(kForks);
  WireHosts hosts(hostsOf(2, 2));
  const RelayAddress address = hosts.relay(0).address();
  std::string notice;
  expectSuccess(runOver(
      hosts, 2, 20s,
      [&](Communicator& communicator) {
        const auto end = Clock::now() + 2s;
        for (uint8_t over = 0; over == 0;) {
          std::array<float, 100> data{};
          data.fill(1);
          communicator.allReduce(kBoth, DataType::kFloat32, Reduction::kSum, data.data(), data.data(),
                                 data.size());
          require(data[7] == 2, "the sum is {}", data[7]);
          over = Clock::now() >= end ? 1 : 0;
          communicator.broadcast(kBoth, DataType::kUint8, 0, &over, 1);
        }
      },
      [&](const std::vector<pid_t>&) {
        std::vector<RawPeer> silent;
        for (int i = 0; i < 5; ++i) {
          RawPeer(address.endpoint).send("GET / HTTP/1.1\r\n\r\n" + std::string(1000, 'x'));
          const RawPeer plain(address.endpoint);
          plain.send(greeting("NULL") + readyCommand() + frameHeader(3000000000));
          silent.emplace_back(address.endpoint);
        }
        ControlSocket stranger(zmq::socket_type::dealer, "", address.endpoint);
        JobKeys keys = makeJobKeys();
        keys.server_public = address.public_key;
        stranger.useKeys(keys.clientKeys());
        stranger.socket().connect(address.endpoint);
        for (int i = 0; i < 40; ++i) {
          (void)stranger.send({"hello"}, /*patience=*/false);
          std::this_thread::sleep_for(20ms);
        }
        if (const auto line = hosts.relay(0).takeNotice()) notice = *line;
      }));
  EXPECT_NE(notice.find("connections refused so far"), std::string::npos) << notice;
  EXPECT_NE(notice.find("tensors at " + address.endpoint), std::string::npos) << notice;
}

// A host of the job, with a key that is known, that speaks for a rank of another host.
TEST(Wire, AHostCannotPoseAsARankOfAnother) {
  const IdVector<RankId, int> host_of_rank = {0, 1, 2};
  const JobKeys keys = makeJobKeys();
  const auto relay = HostRelay::open({0, host_of_rank, "127.0.0.1"});
  const int end = relay->attach(RankId(0), 0);
  relay->introduce({{0, relay->address()},
                    {1, {"tcp://127.0.0.1:1", keys.client_public}},
                    {2, {"tcp://127.0.0.1:1", makeJobKeys().client_public}}});
  relay->connect();
  std::jthread other([&] {
    ControlSocket line(zmq::socket_type::dealer, "", relay->address().endpoint);
    line.useKeys(ClientKeys{relay->address().public_key, keys.client_public, keys.client_secret});
    line.socket().set(zmq::sockopt::immediate, false);
    line.socket().connect(relay->address().endpoint);
    using wire::Frame, wire::Kind;
    const auto say = [&](Frame frame, uint64_t sequence) {
      frame.sequence = sequence;
      const std::string_view bytes(reinterpret_cast<const char*>(&frame), sizeof(frame));
      (void)line.send({bytes});
    };
    say({.kind = Kind::kHello, .number = 1, .bytes = wire::kProtocol}, 0);
    say({.source = 1, .target = wire::kEverybody, .kind = Kind::kOpen, .number = 3, .bytes = wire::kProtocol},
        1);
    say({.source = 2, .target = wire::kEverybody, .kind = Kind::kOpen, .number = 3, .bytes = wire::kProtocol},
        2);
    std::this_thread::sleep_for(1s);
  });
  EXPECT_ERROR(openWire({RankId(0), 3, end, 2s}), ErrorCode::kPeerUnavailable,
               "a message in the name of rank 2, which it does not have");
  const std::optional<std::string> notice = relay->takeNotice();
  ASSERT_TRUE(notice);
  EXPECT_NE(notice->find("host 1 sent a message in the name of rank 2"), std::string::npos) << *notice;
}

size_t listeningSockets(size_t& elsewhere) {
  size_t listening = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename());
    int listens = 0;
    socklen_t length = sizeof(listens);
    if (::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens == 0) continue;
    sockaddr_in address{};
    length = sizeof(address);
    const bool known = ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0;
    ++listening;
    if (!known || address.sin_addr.s_addr != ::htonl(INADDR_LOOPBACK)) ++elsewhere;
  }
  return listening;
}

TEST(Wire, ListensAtOnePortOfTheGivenHostOnly) {
  const IdVector<RankId, int> host_of_rank = {0, 0, 1, 2};
  size_t elsewhere = 0;
  const size_t before = listeningSockets(elsewhere);
  elsewhere = 0;
  const auto relay = HostRelay::open({0, host_of_rank, "127.0.0.1"});
  EXPECT_EQ(listeningSockets(elsewhere), before + 1);
  EXPECT_EQ(elsewhere, 0U);
  EXPECT_ERROR(HostRelay::open({0, host_of_rank, "192.0.2.1"}), ErrorCode::kConfiguration, "192.0.2.1");
  EXPECT_ERROR(HostRelay::open({0, host_of_rank, ""}), ErrorCode::kConfiguration, "address of this machine");
}

int portOf(const HostRelay& relay) {
  const std::string& endpoint = relay.address().endpoint;
  return std::stoi(endpoint.substr(endpoint.rfind(':') + 1));
}

// The first that is free; those that are taken are passed by, until none is left.
TEST(Wire, ListensWithinTheGivenPorts) {
  const IdVector<RankId, int> host_of_rank = {0, 1};
  auto any = HostRelay::open({0, host_of_rank, "127.0.0.1"});
  const int port = portOf(*any), last = std::min(port + 50, 65535);
  EXPECT_ERROR(HostRelay::open({0, host_of_rank, "127.0.0.1", {port, port}}), ErrorCode::kAddressInUse,
               fmt::format("all ports from {} to {} are taken", port, port));
  if (last == port) return;
  const auto second = HostRelay::open({0, host_of_rank, "127.0.0.1", {port, last}});
  const auto third = HostRelay::open({1, host_of_rank, "127.0.0.1", {port, last}});
  EXPECT_GT(portOf(*second), port);
  EXPECT_GT(portOf(*third), portOf(*second));
  EXPECT_LE(portOf(*third), last);
}

// A rank has a thread and three descriptors for it, and a host one connection to each other one.
TEST(Wire, WhatItTakesDoesNotGrowWithPairsOfRanks) {
  SKIP_UNDER_SANITIZERS(kForks);
  for (const int size : {4, 16}) {
    const int threads_before = leastEntriesOf("/proc/self/task", 200ms);
    const int descriptors_before = entriesOf("/proc/self/fd");
    WireHosts hosts(hostsOf(size, 2));
    const int ends = size * 4;  // both of both lanes
    EXPECT_LE(leastEntriesOf("/proc/self/task", 5s, threads_before + 10) - threads_before, 10);
    EXPECT_LE(entriesOf("/proc/self/fd") - descriptors_before - ends, 50);
    expectSuccess(runOver(hosts, size, 20s, [&](Communicator& communicator) {
      communicator.barrier(idsBelow<RankId>(size));
      const int threads = leastEntriesOf("/proc/self/task", 5s, 2);
      require(threads == 2, "{} threads", threads);
    }));
  }
}

TEST(Wire, AHostThatIsGoneIsNamedToTheOthers) {
  const IdVector<RankId, int> host_of_rank = {0, 1};
  auto first = HostRelay::open({0, host_of_rank, "127.0.0.1"});
  auto second = HostRelay::open({1, host_of_rank, "127.0.0.1"});
  const std::map<int, RelayAddress> addresses{{0, first->address()}, {1, second->address()}};
  const int end = first->attach(RankId(0), 0);
  const int other_end = second->attach(RankId(1), 0);
  for (HostRelay* relay : {first.get(), second.get()}) relay->introduce(addresses);
  for (HostRelay* relay : {first.get(), second.get()}) relay->connect();
  std::unique_ptr<Communicator> here, there;
  std::jthread opening([&] { there = openWire({RankId(1), 2, other_end, 5s}); });
  here = openWire({RankId(0), 2, end, 5s});
  opening.join();
  std::jthread ending([&] {
    std::this_thread::sleep_for(200ms);
    second.reset();  // its rank says no farewell
  });
  const auto start = Clock::now();
  std::array<std::byte, 10> data{};
  EXPECT_ERROR(here->receive(RankId(1), data), ErrorCode::kPeerUnavailable, "the connection to host 1 broke");
  EXPECT_LT(Clock::now() - start, 3s);
}

TEST(Wire, OptionsAreChecked) {
  EXPECT_ERROR(openWire({RankId(2), 2, -1, 1s}), ErrorCode::kConfiguration, "rank 2");
  EXPECT_ERROR(openWire({RankId(0), 2, -1, 0s}), ErrorCode::kConfiguration, "timeout");
  EXPECT_ERROR(openWire({RankId(0), 2, 999, 1s}), ErrorCode::kConfiguration, "descriptor 999 is not open");
}

}  // namespace
}  // namespace pipeshard::testing
