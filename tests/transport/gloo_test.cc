// What is particular to Gloo: opening and closing connections, and failures as they look between nodes.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "tests/expect_error.h"
#include "tests/transport/ranks.h"
#include "tests/transport/shared_store.h"
#include "transport/gloo/gloo_communicator.h"

namespace pipeshard::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Body = std::function<void(Communicator&)>;

GlooOptions optionsOf(int rank, int size, std::chrono::milliseconds timeout) {
  return {RankId(rank), size, "127.0.0.1", timeout, 5s};
}

RankBody overGloo(SharedStore& store, std::chrono::milliseconds timeout, const Body& body) {
  return [&store, timeout, body](int rank) {
    const auto communicator = openGloo(optionsOf(rank, store.size(), timeout), store);
    body(*communicator);
  };
}

struct Sockets {
  size_t listening = 0;
  size_t elsewhere = 0;  // not bound to 127.0.0.1
};

Sockets socketsOfThisProcess() {
  Sockets found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename());
    int listens = 0;
    socklen_t length = sizeof(listens);
    if (::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0) continue;
    sockaddr_in address{};
    length = sizeof(address);
    const bool known = ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0;
    if (listens != 0) ++found.listening;
    if (!known || address.sin_family != AF_INET || address.sin_addr.s_addr != ::htonl(INADDR_LOOPBACK))
      ++found.elsewhere;
  }
  return found;
}

size_t entriesOf(const char* folder) {
  const auto entries = std::filesystem::directory_iterator(folder);
  return std::distance(begin(entries), end(entries));
}

// Calls `before_get` when the addresses of others are asked for.
class WatchedStore : public RendezvousStore {
 public:
  WatchedStore(RendezvousStore& store, std::function<void()> before_get)
      : store_(store), before_get_(std::move(before_get)) {}
  void set(const std::string& key, const std::string& bytes) override { store_.set(key, bytes); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    before_get_();
    return store_.get(key, timeout);
  }

 private:
  RendezvousStore& store_;
  std::function<void()> before_get_;
};

TEST(Gloo, ListensOnTheGivenHostOnlyAndOnlyUntilConnected) {
  SharedStore store(3);
  expectSuccess(runRanks(3, [&](int rank) {
    WatchedStore watched(store, [] {
      const Sockets sockets = socketsOfThisProcess();
      require(sockets.elsewhere == 0, "{} sockets are not bound to 127.0.0.1", sockets.elsewhere);
    });
    const auto communicator = openGloo(optionsOf(rank, 3, 10s), watched);
    require(socketsOfThisProcess().listening == 0, "{} sockets still listen",
            socketsOfThisProcess().listening);
    communicator->barrier(idsAt<RankId>({0, 1, 2}));
  }));
}

TEST(Gloo, ClosingLeavesNothingBehind) {
  std::vector<std::unique_ptr<SharedStore>> stores;
  for (int round = 0; round < 6; ++round) stores.push_back(std::make_unique<SharedStore>(3));
  expectSuccess(runRanks(3, [&](int rank) {
    size_t descriptors = 0;
    for (size_t round = 0; round < stores.size(); ++round) {
      openGloo(optionsOf(rank, 3, 10s), *stores[round])->barrier(idsAt<RankId>({0, 1, 2}));
      if (round == 0) descriptors = entriesOf("/proc/self/fd");
    }
    require(entriesOf("/proc/self/fd") == descriptors, "{} descriptors, {} before",
            entriesOf("/proc/self/fd"), descriptors);
    require(entriesOf("/proc/self/task") == 1, "{} threads are left", entriesOf("/proc/self/task"));
  }));
}

TEST(Gloo, ConnectsToListedPeersOnly) {
  SharedStore store(3);
  expectSuccess(runRanks(3, [&](int rank) {
    GlooOptions options = optionsOf(rank, 3, 5s);
    options.channel = "some";
    options.peers = idsAt<RankId>({0, 1, 2});
    if (rank == 1) options.peers->clear();
    if (rank != 1) std::erase(*options.peers, RankId(1));
    const auto communicator = openGloo(options, store);
    if (rank != 1) communicator->barrier(idsAt<RankId>({0, 2}));
    const int stranger = rank == 1 ? 0 : 1;
    try {
      communicator->send(RankId(stranger), {});
      failRank("a message to a rank that is not connected");
    } catch (const Error& error) {
      require(error.message().find(fmt::format("has not opened a connection to rank {}", stranger)) !=
                  std::string::npos,
              "{}", error.message());
    }
  }));
}

