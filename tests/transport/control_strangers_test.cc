// Peers that are not what control expects: other versions, other jobs, garbage, second workers of one rank.
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <thread>

#include <zmq.hpp>

#include "ir/base/error.h"
#include "transport/control/control.h"
#include "transport/control/control_client.h"
#include "transport/control/control_server.h"

namespace pipeshard {
namespace {

using namespace std::chrono_literals;

// A plain DEALER that sends whatever it likes.
class Stranger {
 public:
  explicit Stranger(const std::string& endpoint) : socket_(context_, zmq::socket_type::dealer) {
    socket_.set(zmq::sockopt::linger, 100);
    socket_.set(zmq::sockopt::rcvtimeo, 5000);
    socket_.connect(endpoint);
  }
  void send(const std::vector<std::string>& frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      ASSERT_TRUE(socket_.send(zmq::buffer(frames[i]),
                               i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none));
    }
  }
  void send(const ControlMessage& message) { send({encodeControlMessage(message)}); }
  std::string receive() {
    zmq::message_t frame;
    return socket_.recv(frame) ? frame.to_string() : "nothing";
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
};

ControlMessage messageOf(const std::string& job, int rank, uint64_t sequence, std::string_view type,
                         uint64_t generation = 0) {
  return {kControlVersion, job, generation, rank, sequence, std::string(type), nlohmann::json::object(), 0};
}

// Receives until `counter` has reached `value`; nothing may reach the caller.
void expectCounted(ControlServer& server, uint64_t ControlCounters::*counter, uint64_t value) {
  const auto end = std::chrono::steady_clock::now() + 5s;
  while (server.counters().*counter < value && std::chrono::steady_clock::now() < end)
    EXPECT_FALSE(server.receive(10ms));
  EXPECT_EQ(server.counters().*counter, value);
}

std::unique_ptr<ControlClient> connectTo(ControlServer& server, int rank, uint64_t generation = 0) {
  auto client = std::async(std::launch::async, [&, rank] {
    return ControlClient::connect(server.endpoint(), "job", rank, 5s, {generation, {}});
  });
  EXPECT_TRUE(server.receive(5s));
  return client.get();
}

void expectError(ErrorCode code, const std::string& part, const std::function<void()>& action) {
  try {
    action();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(error.message().find(part), std::string::npos) << error.what();
  }
}

TEST(ControlStrangers, GarbageIsCountedAndHarmsNobody) {
  const auto server = ControlServer::bind({.job_id = "job"});
  const auto client = connectTo(*server, 0);
  Stranger stranger(server->endpoint());
  stranger.send(std::vector<std::string>{"not json"});
  stranger.send(std::vector<std::string>{""});
  stranger.send(std::vector<std::string>{std::string(1 << 20, '[')});
  stranger.send(std::vector<std::string>{"one", "two"});
  stranger.send(std::vector<std::string>{encodeControlMessage(messageOf("job", 1, 1, kRegister)), "bytes"});
  stranger.send(std::vector<std::string>(1000, "frame"));
  stranger.send(messageOf("job", -7, 1, kRegister));
  expectCounted(*server, &ControlCounters::garbage, 7);
  client->send("done", {});
  const auto message = server->receive(5s);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->type, "done");
}

TEST(ControlStrangers, AnOversizeFrameEndsItsConnectionOnly) {
  const auto server = ControlServer::bind({.job_id = "job"});
  const auto client = connectTo(*server, 0);
  {
    Stranger stranger(server->endpoint());
    stranger.send(std::vector<std::string>{std::string(kMaxControlBytes + 100, 'x')});
    EXPECT_FALSE(server->receive(300ms));
  }
  EXPECT_EQ(server->counters().garbage, 0U);
  client->send("done", {});
  EXPECT_TRUE(server->receive(5s));
}

TEST(ControlStrangers, AWorkerOfAnotherVersionIsToldSo) {
  const auto server = ControlServer::bind({.job_id = "job"});
  Stranger stranger(server->endpoint());
  stranger.send(std::vector<std::string>{R"({"version":9,"type":"REGISTER","body":{}})"});
  expectCounted(*server, &ControlCounters::other_version, 1);
  const auto answer = nlohmann::json::parse(stranger.receive());
  EXPECT_EQ(answer["type"], "REJECT");
  EXPECT_EQ(answer["body"]["code"], 76);
  EXPECT_NE(answer["body"]["message"].get<std::string>().find("version 9"), std::string::npos);
  EXPECT_FALSE(server->isRegistered(0));
}

TEST(ControlStrangers, ARejectionForTheVersionEndsTheClient) {
  zmq::context_t context;
  zmq::socket_t router(context, zmq::socket_type::router);
  router.set(zmq::sockopt::linger, 0);
  router.set(zmq::sockopt::rcvtimeo, 5000);
  router.bind("tcp://127.0.0.1:*");
  const std::string endpoint = router.get(zmq::sockopt::last_endpoint);
  auto connecting =
      std::async(std::launch::async, [&] { return ControlClient::connect(endpoint, "job", 0, 5s); });
  zmq::message_t identity;
  zmq::message_t frame;
  ASSERT_TRUE(router.recv(identity));
  ASSERT_TRUE(router.recv(frame));
  ASSERT_TRUE(router.send(identity, zmq::send_flags::sndmore));
  const std::string reject =
      R"({"version":9,"type":"REJECT","body":{"code":76,"message":"we speak version 9"}})";
  ASSERT_TRUE(router.send(zmq::buffer(reject), zmq::send_flags::none));
  expectError(ErrorCode::kVersionMismatch, "we speak version 9", [&] { connecting.get(); });
}

TEST(ControlStrangers, AWorkerOfAnotherJobIsToldSo) {
  const auto server = ControlServer::bind({.job_id = "job"});
  auto connecting = std::async(std::launch::async,
                               [&] { return ControlClient::connect(server->endpoint(), "another", 0, 5s); });
  expectCounted(*server, &ControlCounters::other_job, 1);
  expectError(ErrorCode::kVersionMismatch, "job 'another' is not here; this is job 'job'",
              [&] { connecting.get(); });
  EXPECT_GE(server->counters().other_job, 1U);
  EXPECT_FALSE(server->isRegistered(0));
}

TEST(ControlStrangers, AnEarlierGenerationIsStale) {
  const auto server = ControlServer::bind({.job_id = "job", .generation = 2});
  const auto client = connectTo(*server, 0, 2);
  Stranger stranger(server->endpoint());
  stranger.send(messageOf("job", 0, 1, kRegister, 1));
  stranger.send(messageOf("job", 0, 2, "done", 1));
  expectCounted(*server, &ControlCounters::stale, 2);
  for (int answer = 0; answer < 2; ++answer)
    EXPECT_EQ(nlohmann::json::parse(stranger.receive())["body"]["code"], 76);
  auto late = std::async(std::launch::async, [&] {
    return ControlClient::connect(server->endpoint(), "job", 1, 5s, {1, {}});
  });
  expectCounted(*server, &ControlCounters::stale, 3);
  expectError(ErrorCode::kVersionMismatch, "generation 1 of job 'job' is over; this is generation 2",
              [&] { late.get(); });
}

TEST(ControlStrangers, AClientThatKnowsNoJobIsLetInOnlyWhereThatIsOpen) {
  for (const bool open : {false, true}) {
    const auto server = ControlServer::bind({.job_id = "job", .generation = 3, .open_registration = open});
    auto connecting = std::async(std::launch::async, [&] {
      ControlClientOptions options;
      options.any_job = true;
      return ControlClient::connect(server->endpoint(), "", 4, 5s, options);
    });
    if (open) {
      EXPECT_TRUE(server->receive(5s));
      const auto client = connecting.get();
      EXPECT_EQ(client->job(), "job");
      EXPECT_EQ(client->generation(), 3U);
      EXPECT_EQ(server->peerAddress(4), "127.0.0.1");
      client->send("ready", {});
      EXPECT_TRUE(server->receive(5s));
      server->send(4, "run", {});
      EXPECT_TRUE(client->receive(5s));
    } else {
      expectCounted(*server, &ControlCounters::other_job, 1);
      expectError(ErrorCode::kVersionMismatch, "'job'", [&] { connecting.get(); });
    }
  }
}

TEST(ControlStrangers, OnlyHoldersOfTheServersKeyAreServed) {
  const JobKeys keys = makeJobKeys();
  const auto server = ControlServer::bind({.job_id = "job", .keys = keys});
  const auto connectWith = [&](const ClientKeys& with) {
    ControlClientOptions options;
    options.keys = with;
    return ControlClient::connect(server->endpoint(), "job", 0, 2s, options);
  };
  auto connecting = std::async(std::launch::async, [&] { return connectWith(keys.clientKeys()); });
  EXPECT_TRUE(server->receive(5s));
  const auto client = connecting.get();
  client->send("done", {});
  EXPECT_TRUE(server->receive(5s));
  EXPECT_THROW(connectWith(makeJobKeys().clientKeys()), Error);
}

TEST(ControlStrangers, ARegistrationThatNobodyWouldReadIsNotSent) {
  const auto server = ControlServer::bind({.job_id = "job"});
  expectError(ErrorCode::kInternal, "REGISTER", [&] {
    ControlClient::connect(server->endpoint(), "job", 0, 5s, {0, {{"text", std::string(70'000, 'x')}}});
  });
}

TEST(ControlStrangers, APublicBindNeedsKeys) {
  for (const char* endpoint : {"tcp://0.0.0.0:*", "tcp://*:*", "tcp://[::]:*"}) {
    expectError(ErrorCode::kConfiguration, "keys",
                [&] { ControlServer::bind({.job_id = "job", .endpoint = endpoint}); });
  }
  // A name is no address of this machine because it begins like one.
  const std::string other = "tcp://127.0.0.1.example.org:*";
  expectError(ErrorCode::kConfiguration, "listen",
              [&] { ControlServer::bind({.job_id = "job", .endpoint = other}); });
  EXPECT_TRUE(ControlServer::bind({.job_id = "job", .endpoint = "tcp://0.0.0.0:*", .keys = makeJobKeys()}));
  EXPECT_TRUE(ControlServer::bind({.job_id = "job", .endpoint = "tcp://0.0.0.0:*", .allow_insecure = true}));
}

TEST(ControlStrangers, WhoDidNotRegisterIsNotHeard) {
  const auto server = ControlServer::bind({.job_id = "job"});
  const auto client = connectTo(*server, 0);
  Stranger stranger(server->endpoint());
  stranger.send(messageOf("job", 0, 5, "done"));  // in the name of rank 0
  stranger.send(messageOf("job", 1, 5, "done"));
  expectCounted(*server, &ControlCounters::unregistered, 2);
}

TEST(ControlStrangers, ASecondWorkerOfARankIsRejectedUntilTheFirstIsForgotten) {
  const auto server = ControlServer::bind({.job_id = "job"});
  const auto client = connectTo(*server, 0);
  auto connecting = std::async(std::launch::async,
                               [&] { return ControlClient::connect(server->endpoint(), "job", 0, 5s); });
  while (connecting.wait_for(0ms) != std::future_status::ready) EXPECT_FALSE(server->receive(10ms));
  expectError(ErrorCode::kConfiguration, "registered already", [&] { connecting.get(); });
  server->forget(0);
  const auto second = connectTo(*server, 0);
  second->send("done", {});
  EXPECT_TRUE(server->receive(5s));
}

TEST(ControlStrangers, DuplicatesAreDroppedAndGapsReported) {
  const auto server = ControlServer::bind({.job_id = "job"});
  Stranger worker(server->endpoint());
  worker.send(messageOf("job", 0, 1, kRegister));
  ASSERT_TRUE(server->receive(5s));
  EXPECT_EQ(nlohmann::json::parse(worker.receive())["type"], "WELCOME");
  worker.send(messageOf("job", 0, 1, kRegister));  // repeated: answered again, handed out once
  worker.send(messageOf("job", 0, 2, "a"));
  worker.send(messageOf("job", 0, 2, "a"));
  worker.send(messageOf("job", 0, 5, "b"));
  const auto first = server->receive(5s);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->type, "a");
  EXPECT_EQ(first->lost_before, 0U);
  const auto second = server->receive(5s);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->type, "b");
  EXPECT_EQ(second->lost_before, 2U);
  EXPECT_EQ(server->counters().duplicate, 2U);
  EXPECT_EQ(server->counters().lost, 2U);
  EXPECT_EQ(nlohmann::json::parse(worker.receive())["type"], "WELCOME");
}

TEST(ControlStrangers, AStormOfGarbageDoesNotKeepAWaitFromEnding) {
  const auto server = ControlServer::bind({.job_id = "job"});
  std::jthread storm([endpoint = server->endpoint()](const std::stop_token& stop) {
    Stranger stranger(endpoint);
    while (!stop.stop_requested()) {
      stranger.send(std::vector<std::string>{"garbage"});
      std::this_thread::sleep_for(50us);
    }
  });
  for (const auto end = std::chrono::steady_clock::now() + 10s;
       server->counters().garbage == 0 && std::chrono::steady_clock::now() < end;)
    EXPECT_FALSE(server->receive(10ms));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(server->receive(300ms));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 3s);
  EXPECT_GT(server->counters().garbage, 0U);
}

}  // namespace
}  // namespace pipeshard
