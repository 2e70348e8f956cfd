#include "transport/control/control.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <future>
#include <thread>

#include "ir/base/error.h"
#include "tests/expect_error.h"
#include "transport/control/control_client.h"
#include "transport/control/control_server.h"

namespace pipeshard {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Connects in a thread while `server` answers; the server sees REGISTER as its next message.
std::unique_ptr<ControlClient> connectTo(ControlServer& server, const std::string& job, int rank,
                                         const ControlClientOptions& options = {}) {
  auto client = std::async(std::launch::async,
                           [&] { return ControlClient::connect(server.endpoint(), job, rank, 5s, options); });
  const auto message = server.receive(5s);
  EXPECT_TRUE(message && message->type == kRegister && message->rank == rank);
  return client.get();
}

TEST(Control, ListensOnAFreePortOfLoopback) {
  const auto first = ControlServer::bind({.job_id = "job"});
  const auto second = ControlServer::bind({.job_id = "job"});
  EXPECT_EQ(first->endpoint().rfind("tcp://127.0.0.1:", 0), 0U);
  EXPECT_NE(first->endpoint(), second->endpoint());
}

TEST(Control, RegistersAWorkerWithItsBody) {
  const auto server = ControlServer::bind({.job_id = "job"});
  EXPECT_FALSE(server->isRegistered(3));
  auto connecting = std::async(std::launch::async, [&] {
    return ControlClient::connect(server->endpoint(), "job", 3, 5s, {0, {{"pid", 42}}});
  });
  const auto message = server->receive(5s);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->type, kRegister);
  EXPECT_EQ(message->body["pid"], 42);
  EXPECT_EQ(connecting.get()->rank(), 3);
  EXPECT_TRUE(server->isRegistered(3));
}

TEST(Control, MessagesGoBothWaysInOrder) {
  const auto server = ControlServer::bind({.job_id = "job"});
  const auto zero = connectTo(*server, "job", 0);
  const auto one = connectTo(*server, "job", 1);
  for (int i = 0; i < 300; ++i) {
    server->send(i % 2, "run", {{"step", i}});
    (i % 2 == 0 ? zero : one)->send("done", {{"step", i}});
  }
  int next[2] = {0, 1};
  for (int i = 0; i < 300; ++i) {
    const auto message = server->receive(5s);
    ASSERT_TRUE(message);
    EXPECT_EQ(message->type, "done");
    EXPECT_EQ(message->lost_before, 0U);
    EXPECT_EQ(message->body["step"], next[message->rank]);
    next[message->rank] += 2;
    const auto order = (i % 2 == 0 ? zero : one)->receive(5s);
    ASSERT_TRUE(order);
    EXPECT_EQ(order->type, "run");
    EXPECT_EQ(order->rank, kCoordinatorRank);
    EXPECT_EQ(order->body["step"], i);
  }
  EXPECT_EQ(server->counters().garbage + server->counters().lost + server->counters().unregistered, 0U);
}

TEST(Control, CarriesAMessageNearTheLimit) {
  const auto server = ControlServer::bind({.job_id = "job"});
  const auto client = connectTo(*server, "job", 0);
  const std::string text(kMaxControlBytes - 1000, 'x');
  client->send("log", text);
  const auto message = server->receive(10s);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->body, text);
  EXPECT_EQ(codeOf([&] { client->send("log", text + std::string(1000, 'x')); }), ErrorCode::kInternal);
}

TEST(Control, AWaitEndsWhenItsTimeIsOver) {
  const auto server = ControlServer::bind({.job_id = "job"});
  const auto start = Clock::now();
  EXPECT_FALSE(server->receive(100ms));
  EXPECT_GE(Clock::now() - start, 100ms);
  EXPECT_LT(Clock::now() - start, 2s);
  EXPECT_FALSE(server->receive(0ms));
}