TEST(Gloo, OptionsAreChecked) {
  SharedStore store(2);
  EXPECT_ERROR(openGloo({RankId(2), 2, "127.0.0.1", 1s}, store), ErrorCode::kConfiguration, "rank 2");
  EXPECT_ERROR(openGloo({RankId(0), 2, "", 1s}, store), ErrorCode::kConfiguration, "address of this machine");
  EXPECT_ERROR(openGloo({RankId(0), 2, "127.0.0.1", 0s}, store), ErrorCode::kConfiguration, "timeout");
  EXPECT_ERROR(openGloo({RankId(0), 2, "192.0.2.1", 1s}, store), ErrorCode::kConfiguration, "'192.0.2.1'");
}

TEST(Gloo, AForeignAddressIsRefused) {
  for (const std::string text : {"x", "\x04\x00\x00\x00", "\xff\xff\xff\xff garbage"}) {
    SharedStore store(2);
    store.set("gloo/rank/1", text);
    EXPECT_ERROR(openGloo(optionsOf(0, 2, 1s), store), ErrorCode::kInternal, "addresses of rank 1");
  }
}

TEST(Gloo, ARankWithoutAnAddressIsNamed) {
  SharedStore store(3);
  const auto results = runRanks(2, [&](int rank) { openGloo({RankId(rank), 3, "127.0.0.1", 300ms}, store); });
  for (const RankResult& result : results)
    expectError(result, ErrorCode::kPeerUnavailable, {"connects to rank 2", "did it start"});
}

TEST(Gloo, ARankThatLeavesItsAddressAndNeverConnectsIsNamed) {
  SharedStore store(3);
  const auto start = Clock::now();
  const auto results = runRanks(3, [&](int rank) {
    WatchedStore watched(store, [&] {
      if (rank == 2) std::this_thread::sleep_for(1s);
    });
    openGloo({RankId(rank), 3, "127.0.0.1", rank == 2 ? 5000ms : 500ms}, watched);
  });
  EXPECT_LT(Clock::now() - start, 10s);
  for (int rank : {0, 1}) expectError(results[rank], ErrorCode::kHang, {"rank 2 did not connect", "500 ms"});
}

TEST(Gloo, ARankThatDiesBeforeItConnectsIsNamed) {
  SharedStore store(2);
  const auto start = Clock::now();
  const auto results = runRanks(2, [&](int rank) {
    WatchedStore watched(store, [&] {
      if (rank == 1) ::kill(::getpid(), SIGKILL);
    });
    openGloo(optionsOf(rank, 2, 10s), watched);
  });
  EXPECT_LT(Clock::now() - start, 8s);
  EXPECT_TRUE(results[0].exit_code == static_cast<int>(ErrorCode::kPeerUnavailable) ||
              results[0].exit_code == static_cast<int>(ErrorCode::kHang));
  EXPECT_NE(results[0].error.find("rank 1"), std::string::npos) << results[0].error;
}

TEST(Gloo, ADeathIsKnownAtOnceAndHarmsOnlyWhoNeedsTheDead) {
  SharedStore store(3);
  const auto results = runRanks(3, overGloo(store, 20s, [](Communicator& communicator) {
                                  std::byte word{};
                                  communicator.barrier(idsAt<RankId>({0, 1, 2}));
                                  if (communicator.rank() == RankId(2)) {
                                    // what it sent for the barrier may still be on its way
                                    std::this_thread::sleep_for(100ms);
                                    ::kill(::getpid(), SIGKILL);
                                  }
                                  std::this_thread::sleep_for(300ms);
                                  // The two survivors can go on with each other.
                                  if (communicator.rank() == RankId(0))
                                    communicator.send(RankId(1), {&word, 1})->wait();
                                  if (communicator.rank() == RankId(1))
                                    communicator.receive(RankId(0), {&word, 1});
                                  const auto start = Clock::now();
                                  try {
                                    communicator.barrier(idsAt<RankId>({0, 1, 2}));
                                  } catch (const Error&) {
                                    require(Clock::now() - start < 1s, "the death became known late");
                                    throw;
                                  }
                                }));
  expectError(results[0], ErrorCode::kPeerUnavailable, {"barrier", "rank 2 has died"});
  expectError(results[1], ErrorCode::kPeerUnavailable, {"barrier", "rank 2 has died"});
}

TEST(Gloo, SendingToTheDeadIsNoSignal) {
  SharedStore store(2);
  const auto results =
      runRanks(2, overGloo(store, 20s, [](Communicator& communicator) {
                 if (communicator.rank() == RankId(1)) ::kill(::getpid(), SIGKILL);
                 const std::vector<std::byte> small(1000);
                 const std::vector<std::byte> large(1 << 20);
                 std::vector<std::unique_ptr<SendHandle>> handles;
                 for (int i = 0; i < 100; ++i) {
                   handles.push_back(communicator.send(RankId(1), i % 2 == 0 ? small : large));
                   std::this_thread::sleep_for(2ms);
                 }
                 handles.back()->wait();
               }));
  expectError(results[0], ErrorCode::kPeerUnavailable, {"send of 1048576 bytes", "rank 1 has died"});
}

