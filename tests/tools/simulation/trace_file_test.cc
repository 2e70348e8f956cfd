#include "tools/simulation/trace_file.h"

#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace pipeshard {
namespace {

using nlohmann::json;

// A chain of `messages` from rank 0 to rank 1, whose sends overlap each other.
Trace chain(int messages) {
  Trace trace{.source = "simulated",
              .ranks = 2,
              .rank_names = {"rank 0 (stage 0)", "rank \"1\"\n\xff"},
              .events = {},
              .memory = {}};
  for (int rank = 0; rank < 2; ++rank) {
    for (int k = 0; k < messages; ++k) {
      const int64_t start = rank == 0 ? 1000 * k : 1500 + 1000 * k;
      TraceEvent compute{.rank = RankId(rank),
                         .stage = StageId(rank),
                         .microbatch = k,
                         .name = "pass",
                         .start_ns = start,
                         .end_ns = start + 750};
      TraceEvent message{.kind = rank == 0 ? TraceEventKind::kSend : TraceEventKind::kReceive,
                         .rank = RankId(rank),
                         .microbatch = k,
                         .name = "message"};
      message.peer = RankId(1 - rank);
      message.message = k;
      message.bytes = 4096;
      message.start_ns = rank == 0 ? start + 750 : start - 250;
      message.end_ns = rank == 0 ? start + 2000 : start;
      message.arrived_ns = rank == 0 ? message.start_ns : start - 100;
      if (rank == 0) {
        trace.events.push_back(compute);
        trace.events.push_back(message);
      } else {
        trace.events.push_back(message);
        trace.events.push_back(compute);
      }
    }
    trace.memory.push_back({RankId(rank), 0, 1 << 20});
  }
  return trace;
}

json events(const std::vector<Trace>& traces) { return json::parse(tracesToJson(traces)).at("traceEvents"); }

TEST(TraceFile, HasASliceForEveryEventAndAnArrowForEveryMessage) {
  std::map<int64_t, int> started, ended;
  std::map<std::string, int> slices;
  for (const json& event : events({chain(20)})) {
    const std::string phase = event.at("ph");
    if (phase == "X") ++slices[event.at("cat")];
    if (phase == "s") ++started[event.at("id")];
    if (phase == "f") {
      ++ended[event.at("id")];
      EXPECT_EQ(event.at("bp"), "e");
    }
  }
  EXPECT_EQ(started.size(), 20u);
  EXPECT_EQ(started, ended);
  EXPECT_EQ(slices["compute"], 40);
  EXPECT_EQ(slices["send"], 20);
  EXPECT_EQ(slices["receive"], 20);
  EXPECT_EQ(slices["waiting"], 20);
  EXPECT_EQ(slices["transfer"], 20);
}

// Viewers draw nothing of a slice that crosses another on its track, and drop arrows that end beside a slice.
TEST(TraceFile, SlicesOfATrackNestAndArrowsEndOnSlices) {
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> tracks;
  const json all = events({chain(20), chain(3)});
  for (const json& event : all) {
    if (event.at("ph") != "X") continue;
    const double start = event.at("ts").get<double>();
    tracks[{event.at("pid"), event.at("tid")}].emplace_back(start, start + event.at("dur").get<double>());
  }
  constexpr double kNothing = 1e-6;
  for (const auto& [track, slices] : tracks) {
    for (const auto& a : slices) {
      for (const auto& b : slices) {
        const bool apart = a.second <= b.first + kNothing || b.second <= a.first + kNothing;
        const bool inside = (a.first >= b.first - kNothing && a.second <= b.second + kNothing) ||
                            (b.first >= a.first - kNothing && b.second <= a.second + kNothing);
        EXPECT_TRUE(apart || inside) << track.first << " " << track.second << ": " << a.first << " "
                                     << b.first;
      }
    }
  }
  for (const json& event : all) {
    if (event.at("ph") != "s" && event.at("ph") != "f") continue;
    const double time = event.at("ts").get<double>();
    const auto& slices = tracks.at({event.at("pid"), event.at("tid")});
    EXPECT_TRUE(std::any_of(slices.begin(), slices.end(),
                            [&](const auto& s) { return s.first <= time && time < s.second; }));
  }
}

TEST(TraceFile, NamesProcessesOfEveryTraceApart) {
  std::map<int, std::string> names;
  std::vector<Trace> traces = {chain(1), chain(1)};
  traces[1].source = "measured";
  for (const json& event : events(traces)) {
    if (event.at("name") == "process_name") names[event.at("pid")] = event.at("args").at("name");
  }
  EXPECT_EQ(names.size(), 4u);
  EXPECT_EQ(names[0], "simulated rank 0 (stage 0)");
  EXPECT_EQ(names[3], "measured rank \"1\"\n\xEF\xBF\xBD");
}

TEST(TraceFile, KeepsNanosecondsAndBytes) {
  Trace trace = chain(1);
  trace.events[0].end_ns = 987'654'321'987;
  trace.events[1].end_ns = 987'654'322'000;
  const std::string text = tracesToJson(std::vector<Trace>{trace});
  EXPECT_THAT(text, ::testing::HasSubstr("\"dur\":987654321.987"));
  bool counter = false;
  const json parsed = json::parse(text);
  for (const json& event : parsed.at("traceEvents"))
    counter |= event.at("ph") == "C" && event.at("args").at("bytes") == 1 << 20;
  EXPECT_TRUE(counter);
}

TEST(TraceFile, StaysBelow400BytesPerEvent) {
  const size_t few = tracesToJson(std::vector<Trace>{chain(10)}).size();
  const size_t many = tracesToJson(std::vector<Trace>{chain(1010)}).size();
  EXPECT_LT((many - few) / 4000, 400u);
}

}  // namespace
}  // namespace pipeshard
