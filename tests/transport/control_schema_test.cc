// The table of a job's messages, alone and between a server and a client.
#include "transport/control/control_schema.h"

#include <gtest/gtest.h>

#include <future>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "tests/expect_error.h"
#include "transport/control/control_client.h"
#include "transport/control/control_server.h"

namespace pipeshard {
namespace {

using namespace std::chrono_literals;

const ControlSchema& table() {
  using enum ControlType;
  static const ControlSchema kTable = {{"stop", {}},
                                       {"piece", {{"offset", kCount}}, ControlPayload::kAllowed},
                                       {"step",
                                        {{"step", kCount},
                                         {"loss", kNumber, kOptional | kNullable},
                                         {"shift", kInteger, kOptional},
                                         {"on", kBoolean, kOptional}}},
                                       {"loaded",
                                        {{"memory", kObject, 0, {{"arena", kCount}}},
                                         {"names", kArray, kOptional, {{"", kString}}},
                                         {"rest", kAny, kOptional}}},
                                       {"ended", {{"rank", kIntCount}, {"code", kInt, kOptional}}}};
  return kTable;
}

std::string faultOf(std::string_view type, const std::string& body) {
  return controlFault(table(), type, nlohmann::json::parse(body)).value_or("none");
}

TEST(ControlSchema, TakesWhatIsInTheTable) {
  EXPECT_EQ(faultOf("stop", "{}"), "none");
  EXPECT_EQ(faultOf("stop", "null"), "none");
  EXPECT_EQ(faultOf("step", R"({"step": 3})"), "none");
  EXPECT_EQ(faultOf("step", R"({"step": 3, "loss": null})"), "none");
  EXPECT_EQ(faultOf("step", R"({"step": 3, "loss": 2, "shift": -9223372036854775808, "on": true})"), "none");
  EXPECT_EQ(faultOf("loaded", R"({"memory": {"arena": 0}, "names": ["a", "b"], "rest": [1, {}]})"), "none");
  EXPECT_FALSE(controlFault({}, "anything", 7));
}

TEST(ControlSchema, NamesTheFirstFault) {
  EXPECT_EQ(faultOf("halt", "{}"), "'halt': unknown type of message");
  EXPECT_EQ(faultOf("stop", "[]"), "'stop': its body is array, not an object");
  EXPECT_EQ(faultOf("stop", R"({"now": 1})"), "'stop': surplus field 'now'");
  EXPECT_EQ(faultOf("step", "null"), "'step': its body is null, not an object");
  EXPECT_EQ(faultOf("step", R"({"loss": 1})"), "'step': no field 'step'");
  EXPECT_EQ(faultOf("step", R"({"step": "3"})"),
            "'step': field 'step' is string, not an integer that is not negative");
  EXPECT_EQ(faultOf("step", R"({"step": -3})"),
            "'step': field 'step' is number, not an integer that is not negative");
  EXPECT_EQ(faultOf("step", R"({"step": 9223372036854775808})"),
            "'step': field 'step' is number, not an integer that is not negative");
  EXPECT_EQ(faultOf("step", R"({"step": 3.0})"),
            "'step': field 'step' is number, not an integer that is not negative");
  EXPECT_EQ(faultOf("step", R"({"step": null})"),
            "'step': field 'step' is null, not an integer that is not negative");
  EXPECT_EQ(faultOf("step", R"({"step": 3, "on": 1})"), "'step': field 'on' is number, not true or false");
  EXPECT_EQ(faultOf("loaded", R"({"memory": {}})"), "'loaded': in 'memory': no field 'arena'");
  EXPECT_EQ(faultOf("loaded", R"({"memory": {"arena": 1}, "names": ["a", 2]})"),
            "'loaded': in 'names': field '' is number, not a string");
}

// What is read as an int is one: 2^32 would be read as 0.
TEST(ControlSchema, IntegersOf32BitsAreNotCut) {
  EXPECT_EQ(faultOf("ended", R"({"rank": 2147483647, "code": -2147483648})"), "none");
  for (const char* number : {"2147483648", "4294967296", "-1", "18446744073709551615", "1.0"})
    EXPECT_EQ(faultOf("ended", fmt::format(R"({{"rank": {}}})", number)),
              "'ended': field 'rank' is number, not an integer from 0 to 2147483647");
  for (const char* number : {"2147483648", "4294967296", "-2147483649"})
    EXPECT_EQ(faultOf("ended", fmt::format(R"({{"rank": 0, "code": {}}})", number)),
              "'ended': field 'code' is number, not an integer of 32 bits");
}

TEST(ControlSchema, APayloadIsForThoseTypesThatMayHaveOne) {
  const nlohmann::json body = {{"offset", 0}};
  EXPECT_FALSE(controlFault(table(), "piece", body, 0));
  EXPECT_FALSE(controlFault(table(), "piece", body, 7));
  EXPECT_EQ(controlFault(table(), "stop", nlohmann::json::object(), 7),
            "'stop': a payload of 7 bytes, it has none");
  EXPECT_FALSE(controlFault({}, "anything", body, 7));
}

TEST(ControlSchema, QuotesAPeersTextWithoutItsControlCharacters) {
  EXPECT_EQ(printableBeginning("ok\n\x1b[31m"), "ok??[31m");
  EXPECT_EQ(printableBeginning(std::string(1000, 'x')), std::string(40, 'x'));
  EXPECT_EQ(controlFault(table(), "a\r\nroot: all is well", {}),
            "'a??root: all is well': unknown type of message");
}

struct Pair {
  std::unique_ptr<ControlServer> server;
  std::unique_ptr<ControlClient> client;
};

Pair connected(ControlServerOptions server_options, ControlClientOptions client_options = {}) {
  server_options.job_id = "job";
  Pair pair{ControlServer::bind(server_options), nullptr};
  auto connecting = std::async(std::launch::async, [&] {
    return ControlClient::connect(pair.server->endpoint(), "job", 0, 5s, client_options);
  });
  EXPECT_TRUE(pair.server->receive(5s));
  pair.client = connecting.get();
  return pair;
}

TEST(ControlSchema, AWorkerThatBreaksItIsAFaultOfTheJobAndNotSilence) {
  const Pair pair = connected({.schema = table()});
  pair.client->send("step", {{"step", "three"}});
  pair.client->send("step", {{"step", 4}});
  const auto fault = pair.server->receive(5s);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->type, kFault);
  EXPECT_EQ(fault->rank, 0);
  EXPECT_EQ(fault->body["message"], "'step': field 'step' is string, not an integer that is not negative");
  EXPECT_EQ(pair.server->counters().garbage, 1U);
  const auto next = pair.server->receive(5s);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->type, "step");
  EXPECT_EQ(next->lost_before, 0U);
}