TEST(Gloo, ARankThatStopsInTheMiddleOfAMessageIsAHang) {
  for (const bool stop_receiver : {false, true}) {
    SharedStore store(2);
    const int stopped = stop_receiver ? 1 : 0;
    const auto results = runRanks(2,
                                  overGloo(store, 600ms,
                                           [](Communicator& communicator) {
                                             std::vector<std::byte> data(64 << 20);
                                             while (true) {
                                               if (communicator.rank() == RankId(0))
                                                 communicator.send(RankId(1), data)->wait();
                                               if (communicator.rank() == RankId(1))
                                                 communicator.receive(RankId(0), data);
                                             }
                                           }),
                                  20s, [&](const std::vector<pid_t>& ranks) {
                                    std::this_thread::sleep_for(400ms);
                                    ::kill(ranks[stopped], SIGSTOP);
                                    std::this_thread::sleep_for(1500ms);
                                    ::kill(ranks[stopped], SIGKILL);
                                  });
    const std::string name = fmt::format("rank {}", stopped);
    expectError(results[1 - stopped], ErrorCode::kHang, {name, "67108864 bytes", "600 ms"});
  }
}

TEST(Gloo, ManyLargeSendsBothWaysDoNotDeadlock) {
  SharedStore store(2);
  expectSuccess(runRanks(
      2, overGloo(store, 20s, [](Communicator& communicator) {
        const int self = communicator.rank().index(), peer = 1 - self;
        const std::vector<std::byte> out(3 << 20, static_cast<std::byte>(self + 1));
        std::vector<std::unique_ptr<SendHandle>> handles;
        for (int i = 0; i < 40; ++i) handles.push_back(communicator.send(RankId(peer), out));
        std::vector<std::byte> in(out.size());
        for (int i = 0; i < 40; ++i) {
          std::fill(in.begin(), in.end(), std::byte{0});
          communicator.receive(RankId(peer), in);
          require(in.front() == static_cast<std::byte>(peer + 1) && in.back() == in.front(), "message {}", i);
        }
        for (const auto& handle : handles) handle->wait();
      })));
}

// More small messages than may be under way: the rest is announced and waits at the sender.
TEST(Gloo, SmallMessagesBeyondTheWindowArriveInOrder) {
  SharedStore store(2);
  expectSuccess(runRanks(
      2, overGloo(store, 20s, [](Communicator& communicator) {
        constexpr uint32_t kMessages = 4000;
        std::vector<uint32_t> words(kMessages * 256);
        for (uint32_t i = 0; i < kMessages; ++i) words[i * 256] = i;
        std::vector<std::unique_ptr<SendHandle>> handles;
        const auto bytes = std::as_writable_bytes(std::span(words));
        for (size_t i = 0; i < kMessages && communicator.rank() == RankId(0); ++i) {
          handles.push_back(communicator.send(RankId(1), bytes.subspan(i * 1024, i % 3 == 0 ? 4 : 1024)));
        }
        std::array<uint32_t, 256> word;
        for (uint32_t i = 0; i < kMessages && communicator.rank() == RankId(1); ++i) {
          communicator.receive(RankId(0),
                               std::as_writable_bytes(std::span(word)).first(i % 3 == 0 ? 4 : 1024));
          require(word[0] == i, "message {} where {} was expected", word[0], i);
        }
        for (const auto& handle : handles) handle->wait();
      })));
}

TEST(Gloo, ClosingIsQuickWithSendsOutstandingAndPeersStopped) {
  SharedStore store(3);
  const auto results = runRanks(
      3,
      [&](int rank) {
        auto communicator = openGloo(optionsOf(rank, 3, 20s), store);
        const std::vector<std::byte> large(32 << 20);
        const std::vector<std::byte> small(100);
        std::vector<std::unique_ptr<SendHandle>> handles;
        if (rank == 1) ::kill(::getpid(), SIGSTOP);
        if (rank == 2) return std::this_thread::sleep_for(2s);
        std::this_thread::sleep_for(200ms);
        for (int peer : {1, 2}) {
          for (int i = 0; i < 5; ++i)
            handles.push_back(communicator->send(RankId(peer), i % 2 == 0 ? large : small));
        }
        const auto start = Clock::now();
        communicator.reset();
        require(Clock::now() - start < 1500ms, "closing took long");
      },
      20s,
      [](const std::vector<pid_t>& ranks) {
        std::this_thread::sleep_for(1500ms);
        ::kill(ranks[1], SIGKILL);
      });
  EXPECT_EQ(results[0].exit_code, 0) << results[0].error;
  EXPECT_EQ(results[2].exit_code, 0) << results[2].error;
}

}  // namespace
}  // namespace pipeshard::testing
