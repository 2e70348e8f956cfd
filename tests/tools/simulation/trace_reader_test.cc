#include "tools/simulation/trace_reader.h"

#include <tuple>

#include <gtest/gtest.h>

#include "tests/expect_error.h"
#include "tests/ir/base/edited_text.h"
#include "tests/temporary_folder.h"
#include "tests/tools/report/report_samples.h"
#include "tools/simulation/trace_file.h"

namespace pipeshard {
namespace {

Trace twoRanks(const std::string& source) {
  Trace trace{.source = source,
              .ranks = 2,
              .rank_names = {"rank 0 (stage 0)", "rank 1 (stage 1)"},
              .events = {},
              .memory = {}};
  TraceEvent pass{.work = TraceWork::kForward,
                  .rank = RankId(0),
                  .step = 7,
                  .stage = StageId(0),
                  .microbatch = 3,
                  .name = "0F3",
                  .start_ns = 1001,
                  .end_ns = 2'000'003};
  pass.arrived_ns = pass.start_ns;
  TraceEvent send{.kind = TraceEventKind::kSend,
                  .rank = RankId(0),
                  .step = 7,
                  .name = "send h@3",
                  .start_ns = 2'000'003,
                  .end_ns = 2'500'000};
  send.arrived_ns = send.start_ns;
  send.peer = RankId(1);
  send.bytes = 4096;
  send.message = 0;
  send.unfinished = source == "measured";
  TraceEvent receive = send;
  receive.kind = TraceEventKind::kReceive;
  receive.rank = RankId(1);
  receive.peer = RankId(0);
  receive.start_ns = 5;
  receive.arrived_ns = 2'000'003;
  receive.background = true;
  receive.batch = send.batch = 4;
  trace.events = {pass, send, receive};
  trace.memory = {{RankId(0), 0, 1 << 20}, {RankId(1), 1'234'567, 99}};
  return trace;
}

void expectEqual(const Trace& got, const Trace& want) {
  EXPECT_EQ(got.source, want.source);
  EXPECT_EQ(got.ranks, want.ranks);
  EXPECT_EQ(got.rank_names, want.rank_names);
  ASSERT_EQ(got.events.size(), want.events.size());
  for (size_t i = 0; i < got.events.size(); ++i) {
    const TraceEvent &a = got.events[i], &b = want.events[i];
    EXPECT_EQ(std::tuple(a.kind, a.work, a.unfinished, a.batch),
              std::tuple(b.kind, b.work, b.unfinished, b.batch));
    EXPECT_EQ(std::tuple(a.rank, a.step, a.stage, a.microbatch, a.name),
              std::tuple(b.rank, b.step, b.stage, b.microbatch, b.name));
    EXPECT_EQ(std::tuple(a.start_ns, a.arrived_ns, a.end_ns), std::tuple(b.start_ns, b.arrived_ns, b.end_ns))
        << b.name;
    EXPECT_EQ(std::tuple(a.peer, a.bytes, a.background), std::tuple(b.peer, b.bytes, b.background)) << b.name;
  }
  ASSERT_EQ(got.memory.size(), want.memory.size());
  for (size_t i = 0; i < got.memory.size(); ++i) {
    EXPECT_EQ(std::tuple(got.memory[i].rank, got.memory[i].time_ns, got.memory[i].bytes),
              std::tuple(want.memory[i].rank, want.memory[i].time_ns, want.memory[i].bytes));
  }
}

TEST(TraceReader, GivesBackWhatWasWritten) {
  const Trace trace = twoRanks("measured");
  expectEqual(traceFromJson(tracesToJson({&trace, 1})), trace);
}

TEST(TraceReader, TakesTheMeasuredOneOfTwo) {
  const Trace both[] = {twoRanks("simulated"), twoRanks("measured")};
  expectEqual(traceFromJson(tracesToJson(both)), both[1]);
  expectEqual(traceFromJson(tracesToJson(both), "simulated"), both[0]);
  const Trace alone = twoRanks("simulated");
  expectEqual(traceFromJson(tracesToJson({&alone, 1})), alone);
}

TEST(TraceReader, RefusesComputingThatDoesNotSayWhatItIs) {
  const Trace trace = twoRanks("measured");
  const std::string text = tracesToJson({&trace, 1});
  const std::string work = R"(,"work":"forward")";
  ASSERT_NE(text.find(work), std::string::npos);
  EXPECT_ERROR(
      traceFromJson(replaced(text, work, "")), ErrorCode::kConfiguration,
      "has no \"args.work\", as older traces do; record it again with `pipeshard run DIR --trace FILE`");
  EXPECT_ERROR(traceFromJson(replaced(text, work, R"(,"work":"idle")")), ErrorCode::kConfiguration,
               "found the work \"idle\"");
}

// The library would cast them, which is undefined (UndefinedBehaviorSanitizer), or cut them to another
// number.
TEST(TraceReader, RefusesNumbersThatNoFieldHolds) {
  const Trace trace = twoRanks("measured");
  const std::string text = tracesToJson({&trace, 1});
  const auto with = [&](const std::string& field, const std::string& number) {
    const size_t at = text.find("\"" + field + "\":", text.find("\"ph\":\"X\""));
    EXPECT_NE(at, std::string::npos) << field;
    const size_t begin = at + field.size() + 3;
    return text.substr(0, begin) + number + text.substr(text.find_first_of(",}", begin));
  };
  for (const std::string field : {"pid", "tid", "step", "stage", "microbatch", "peer", "bytes"}) {
    EXPECT_ERROR(traceFromJson(with(field, "1e300")), ErrorCode::kConfiguration, field + ": found 1e+300");
    EXPECT_ERROR(traceFromJson(with(field, "1.5")), ErrorCode::kConfiguration, field + ": found 1.5");
    EXPECT_ERROR(traceFromJson(with(field, "18446744073709551615")), ErrorCode::kConfiguration,
                 field + ": found 18446744073709551615");
  }
  for (const std::string field : {"ts", "dur"})
    EXPECT_ERROR(traceFromJson(with(field, "1e300")), ErrorCode::kConfiguration, field + ": found 1e+300");
  EXPECT_ERROR(traceFromJson(with("peer", "4294967296")), ErrorCode::kConfiguration,
               "of \"traceEvents\": peer: found 4294967296");
}

TEST(TraceReader, RefusesWhatIsNoTrace) {
  for (const char* text :
       {"", "[]", "{}", "{\"traceEvents\": 3}", "{\"traceEvents\": [{\"ph\": \"X\"}]}",
        "{\"traceEvents\": []}",
        "{\"traceEvents\": [{\"ph\": \"M\", \"pid\": \"x\", \"name\": \"process_name\"}]}"}) {
    EXPECT_ERROR(traceFromJson(text), ErrorCode::kConfiguration, "");
    try {
      traceFromJson(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.message().find("json.exception"), std::string::npos) << error.message();
    }
  }
  EXPECT_ERROR(traceFromJson("{}"), ErrorCode::kConfiguration,
               "found no list \"traceEvents\"; expected a trace as `run --trace` writes it");
  EXPECT_ERROR(traceFromJson("{\"traceEvents\": [{\"ph\": \"X\"}]}"), ErrorCode::kConfiguration, "");
  EXPECT_ERROR(readTrace("/nowhere/trace.json"), ErrorCode::kMissingInput,
               "record a trace with `pipeshard run DIR --trace FILE`");
  const TemporaryFolder folder;
  EXPECT_ERROR(readTrace(folder.write("t.json", "{}")), ErrorCode::kConfiguration, "t.json");
}

}  // namespace
}  // namespace pipeshard
