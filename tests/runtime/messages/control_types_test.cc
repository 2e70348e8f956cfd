// Numbers that a node or coordinator reads as an int or an id: of others they would read the lower 32 bits.
#include "runtime/messages/control_types.h"

#include <algorithm>
#include <fstream>
#include <regex>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "transport/control/control_message.h"

namespace pipeshard {
namespace {

struct Case {
  const ControlSchema& schema;
  std::string_view type;
  std::string body;  // good, with 7 as the number in question
};

std::vector<Case> cases() {
  return {
      {nodeCommands(), "stop", R"({"code": 7, "message": ""})"},
      {nodeCommands(), "wires", R"({"hosts": [{"host": 7, "endpoint": "", "key": ""}]})"},
      {nodeCommands(), "want", R"({"directory": "", "job": "", "file": "", "offset": 0, "for": 7})"},
      {nodeMessages(), "ended", R"({"rank": 7, "description": "", "code": 0})"},
      {nodeMessages(), "ended", R"({"rank": 0, "description": "", "code": 7})"},
      {nodeMessages(), "started", R"({"pids": [1, 7]})"},
      {nodeMessages(), "alive", R"({"states": [{"rank": 7, "state": ""}]})"},
      {nodeMessages(), "trace", R"({"rank": 7, "offset": 0, "total": 0})"},
      {nodeMessages(), "ending", R"({"signal": 7})"},
      {workerMessages(), kRegister, R"({"pid": 7})"},
      {workerMessages(), kRegister, R"({"pid": 1, "index": 7})"},
      {workerMessages(), kRegister, R"({"pid": 1, "devices": 7})"},
      {workerMessages(), kRegister, R"({"pid": 1, "attempt": 7})"},
      {workerMessages(), "unreached", R"({"peers": [{"number": 7, "address": ""}]})"},
      {workerMessages(), "error", R"({"code": 7, "message": ""})"},
      {workerCommands(), "save", R"({"step": 1, "folder": "", "buffers": [{"buffer": 7}], "last": true})"},
  };
}

TEST(ControlTypes, NumbersOf32BitsAreRefusedBeyond) {
  for (const Case& each : cases()) {
    SCOPED_TRACE(each.body);
    EXPECT_FALSE(controlFault(each.schema, each.type, nlohmann::json::parse(each.body)));
    for (const char* number : {"2147483648", "4294967296"}) {
      std::string body = each.body;
      body.replace(body.find('7'), 1, number);
      EXPECT_TRUE(controlFault(each.schema, each.type, nlohmann::json::parse(body))) << body;
    }
  }
}

// A type that is in none would be refused whenever it is sent.
TEST(ControlTypes, EachIsInATable) {
  std::ifstream header(PIPESHARD_SOURCE_DIR "/runtime/messages/control_types.h");
  const std::regex constant(R"re(inline constexpr std::string_view k\w+ = "(\w+)";)re");
  int constants = 0;
  std::smatch match;
  for (std::string line; std::getline(header, line);) {
    if (!std::regex_match(line, match, constant)) continue;
    ++constants;
    const std::string type = match[1];
    const auto has_it = [&](const ControlSchema& schema) {
      return std::ranges::any_of(schema, [&](const ControlForm& form) { return form.type == type; });
    };
    EXPECT_TRUE(has_it(workerMessages()) || has_it(workerCommands()) || has_it(nodeMessages()) ||
                has_it(nodeCommands()))
        << type;
  }
  EXPECT_GT(constants, 30);
}

}  // namespace
}  // namespace pipeshard
