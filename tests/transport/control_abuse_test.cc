// Peers that attack a control server by bytes: it refuses them, bounds its memory, and goes on serving its
// own worker.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <atomic>
#include <csignal>
#include <future>
#include <random>
#include <thread>

#include <zmq.hpp>

#include "ir/base/error.h"
#include "tests/expect_error.h"
#include "tests/transport/raw_peer.h"
#include "transport/control/control_client.h"
#include "transport/control/control_gate.h"
#include "transport/control/control_server.h"

namespace pipeshard {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int64_t kMebibyte = int64_t{1} << 20;
constexpr int64_t kAllowedGrowth = 64 * kMebibyte;

// A server and one worker that echoes.
class ServedWorker {
 public:
  explicit ServedWorker(std::optional<JobKeys> keys) {
    server_ = ControlServer::bind({.job_id = "job", .keys = keys});
    ControlClientOptions options;
    if (keys) options.keys = keys->clientKeys();
    auto connecting = std::async(std::launch::async, [&] {
      return ControlClient::connect(server_->endpoint(), "job", 0, 5s, options);
    });
    EXPECT_TRUE(server_->receive(5s));
    echo_ = std::jthread([client = connecting.get()](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        if (const auto message = client->receive(20ms)) client->send("pong", message->body);
      }
    });
  }

  ControlServer& server() { return *server_; }

  // Round trips one after the other for `time`, at least one. Each is answered, within four seconds.
  int serveFor(std::chrono::milliseconds time) {
    int trips = 0;
    for (const auto end = Clock::now() + time; trips == 0 || Clock::now() < end; ++trips) {
      const auto start = Clock::now();
      server_->send(0, "ping", {{"trip", trips}});
      const auto answer = server_->receive(5s);
      if (!answer || answer->body["trip"] != trips) {
        ADD_FAILURE() << "trip " << trips << " was not answered";
        return trips;
      }
      EXPECT_LT(Clock::now() - start, 4s);
      std::this_thread::sleep_for(1ms);
    }
    return trips;
  }

  bool countsHandshakes(uint64_t count) {
    for (const auto end = Clock::now() + 5s; Clock::now() < end;) {
      if (server_->counters().handshakes >= count) return true;
      std::this_thread::sleep_for(5ms);
    }
    return false;
  }

 private:
  std::unique_ptr<ControlServer> server_;
  std::jthread echo_;
};

std::string randomBytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

class ControlAbuse : public testing::TestWithParam<bool> {
 protected:
  ControlAbuse() : keys_(makeJobKeys()), worker_(GetParam() ? std::optional(keys_) : std::nullopt) {}
  std::string mechanism() const { return GetParam() ? "CURVE" : "NULL"; }

  JobKeys keys_;
  ServedWorker worker_;
};

INSTANTIATE_TEST_SUITE_P(Control, ControlAbuse, testing::Values(false, true),
                         [](const auto& info) { return info.param ? "WithKeys" : "PlainText"; });

TEST_P(ControlAbuse, GarbageBytesAndHalfMessagesHarmNobody) {
  const MemoryUse before = memoryUse();
  std::vector<std::string> openings = {"",
                                       "GET / HTTP/1.1\r\n\r\n",
                                       std::string("\xff", 1),
                                       greeting(mechanism()).substr(0, 11),
                                       greeting(mechanism()),
                                       greeting("NOSUCH"),
                                       greeting(mechanism()) + readyCommand()};
  for (uint32_t seed = 0; seed < 40; ++seed) {
    for (const std::string& opening : openings) {
      const RawPeer peer(worker_.server().endpoint());
      peer.send(opening + randomBytes(seed * 13, seed));
    }
    EXPECT_GE(worker_.serveFor(5ms), 1);
  }
  EXPECT_LT(memoryUse().resident - before.resident, kAllowedGrowth);
  EXPECT_TRUE(worker_.countsHandshakes(40));
  EXPECT_FALSE(worker_.server().isRegistered(1));
}