TEST(ControlSchema, CommandsAreCheckedToo) {
  const Pair pair = connected({}, {.schema = table()});
  pair.server->send(0, "stop", {{"surplus", 1}});
  pair.server->send(0, "stop", nlohmann::json::object());
  const auto fault = pair.client->receive(5s);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->type, kFault);
  EXPECT_EQ(fault->body["message"], "'stop': surplus field 'surplus'");
  const auto next = pair.client->receive(5s);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->type, "stop");
}

TEST(ControlSchema, APayloadArrivesAsItWasSentBothWaysAndElseIsAFault) {
  const Pair pair = connected({.schema = table()}, {.schema = table()});
  std::vector<std::byte> bytes(kMaxControlBytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31);
  pair.client->send("piece", {{"offset", 3}}, bytes);
  pair.client->send("piece", {{"offset", 4}});
  pair.client->send("stop", nlohmann::json::object(), bytes);
  auto message = pair.server->receive(5s);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->body["offset"], 3);
  EXPECT_EQ(message->payload, bytes);
  message = pair.server->receive(5s);
  ASSERT_TRUE(message);
  EXPECT_TRUE(message->payload.empty());
  message = pair.server->receive(5s);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->type, kFault);
  EXPECT_EQ(message->body["message"], "'stop': a payload of 1048576 bytes, it has none");
  pair.server->send(0, "piece", {{"offset", 5}}, bytes);
  pair.server->send(0, "stop", nlohmann::json::object(), std::span(bytes).first(2));
  message = pair.client->receive(5s);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->payload, bytes);
  message = pair.client->receive(5s);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->body["message"], "'stop': a payload of 2 bytes, it has none");
  bytes.push_back({});
  EXPECT_ERROR(pair.client->send("piece", {{"offset", 3}}, bytes), ErrorCode::kInternal,
               "'piece' has a payload of 1048577 bytes, at most 1048576 are allowed");
}

