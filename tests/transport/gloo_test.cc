// What is particular to Gloo: opening and closing connections, and failures as they look between nodes.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "tests/expect_error.h"
#include "tests/transport/process_entries.h"
#include "tests/transport/ranks.h"
#include "tests/transport/shared_store.h"
#include "transport/gloo/gloo_communicator.h"

namespace pipeshard::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

GlooOptions optionsOf(int rank, int size, std::chrono::milliseconds timeout) {
  return {RankId(rank), size, "127.0.0.1", timeout, 5s};
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
    std::thread([] {}).join();  // with which a sanitizer's own thread begins
    const int threads = leastEntriesOf("/proc/self/task", 100ms);
    int descriptors = 0;
    for (size_t round = 0; round < stores.size(); ++round) {
      openGloo(optionsOf(rank, 3, 10s), *stores[round])->barrier(idsAt<RankId>({0, 1, 2}));
      if (round == 0) descriptors = entriesOf("/proc/self/fd");
    }
    require(entriesOf("/proc/self/fd") == descriptors, "{} descriptors, {} before",
            entriesOf("/proc/self/fd"), descriptors);
    const int left = leastEntriesOf("/proc/self/task", 5s, threads);
    require(left == threads, "{} threads, {} before", left, threads);
  }));
}

// As behind a firewall, as long as rank 1 does not come.
TEST(Gloo, WhoDoesNotAnswerIsTold) {
  SharedStore store(2);
  expectSuccess(runRanks(2, [&](int rank) {
    WatchedStore late(store, [&] {
      if (rank == 1) std::this_thread::sleep_for(1500ms);
    });
    std::vector<std::vector<UnansweredRank>> told;
    GlooOptions options = optionsOf(rank, 2, 10s);
    options.unanswered_after = 200ms;
    options.on_unanswered = [&](const std::vector<UnansweredRank>& ranks) { told.push_back(ranks); };
    openGloo(options, late)->barrier(idsAt<RankId>({0, 1}));
    if (rank == 1) return;
    require(told.size() >= 2 && told.back().empty(), "told {} times", told.size());
    require(told[0].size() == 1 && told[0][0].rank == RankId(1), "{} ranks", told[0].size());
    require(told[0][0].address.starts_with("tcp://127.0.0.1:"), "{}", told[0][0].address);
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
  Arrivals gave_up(2);
  const auto results = runRanks(3, [&](int rank) {
    std::optional<HereAtEnd> here;
    if (rank != 2) here.emplace(gave_up, rank);
    WatchedStore watched(store, [&] {
      if (rank == 2) gave_up.waitForAll();
    });
    openGloo({RankId(rank), 3, "127.0.0.1", rank == 2 ? 5000ms : 500ms}, watched);
  });
  EXPECT_LT(Clock::now() - start, 25s);
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

}  // namespace
}  // namespace pipeshard::testing