TEST(Control, AWaitEndsWhenADescriptorIsReadable) {
  const auto server = ControlServer::bind({.job_id = "job"});
  const auto client = connectTo(*server, "job", 0);
  int quiet[2];
  int loud[2];
  ASSERT_EQ(::pipe(quiet), 0);
  ASSERT_EQ(::pipe(loud), 0);
  const std::vector<int> descriptors = {quiet[0], loud[0]};
  EXPECT_TRUE(server->poll(50ms, descriptors).ready.empty());
  std::jthread writer([&] {
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(::write(loud[1], "x", 1), 1);
  });
  const auto start = Clock::now();
  const ControlEvent event = server->poll(10s, descriptors);
  EXPECT_LT(Clock::now() - start, 5s);
  writer.join();
  EXPECT_EQ(event.ready, std::vector<int>{loud[0]});
  EXPECT_FALSE(event.message);
  // A descriptor that stays readable does not keep messages away.
  client->send("done", {});
  for (int looks = 0; looks < 1000; ++looks) {
    const ControlEvent next = server->poll(1s, descriptors);
    EXPECT_EQ(next.ready.size(), 1U);
    if (next.message) {
      EXPECT_EQ(next.message->type, "done");
      break;
    }
    std::this_thread::sleep_for(1ms);
    ASSERT_LT(looks, 999);
  }
  // A closed pipe is readable: that is how an ended process shows.
  ::close(quiet[1]);
  EXPECT_EQ(server->poll(1s, descriptors).ready.size(), 2U);
  ::close(quiet[0]);
  ::close(loud[0]);
  ::close(loud[1]);
}

TEST(Control, NoCoordinatorIsAnErrorInTime) {
  std::string endpoint = ControlServer::bind({.job_id = "job"})->endpoint();  // closed again
  const auto start = Clock::now();
  EXPECT_EQ(codeOf([&] { ControlClient::connect(endpoint, "job", 0, 300ms); }), ErrorCode::kPeerUnavailable);
  EXPECT_GE(Clock::now() - start, 300ms);
  EXPECT_LT(Clock::now() - start, 3s);
}

TEST(Control, ACoordinatorThatStartsLateIsFound) {
  std::string endpoint = ControlServer::bind({.job_id = "job"})->endpoint();
  auto connecting =
      std::async(std::launch::async, [&] { return ControlClient::connect(endpoint, "job", 0, 10s); });
  std::this_thread::sleep_for(300ms);
  const auto server = ControlServer::bind({.job_id = "job", .endpoint = endpoint});
  EXPECT_TRUE(server->receive(10s));
  EXPECT_EQ(connecting.get()->rank(), 0);
}

TEST(Control, SendingToNobodyIsAnError) {
  const auto server = ControlServer::bind({.job_id = "job"});
  EXPECT_EQ(codeOf([&] { server->send(0, "run", {}); }), ErrorCode::kPeerUnavailable);
  connectTo(*server, "job", 0).reset();
  ErrorCode code{0};
  for (const auto end = Clock::now() + 5s; code == ErrorCode{0} && Clock::now() < end;) {
    code = codeOf([&] { server->send(0, "run", {}); });
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_EQ(code, ErrorCode::kPeerUnavailable);
}

TEST(Control, EndpointsAreChecked) {
  const auto server = ControlServer::bind({.job_id = "job"});
  EXPECT_EQ(codeOf([&] { ControlServer::bind({.job_id = "job", .endpoint = server->endpoint()}); }),
            ErrorCode::kAddressInUse);
  EXPECT_EQ(codeOf([] { ControlServer::bind({.job_id = "job", .endpoint = "nonsense"}); }),
            ErrorCode::kConfiguration);
  EXPECT_EQ(codeOf([] { ControlClient::connect("nonsense", "job", 0, 100ms); }), ErrorCode::kConfiguration);
}

TEST(Control, LeavesNoDescriptor) {
  const auto count = [] {
    const auto entries = std::filesystem::directory_iterator("/proc/self/fd");
    return std::distance(begin(entries), end(entries));
  };
  const auto before = count();
  for (int round = 0; round < 3; ++round) {
    const auto server = ControlServer::bind({.job_id = "job"});
    const auto client = connectTo(*server, "job", 0);
    client->send("done", {});
    EXPECT_TRUE(server->receive(5s));
  }
  EXPECT_EQ(count(), before);
}

}  // namespace
}  // namespace pipeshard