TEST(ControlSchema, NobodyCanForgeAFault) {
  const Pair pair = connected({});
  pair.client->send(kFault, {{"message", "rank 1 did it"}});
  const auto fault = pair.server->receive(5s);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->body["message"], "not a control message");
}

TEST(ControlSchema, ARegistrationThatIsNotInTheTableIsRejected) {
  ControlSchema schema = table();
  schema.push_back({kRegister, {{"pid", ControlType::kCount}}});
  const auto server = ControlServer::bind({.job_id = "job", .schema = schema});
  auto connecting = std::async(std::launch::async,
                               [&] { return ControlClient::connect(server->endpoint(), "job", 0, 5s); });
  EXPECT_FALSE(server->receive(200ms));
  try {
    connecting.get();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfiguration);
    EXPECT_NE(error.message().find("no field 'pid'"), std::string::npos) << error.message();
  }
}

TEST(ControlLimits, ARankThatFloodsIsNamedOnceAndNotHeardAnyMore) {
  const Pair pair = connected({.limits = {.messages_per_second = 10, .burst = 50}});
  auto connecting = std::async(std::launch::async,
                               [&] { return ControlClient::connect(pair.server->endpoint(), "job", 1, 5s); });
  EXPECT_TRUE(pair.server->receive(5s));
  const auto quiet = connecting.get();
  for (int i = 0; i < 200; ++i) pair.client->send("heartbeat", {});
  int heard = 0;
  int faults = 0;
  while (const auto message = pair.server->receive(200ms)) {
    if (message->type == kFault) {
      ++faults;
      EXPECT_EQ(message->rank, 0);
      EXPECT_EQ(message->body["message"], "more than 10 messages a second");
    } else {
      ++heard;
    }
  }
  EXPECT_EQ(faults, 1);
  EXPECT_GE(heard, 49);
  EXPECT_LE(heard, 80);
  EXPECT_EQ(pair.server->counters().flooded, static_cast<uint64_t>(200 - heard));
  quiet->send("heartbeat", {});
  const auto message = pair.server->receive(5s);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->rank, 1);
}

TEST(ControlLimits, ANoticeSaysWhatWasDroppedAndComesOncePerMinute) {
  const Pair pair = connected({.schema = table()});
  EXPECT_FALSE(pair.server->takeNotice());
  pair.client->send("nonsense", {});
  EXPECT_TRUE(pair.server->receive(5s));
  const auto notice = pair.server->takeNotice();
  ASSERT_TRUE(notice);
  EXPECT_NE(notice->find(": 1 message dropped so far"), std::string::npos) << *notice;
  EXPECT_EQ(notice->find("connection"), std::string::npos) << *notice;  // none was refused
  EXPECT_NE(notice->find("rank 0: 'nonsense'"), std::string::npos) << *notice;
  pair.client->send("nonsense", {});
  EXPECT_TRUE(pair.server->receive(5s));
  EXPECT_FALSE(pair.server->takeNotice());
}

// Of one that was sent away, its farewell is on the way still.
TEST(ControlLimits, WhatSomebodySaysWhoWasForgottenIsNoStrangersMessage) {
  const JobKeys keys = makeJobKeys();
  const auto server = ControlServer::bind({.job_id = "job", .keys = keys, .schema = table()});
  ControlClientOptions options;
  options.keys = keys.clientKeys();
  auto connecting = std::async(std::launch::async, [&] {
    return ControlClient::connect(server->endpoint(), "job", 1'234'567, 10s, options);
  });
  EXPECT_TRUE(server->receive(10s));
  const std::unique_ptr<ControlClient> client = connecting.get();
  server->forget(1'234'567);
  client->send("stop", {});
  client->send("piece", {{"offset", 0}}, std::vector<std::byte>(3));
  EXPECT_FALSE(server->receive(500ms));
  EXPECT_EQ(server->counters().late, 2U);
  EXPECT_EQ(server->counters().unregistered, 0U);
  EXPECT_EQ(server->counters().garbage, 0U);
  EXPECT_FALSE(server->takeNotice());
}

}  // namespace
}  // namespace pipeshard
