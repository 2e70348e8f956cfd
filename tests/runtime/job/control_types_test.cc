// Numbers that a node or coordinator reads as an int or an id: of others they would read the lower 32 bits.
#include "runtime/job/control_types.h"

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

}  // namespace
}  // namespace pipeshard