TEST_P(ControlAbuse, AFrameThatClaimsGigabytesIsRefusedBeforeMemoryIsTakenForIt) {
  const MemoryUse before = memoryUse();
  for (const uint64_t size : {uint64_t{2'000'000'000}, uint64_t{3} << 30, uint64_t{1} << 62, ~uint64_t{0}}) {
    std::vector<RawPeer> peers;
    for (int i = 0; i < 4; ++i) {
      peers.emplace_back(worker_.server().endpoint());
      peers.back().send(greeting(mechanism()) + (GetParam() ? "" : readyCommand()) + frameHeader(size) +
                        "beginning");
    }
    worker_.serveFor(100ms);
    EXPECT_LT(memoryUse().virtual_size - before.virtual_size, 512 * kMebibyte) << size;
    for (const RawPeer& peer : peers) EXPECT_TRUE(peer.isClosedWithin(4s)) << size;
  }
  worker_.serveFor(10ms);
}

TEST_P(ControlAbuse, HundredsOfIdleConnectionsAreClosedAndCostNothing) {
  std::vector<RawPeer> peers;
  for (int i = 0; i < 300; ++i) {
    peers.emplace_back(worker_.server().endpoint());
    if (i % 3 == 1) peers.back().send(greeting(mechanism()).substr(0, 20));
    if (i % 3 == 2) peers.back().send(greeting(mechanism()));
  }
  const std::clock_t cpu = std::clock();
  const auto start = Clock::now();
  worker_.serveFor(500ms);
  std::this_thread::sleep_for(500ms);
  const double load = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC /
                      std::chrono::duration<double>(Clock::now() - start).count();
  EXPECT_LT(load, 0.8);  // a thread that spins takes all of a core
  for (const RawPeer& peer : peers) EXPECT_TRUE(peer.isClosedWithin(5s));
  EXPECT_LT(Clock::now() - start, 20s);
  EXPECT_TRUE(worker_.countsHandshakes(300));
  worker_.serveFor(10ms);
}

TEST_P(ControlAbuse, AStormOfConnectionsAndGarbageDoesNotSilenceTheWorker) {
  const int quiet = worker_.serveFor(500ms);
  std::atomic<int> connections{0};
  std::vector<std::jthread> storm;
  for (int i = 0; i < 3; ++i) {
    storm.emplace_back([&, i](const std::stop_token& stop) {
      // Without keys these are complete messages that reach the server; with keys they end at the door.
      std::string messages = greeting(mechanism()) + (GetParam() ? "" : readyCommand());
      for (int message = 0; message < 20; ++message) messages += frameHeader(1000) + randomBytes(1000, 1);
      while (!stop.stop_requested()) {
        const RawPeer peer(worker_.server().endpoint());
        peer.send(messages);
        if (i == 0) (void)peer.isClosedWithin(1ms);
        ++connections;
        std::this_thread::sleep_for(200us);
      }
    });
  }
  const int stormy = worker_.serveFor(1000ms);
  storm.clear();
  EXPECT_GT(connections, 100);
  EXPECT_GT(stormy, quiet / 10);
  worker_.serveFor(10ms);
}

// In plain text nothing bounds it: ZeroMQ keeps the frames of a message that is not complete, however many.
TEST(ControlAbuseByKeys, AnEndlessMultipartMessageOfAStrangerTakesNoMemory) {
  ServedWorker worker(makeJobKeys());
  const MemoryUse before = memoryUse();
  std::string frames;
  for (int i = 0; i < 256; ++i) frames += frameHeader(4096, true) + std::string(4096, 'x');
  for (const char* mechanism : {"NULL", "CURVE", "PLAIN"}) {
    const RawPeer peer(worker.server().endpoint());
    peer.send(greeting(mechanism) + readyCommand());
    int64_t sent = 0;
    for (const auto end = Clock::now() + 1s; Clock::now() < end;) {
      const int64_t more =
          peer.sendSome(std::string_view(frames).substr(static_cast<size_t>(sent) % frames.size()));
      if (more < 0) break;
      sent += more;
      if (more == 0) worker.serveFor(1ms);
    }
    EXPECT_LT(sent, 16 * kMebibyte) << mechanism;
    EXPECT_TRUE(peer.isClosedWithin(4s)) << mechanism;
  }
  EXPECT_LT(memoryUse().resident - before.resident, kAllowedGrowth);
  worker.serveFor(10ms);
}

TEST(ControlAbuseByKeys, PlainPasswordsAreNotAsked) {
  ServedWorker worker(makeJobKeys());
  zmq::context_t context;
  zmq::socket_t stranger(context, zmq::socket_type::dealer);
  stranger.set(zmq::sockopt::linger, 0);
  stranger.set(zmq::sockopt::plain_username, "job");
  stranger.set(zmq::sockopt::plain_password, "job");
  stranger.connect(worker.server().endpoint());
  stranger.send(zmq::str_buffer("hello"), zmq::send_flags::none);
  EXPECT_TRUE(worker.countsHandshakes(1));
  worker.serveFor(50ms);
  EXPECT_EQ(worker.server().counters().garbage, 0U);  // it never got so far
}

TEST(ControlAbuseByKeys, WhoseKeyIsRefusedEndsWithinFiveSecondsAndIsToldWhy) {
  const JobKeys keys = makeJobKeys();
  const JobKeys other = makeJobKeys();
  ServedWorker worker(keys);
  const auto connect = [&](const std::optional<ClientKeys>& with) {
    ControlClientOptions options;
    options.keys = with;
    const auto start = Clock::now();
    EXPECT_ERROR(ControlClient::connect(worker.server().endpoint(), "job", 1, 20s, options),
                 ErrorCode::kAuthentication, "use the key file of this job");
    EXPECT_LT(Clock::now() - start, 5s);
    worker.serveFor(5ms);
  };
  connect(ClientKeys{keys.server_public, other.client_public, other.client_secret});  // an unknown client
  connect(ClientKeys{other.server_public, keys.client_public, keys.client_secret});   // another server's key
  connect(other.clientKeys());                                                        // an earlier job's
  connect(std::nullopt);
  EXPECT_GE(worker.server().counters().handshakes, 4U);
  EXPECT_FALSE(worker.server().isRegistered(1));
  const auto notice = worker.server().takeNotice();
  ASSERT_TRUE(notice);
  EXPECT_NE(notice->find("connections refused"), std::string::npos) << *notice;
  EXPECT_FALSE(worker.server().takeNotice());
}

TEST(ControlAbuseByKeys, AKeyForAPlainServerIsAnAuthenticationError) {
  ServedWorker worker(std::nullopt);
  ControlClientOptions options;
  options.keys = makeJobKeys().clientKeys();
  EXPECT_ERROR(ControlClient::connect(worker.server().endpoint(), "job", 1, 20s, options),
               ErrorCode::kAuthentication, "uses no keys");
}

TEST(ControlAbuseByKeys, NotACoordinatorIsAPeerThatIsNotThere) {
  // Something that accepts and never says anything.
  zmq::context_t context;
  zmq::socket_t silent(context, zmq::socket_type::stream);
  silent.set(zmq::sockopt::linger, 0);
  silent.bind("tcp://127.0.0.1:*");
  ControlClientOptions options;
  options.keys = makeJobKeys().clientKeys();
  EXPECT_ERROR(ControlClient::connect(silent.get(zmq::sockopt::last_endpoint), "job", 1, 500ms, options),
               ErrorCode::kPeerUnavailable, "something listens there");
}

TEST(ControlAbuseByKeys, TheSelfTestFindsAServerThatLetsStrangersIn) {
  const JobKeys keys = makeJobKeys();
  zmq::context_t context;
  zmq::socket_t open(context, zmq::socket_type::router);  // CURVE, but nobody who checks the client's key
  open.set(zmq::sockopt::linger, 0);
  open.set(zmq::sockopt::curve_server, true);
  open.set(zmq::sockopt::curve_secretkey, keys.server_secret);
  open.bind("tcp://127.0.0.1:*");
  EXPECT_ERROR(requireRefusal(open.get(zmq::sockopt::last_endpoint), keys.server_public),
               ErrorCode::kAuthentication, "let in a stranger");
  zmq::socket_t silent(context, zmq::socket_type::stream);
  silent.set(zmq::sockopt::linger, 0);
  silent.bind("tcp://127.0.0.1:*");
  const auto start = Clock::now();
  EXPECT_ERROR(requireRefusal(silent.get(zmq::sockopt::last_endpoint), keys.server_public),
               ErrorCode::kAuthentication, "did not refuse");
  EXPECT_LT(Clock::now() - start, 8s);
}

TEST(ControlAbuseByKeys, TheSelfTestGoesOnAfterASignal) {
  zmq::context_t context;
  zmq::socket_t silent(context, zmq::socket_type::stream);
  silent.set(zmq::sockopt::linger, 0);
  silent.bind("tcp://127.0.0.1:*");
  const auto previous = ::signal(SIGALRM, [](int) {});
  const itimerval soon{{0, 0}, {0, 100'000}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &soon, nullptr), 0);
  EXPECT_ERROR(requireRefusal(silent.get(zmq::sockopt::last_endpoint), makeJobKeys().server_public),
               ErrorCode::kAuthentication, "did not refuse");
  ::signal(SIGALRM, previous);
}

TEST(ControlAbuseByKeys, TheLimitOfDescriptorsIsRaised) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < 1024) GTEST_SKIP() << "the hard limit of descriptors is " << limit.rlim_max;
  limit.rlim_cur = 256;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  ServedWorker worker(makeJobKeys());
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_GE(limit.rlim_cur, 1024U);
}

}  // namespace
}  // namespace pipeshard
