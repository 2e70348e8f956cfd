// ranks.json and kinds/NNNN.json: what comes back is what was written, and what is no such file is refused.
#include "ir/program/program_set_json.h"

#include <gtest/gtest.h>

#include "ir/program/program_json.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

// Two ranks of one kind, which hold halves of "h", and a third of its own.
RankTables tables() {
  BindingTable table;
  table.kinds = 2;
  table.groups = {idsAt<RankId>({0, 1}), idsAt<RankId>({0, 1, 2})};
  const Constant zero = makeConstant<int64_t>({1}, {0}), four = makeConstant<int64_t>({1}, {4});
  const Constant keeps = {DataType::kBool, {}, {std::byte{1}}};
  table.ranks.push_back({KindId(0), {RankId(2)}, {0, 1}, {{0, 0}, {0}}, {zero, keeps}});
  table.ranks.push_back({KindId(0), {}, {0, 1}, {{4, 0}, {0}}, {four, keeps}});
  table.ranks.push_back({KindId(1), {RankId(0), RankId(1)}, {1}, {}});
  return {table, std::nullopt, {}};
}

void expectEqual(const BindingTable& a, const BindingTable& b) {
  EXPECT_EQ(a.kinds, b.kinds);
  EXPECT_EQ(a.groups, b.groups);
  ASSERT_EQ(a.ranks.size(), b.ranks.size());
  for (const RankId rank : a.ranks.ids()) {
    EXPECT_EQ(a.ranks[rank].kind, b.ranks[rank].kind);
    EXPECT_EQ(a.ranks[rank].peers, b.ranks[rank].peers);
    EXPECT_EQ(a.ranks[rank].groups, b.ranks[rank].groups);
    EXPECT_EQ(a.ranks[rank].starts, b.ranks[rank].starts);
    EXPECT_EQ(a.ranks[rank].constants, b.ranks[rank].constants);
  }
}

TEST(RankTables, ComeBackAsTheyWere) {
  RankTables written = tables();
  expectEqual(rankTablesFromJson(rankTablesToJson(written)).whole, written.whole);
  EXPECT_FALSE(rankTablesFromJson(rankTablesToJson(written)).last);
  written.last = tables().whole;
  written.last->ranks[RankId(0)].starts[0] = {2, 0};
  const RankTables read = rankTablesFromJson(rankTablesToJson(written));
  ASSERT_TRUE(read.last);
  expectEqual(*read.last, *written.last);
  EXPECT_EQ(rankTablesToJson(read), rankTablesToJson(written));
  EXPECT_TRUE(read.shorter.empty());
  written.shorter = {*written.last, written.whole};
  const RankTables lengths = rankTablesFromJson(rankTablesToJson(written));
  ASSERT_EQ(lengths.shorter.size(), 2U);
  expectEqual(lengths.shorter[0], written.shorter[0]);
  expectEqual(lengths.shorter[1], written.shorter[1]);
}

TEST(RankTables, AreRefusedWhereAPositionIsNone) {
  const std::string text = rankTablesToJson(tables());
  const auto refuses = [&](const std::string& from, const std::string& to, ErrorCode code,
                           const std::string& message) {
    std::string changed = text;
    ASSERT_NE(changed.find(from), std::string::npos) << from;
    changed.replace(changed.find(from), from.size(), to);
    EXPECT_ERROR(rankTablesFromJson(changed), code, message);
  };
  const ErrorCode wrong = ErrorCode::kConfiguration;
  refuses("\"kind\":1", "\"kind\":2", wrong, "ranks.json.whole.bindings[2].kind: found 2");
  refuses("\"peers\":[2]", "\"peers\":[3]", wrong, "ranks.json.whole.bindings[0].peers");
  refuses("\"groups\":[1]", "\"groups\":[2]", wrong, "ranks.json.whole.bindings[2].groups");
  refuses("\"starts\":[2,1]", "\"starts\":[2,3]", wrong, "ranks.json.whole.bindings[1].starts");
  refuses("\"constants\":[2,1]", "\"constants\":[2,3]", wrong, "ranks.json.whole.bindings[1].constants");
  refuses("\"AQ==\"", "\"AQE=\"", wrong,
          "ranks.json.whole.constants[1].base64: found \"AQE=\"; expected 1 bytes");
  refuses("[0,1,2]", "[0,1,3]", wrong, "ranks.json.whole.groups[1]");
  refuses("\"ranks\": 3", "\"ranks\": 4", wrong, "found those of 3 ranks; expected 4");
  refuses("\"version\": 6", "\"version\": 5", ErrorCode::kVersionMismatch, "plan again");
  refuses("\"kinds\"", "\"kind\"", wrong, "kind");
}

ProgramKind kindOfHalves() {
  ProgramKind kind;
  kind.program.world_size = 2;
  for (const char* name : {"h[0:4,0:6]", "w", "s"}) {
    Buffer& buffer = kind.program.buffers.emplace_back();
    buffer.name = name;
    buffer.data_type = DataType::kFloat32;
    buffer.shape = {4, 6};
    if (buffer.name != "s") buffer.part = BufferPart{{8, 6}, {0, 0}};
  }
  kind.start_slots = {0, 1, -1};
  kind.boxed = {true, false, false};
  kind.program.subgraphs.push_back({"forward", "forward.onnx", Phase::kForward, {}, {}});
  kind.own_constants = {{SubgraphId(0), "start", 1}};
  return kind;
}

TEST(Kinds, ComeBackAsTheyWere) {
  const ProgramKind read = kindFromJson(kindToJson(kindOfHalves()));
  EXPECT_EQ(programToJson(read.program), programToJson(kindOfHalves().program));
  EXPECT_EQ(read.start_slots, kindOfHalves().start_slots);
  EXPECT_EQ(read.boxed, kindOfHalves().boxed);
  EXPECT_EQ(read.own_constants, kindOfHalves().own_constants);
}

TEST(Kinds, AreRefusedWhereAConstantIsOfNoSubgraph) {
  std::string changed = kindToJson(kindOfHalves());
  changed.replace(changed.find("\"subgraph\":0"), 12, "\"subgraph\":1");
  EXPECT_ERROR(kindFromJson(changed), ErrorCode::kConfiguration, "program.json.constants[0].subgraph");
}

TEST(Kinds, AreRefusedWhereNothingBegins) {
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{{"[0,0,1]", "[7,0]"},
                                                                                 {"[1,1]", "[2,1]"},
                                                                                 {"[1,1]", "[1,1,1]"},
                                                                                 {"[1,1]", "[1]"},
                                                                                 {"[0,0,1]", "[0,0,2]"}}) {
    std::string changed = kindToJson(kindOfHalves());
    ASSERT_NE(changed.find(from), std::string::npos) << from;
    changed.replace(changed.find(from), from.size(), to);
    EXPECT_ERROR(kindFromJson(changed), ErrorCode::kConfiguration, "program.json.starts[");
  }
  EXPECT_ERROR(kindFromJson(programToJson(kindOfHalves().program)), ErrorCode::kVersionMismatch,
               "plan again");
  EXPECT_ERROR(programFromJson(kindToJson(kindOfHalves())), ErrorCode::kVersionMismatch, "version 6");
}

}  // namespace
}  // namespace pipeshard
