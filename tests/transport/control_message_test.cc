#include "transport/control/control_message.h"

#include <gtest/gtest.h>

#include <random>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

TEST(ControlMessage, RoundTrips) {
  const ControlMessage message{
      kControlVersion, "job", 3, 2, 9, "step_done", {{"loss", 0.1}, {"names", {"a", "b"}}}, 0};
  const auto decoded = decodeControlMessage(encodeControlMessage(message));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->job_id, "job");
  EXPECT_EQ(decoded->generation, 3U);
  EXPECT_EQ(decoded->rank, 2);
  EXPECT_EQ(decoded->sequence, 9U);
  EXPECT_EQ(decoded->type, "step_done");
  EXPECT_EQ(decoded->body, message.body);
}

TEST(ControlMessage, ReplacesBytesThatAreNotText) {
  ControlMessage message;
  message.type = "error";
  message.body = {{"text", "broken \xff\xfe path"}};
  EXPECT_TRUE(decodeControlMessage(encodeControlMessage(message)));
}

TEST(ControlMessage, RefusesToSendMoreThanTheLimit) {
  ControlMessage message;
  message.type = "big";
  message.body = std::string(kMaxControlBytes, 'x');
  try {
    encodeControlMessage(message);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_NE(error.message().find("'big'"), std::string::npos);
  }
}

TEST(ControlMessage, IsNothingWhenMalformed) {
  for (const std::string text :
       {"", "{", "[]", "null", "7", "\"text\"", "{}", R"({"version":"2"})", R"({"version":2})",
        R"({"version":2,"job":"j","generation":0,"rank":0,"sequence":1,"type":"t"})",
        R"({"version":2,"job":5,"generation":0,"rank":0,"sequence":1,"type":"t","body":{}})",
        R"({"version":2,"job":"j","generation":-1,"rank":0,"sequence":1,"type":"t","body":{}})",
        R"({"version":2,"job":"j","generation":0,"rank":4294967296,"sequence":1,"type":"t","body":{}})",
        R"({"version":2,"job":"j","generation":0,"rank":0,"sequence":1.5,"type":"t","body":{}})",
        R"({"version":2,"job":"j","generation":0,"rank":0,"sequence":1,"type":["t"],"body":{}})",
        R"({"version":2,"job":"j","generation":0,"rank":0,"sequence":1,"type":"t","body":{}} trailing)"}) {
    EXPECT_FALSE(decodeControlMessage(text)) << text;
  }
}

TEST(ControlMessage, HasAtMostOnePayloadWhichIsNotEmptyAndNeverOfTheTransportsOwnTypes) {
  ControlMessage message;
  message.type = "piece";
  const std::string text = encodeControlMessage(message);
  const std::string bytes("\0\xff{", 3);
  const auto decoded = decodeControlFrames(std::vector<std::string>{text, bytes});
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->type, "piece");
  EXPECT_EQ(decoded->payload, (std::vector<std::byte>{std::byte{0}, std::byte{0xff}, std::byte{'{'}}));
  ASSERT_TRUE(decodeControlFrames(std::vector<std::string>{text}));
  EXPECT_TRUE(decodeControlFrames(std::vector<std::string>{text})->payload.empty());
  EXPECT_TRUE(decodeControlFrames(std::vector<std::string>{text, std::string(kMaxControlBytes, 'x')}));
  for (const std::vector<std::string>& frames : {std::vector<std::string>{},
                                                 {text, ""},
                                                 {text, bytes, bytes},
                                                 {bytes, text},
                                                 {"{}", bytes},
                                                 {text, std::string(kMaxControlBytes + 1, 'x')}})
    EXPECT_FALSE(decodeControlFrames(frames)) << frames.size();
  for (const std::string_view type : {kRegister, kWelcome, kReject}) {
    message.type = type;
    EXPECT_FALSE(decodeControlFrames(std::vector<std::string>{encodeControlMessage(message), bytes})) << type;
  }
}

TEST(ControlMessage, OfAnotherVersionIsKnownByItsVersionOnly) {
  const auto decoded = decodeControlMessage(R"({"version":7,"type":"REGISTER","something":"new"})");
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->version, 7);
  EXPECT_EQ(decoded->type, "REGISTER");
}

TEST(ControlMessage, DoesNotNestWithoutEnd) {
  EXPECT_FALSE(decodeControlMessage(std::string(1 << 20, '[')));
  std::string text = R"({"version":2,"job":"j","generation":0,"rank":0,"sequence":1,"type":"t","body":)";
  EXPECT_FALSE(decodeControlMessage(text + std::string(100, '[') + std::string(100, ']') + "}"));
  EXPECT_TRUE(decodeControlMessage(text + std::string(60, '[') + std::string(60, ']') + "}"));
  EXPECT_TRUE(decodeControlMessage(text + "\"" + std::string(100, '[') + "\\\"\"}"));
}

TEST(ControlMessage, SurvivesRandomChanges) {
  ControlMessage message{
      kControlVersion, "job", 3, 2, 9, "step_done", {{"loss", 0.1}, {"names", {"a", "b"}}}, 0};
  const std::string text = encodeControlMessage(message);
  std::mt19937 random(1);
  int decoded = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string changed = text;
    for (unsigned change = 0; change <= random() % 4; ++change) {
      const size_t position = random() % changed.size();
      if (random() % 3 == 0) {
        changed.resize(position + 1);
      } else {
        changed[position] = static_cast<char>(random());
      }
    }
    if (decodeControlMessage(changed)) ++decoded;
  }
  EXPECT_GT(decoded, 0);
  EXPECT_LT(decoded, 15000);
}

}  // namespace
}  // namespace pipeshard
