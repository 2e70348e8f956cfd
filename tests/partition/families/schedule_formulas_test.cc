// Makespan, bubble and memory of schedules: published tables, formulas over a grid, and a second simulator.
// All times are whole numbers that every division in a formula leaves whole, so equal means equal.
#include <cmath>
#include <optional>
#include <random>

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "partition/families/make_schedule.h"
#include "partition/simulation/simulator.h"
#include "tests/partition/schedules/schedule_from_text.h"
#include "tests/partition/simulation/second_simulator.h"

namespace pipeshard {
namespace {

using ::testing::Each;
using ::testing::ElementsAreArray;

constexpr Ticks kUnit = 24;  // divides by 2, 3 and 4, and so do halves of it

// Of a pipeline rank's whole share, in units.
struct Ratio {
  Ticks forward = 1, input = 1, weight = 1;
  Ticks all() const { return forward + input + weight; }
  PassTimes share() const {
    return {.forward = forward * kUnit,
            .backward_input = input * kUnit,
            .backward_weight = weight * kUnit,
            .activation = kUnit};
  }
};

Simulation simulated(const Schedule& schedule, const Ratio& ratio = {}, Ticks latency = 0,
                     bool pairs_together = true) {
  return simulate({.schedule = schedule,
                   .stages = equalStages(schedule, ratio.share()),
                   .latency = latency,
                   .pairs_together = pairs_together});
}

std::vector<int64_t> peaksOf(const Schedule& schedule) {
  std::vector<int64_t> peaks;
  for (const std::vector<Action>& order : schedule.orders) peaks.push_back(peakActivations(order));
  return peaks;
}

struct SummaryRow {
  const char* schedule;
  double makespan;             // F = I = W = 1, 4 ranks, 8 microbatches
  double span;                 // the longest of a rank; 0: not published
  std::vector<int64_t> peaks;  // by rank, in stages' shares; of zb-2p: the limit
  // With this latency of every message: 0.25, 0.5, 1. Empty: not published.
  std::vector<double> with_latency = {};
};

const std::vector<SummaryRow> kSummary = {
    {"gpipe", 33, 33, {8, 8, 8, 8}, {34.5, 36, 39}},
    {"1f1b", 33, 33, {4, 3, 2, 1}, {37, 41, 49}},
    {"interleaved", 28.5, 28.5, {11, 9, 7, 5}, {32, 35.5, 46}},
    {"looped-bfs", 28.5, 28.5, {16, 16, 16, 16}},
    {"zb-h1", 27, 27, {4, 4, 4, 4}, {30, 33, 41}},
    {"interleaved-zb", 25.5, 25.5, {8, 8, 8, 8}},
    {"zb-h2", 27, 24, {7, 7, 7, 7}, {27.75, 28.5, 30}},
    {"dual-pipe-v", 27, 27, {9, 9, 9, 9}, {32, 37.5, 48.5}},
    {"zb-1p", 27, 27, {4, 4, 4, 4}},
    {"zb-2p", 27, 24, {8, 8, 8, 8}},
    {"1f1b-v", 31.5, 31.5, {6, 6, 6, 6}},
    {"zbv", 25.5, 24, {8, 8, 8, 8}, {28.75, 32.5, 41.5}},
    {"v-half", 26.5, 26.5, {6, 6, 6, 6}},
    {"v-min", 29.5, 29.5, {4, 4, 4, 4}},
    {"pipedream", 33, 33, {4, 3, 2, 1}},  // of a window that drains, as 1f1b
    {"pipedream-2bw", 33, 33, {4, 3, 2, 1}},
};

class Summary : public ::testing::TestWithParam<SummaryRow> {};
INSTANTIATE_TEST_SUITE_P(Published, Summary, ::testing::ValuesIn(kSummary), [](const auto& info) {
  std::string name = info.param.schedule;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

Ticks ticks(double units) { return static_cast<Ticks>(std::llround(units * kUnit)); }

TEST_P(Summary, MakespanIdleAndPeakAreThePublishedOnes) {
  const SummaryRow& row = GetParam();
  const Schedule schedule = makeSchedule(row.schedule, 4, 8);
  const Simulation simulation = simulated(schedule);
  EXPECT_EQ(simulation.makespan, ticks(row.makespan));
  EXPECT_THAT(simulation.idlePerRank(), Each(ticks(row.makespan - 24)));
  EXPECT_DOUBLE_EQ(simulation.bubbleOfMakespan(), (row.makespan - 24) / row.makespan);
  EXPECT_DOUBLE_EQ(simulation.bubbleOfUseful(), (row.makespan - 24) / 24);
  if (row.span > 0) {
    EXPECT_EQ(simulation.longestSpan(), ticks(row.span));
    EXPECT_DOUBLE_EQ(simulation.bubbleOfSpan(), (row.span - 24) / row.span);
  }
  const std::vector<int64_t> peaks = peaksOf(schedule);
  if (schedule.name() == "zb-2p") {
    EXPECT_THAT(peaks, Each(::testing::Le(8)));
  } else {
    EXPECT_THAT(peaks, ElementsAreArray(row.peaks));
  }
  const int64_t chunks = schedule.stages / 4;
  for (size_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(simulation.peak_memory[PipelineRankId(rank)] * chunks, peaks[rank] * kUnit);
}

TEST_P(Summary, MakespansWithLatencyAreThePublishedOnes) {
  const SummaryRow& row = GetParam();
  const Schedule schedule = makeSchedule(row.schedule, 4, 8);
  const std::vector<double> latencies = {0.25, 0.5, 1};
  for (size_t i = 0; i < row.with_latency.size(); ++i) {
    EXPECT_EQ(simulated(schedule, {}, ticks(latencies[i])).makespan, ticks(row.with_latency[i]))
        << latencies[i];
  }
}

TEST(ScheduleFormulas, EveryScheduleIsInTheSummary) {
  for (const std::string& name : scheduleNames()) {
    const bool published = std::any_of(kSummary.begin(), kSummary.end(),
                                       [&](const SummaryRow& row) { return row.schedule == name; });
    // Those that no table has; formulas of them are below.
    const bool other = name == "sequential" || name == "eager-1f1b" || name == "forward-only" ||
                       name == "pipedream-vertical";
    EXPECT_NE(published, other) << name;
  }
}

class Formulas : public ::testing::TestWithParam<std::tuple<int, int, Ratio>> {
 protected:
  int p = std::get<0>(GetParam());
  int m = std::get<0>(GetParam()) * std::get<1>(GetParam());
  Ratio ratio = std::get<2>(GetParam());

  // Idle time of every rank is (p-1) times this, over v.
  void expectIdle(const std::string& name, Ticks part, int v = 1) {
    const Schedule schedule = makeSchedule(v == 1 ? name : fmt::format("{}:v={}", name, v), p, m);
    const Simulation simulation = simulated(schedule, ratio);
    EXPECT_THAT(simulation.idlePerRank(), Each((p - 1) * part * kUnit / v)) << schedule.name();
    EXPECT_EQ(simulation.makespan, m * ratio.all() * kUnit + (p - 1) * part * kUnit / v) << schedule.name();
  }
};
// F:B is 1:2, 1:3 and 2:3. Split schedules: W no longer than F and I.
INSTANTIATE_TEST_SUITE_P(Grid, Formulas,
                         ::testing::Combine(::testing::Values(2, 3, 4, 8), ::testing::Values(1, 2, 4),
                                            ::testing::Values(Ratio{1, 1, 1}, Ratio{1, 2, 1},
                                                              Ratio{2, 2, 1})));

TEST_P(Formulas, Sequential) {
  EXPECT_EQ(simulated(makeSchedule("sequential", p, m), ratio).makespan, m * p * ratio.all() * kUnit);
  EXPECT_THAT(peaksOf(makeSchedule("sequential", p, m)), Each(1));
}

TEST_P(Formulas, GPipeAnd1F1B) {
  expectIdle("gpipe", ratio.all());
  expectIdle("1f1b", ratio.all());
  expectIdle("eager-1f1b", ratio.all());
  const Simulation simulation = simulated(makeSchedule("1f1b", p, m), ratio);
  EXPECT_DOUBLE_EQ(simulation.bubbleOfMakespan(), (p - 1.0) / (m + p - 1));
  EXPECT_DOUBLE_EQ(simulation.bubbleOfUseful(), (p - 1.0) / m);
  EXPECT_THAT(peaksOf(makeSchedule("gpipe", p, m)), Each(m));
  for (int rank = 0; rank < p; ++rank)
    EXPECT_EQ(peaksOf(makeSchedule("1f1b", p, m))[rank], std::min(p - rank, m));
}

TEST_P(Formulas, GPipeWithRecomputationHoldsOneMicrobatchAndTheBoundaries) {
  const Schedule schedule = makeSchedule("gpipe", p, m);
  PassTimes share = ratio.share();
  share.recomputation = share.forward;
  share.activation = 1;
  share.recomputed = 1000;
  const Simulation simulation = simulate({.schedule = schedule, .stages = equalStages(schedule, share)});
  EXPECT_EQ(simulation.makespan, (m + p - 1) * (ratio.all() + ratio.forward) * kUnit);
  EXPECT_THAT(simulation.peak_memory, Each(m + 1000));
}

TEST_P(Formulas, InterleavedAndLoopedBreadthFirst) {
  for (int v : {2, 3, 4}) {
    expectIdle("interleaved", ratio.all(), v);
    expectIdle("looped-bfs", ratio.all(), v);
    const std::vector<int64_t> peaks = peaksOf(makeSchedule(fmt::format("interleaved:v={}", v), p, m));
    for (int r = 0; r < p; ++r) EXPECT_EQ(peaks[r], std::min(2 * (p - 1 - r) + (v - 1) * p + 1, m * v)) << r;
    EXPECT_THAT(peaksOf(makeSchedule(fmt::format("looped-bfs:v={}", v), p, m)), Each(m * v));
  }
}

TEST_P(Formulas, ZeroBubbleH1) {
  expectIdle("zb-h1", ratio.forward + ratio.input - ratio.weight);
  EXPECT_THAT(peaksOf(makeSchedule("zb-h1", p, m)), Each(p));
}

// Its warm-up needs 2p-1 microbatches. The span's idle time; with a barrier the stagger of the ranks remains.
TEST_P(Formulas, ZeroBubbleH2) {
  if (m < 2 * p - 1) return;
  const Schedule schedule = makeSchedule("zb-h2", p, m);
  const Simulation simulation = simulated(schedule, ratio);
  EXPECT_EQ(simulation.longestSpan() - m * ratio.all() * kUnit,
            (p - 1) * (ratio.forward + ratio.input - 2 * ratio.weight) * kUnit);
  EXPECT_THAT(peaksOf(schedule), Each(2 * p - 1));
}

// Equal times; as zb-h2, from 2p-1 microbatches on.
TEST_P(Formulas, Zbv) {
  if (m < 2 * p - 1 || ratio.input != ratio.weight || ratio.forward != ratio.weight) return;
  const Schedule schedule = makeSchedule("zbv", p, m);
  EXPECT_EQ(simulated(schedule, ratio).longestSpan(), m * ratio.all() * kUnit);
  EXPECT_THAT(peaksOf(schedule), Each(2 * p));
}

TEST_P(Formulas, InterleavedZeroBubble) {
  for (int v : {2, 3, 4}) expectIdle("interleaved-zb", ratio.forward + ratio.input - ratio.weight, v);
}

// Equal times only. Of 2p stages: (p-1)(F&B + B - 3W), each of a stage, with F&B = 3W and B = 2W.
TEST_P(Formulas, DualPipeV) {
  if (m < 2 * p || ratio.input != ratio.weight || ratio.forward != ratio.weight) return;
  const Schedule schedule = makeSchedule("dual-pipe-v", p, m);
  EXPECT_THAT(simulated(schedule, ratio).idlePerRank(), Each((p - 1) * 2 * kUnit / 2));
  EXPECT_THAT(peaksOf(schedule), Each(2 * p + 1));
}

TEST_P(Formulas, ForwardOnly) {
  EXPECT_EQ(simulated(makeSchedule("forward-only", p, m), ratio).makespan,
            (m + p - 1) * ratio.forward * kUnit);
}

// Qi et al., "Zero Bubble Pipeline Parallelism", tables 5 and 6: 8 ranks; microseconds; rates of the longest
// span.
struct PaperRow {
  int m;
  Ticks forward, input, weight, latency;
  int chunks;
  double one_forward_one_backward, interleaved, h1, h2;
};
class ZeroBubblePaper : public ::testing::TestWithParam<PaperRow> {};
INSTANTIATE_TEST_SUITE_P(
    Table5, ZeroBubblePaper,
    ::testing::Values(PaperRow{24, 18522, 18086, 9337, 601, 3, .2431, .1055, .1585, .1083},
                      PaperRow{32, 18513, 18086, 9331, 626, 3, .1985, .0818, .1242, .0837},
                      PaperRow{64, 18546, 18097, 9321, 762, 3, .1240, .0443, .0674, .0444},
                      PaperRow{24, 29718, 29444, 19927, 527, 4, .2347, .0808, .1323, .0698},
                      PaperRow{32, 29802, 29428, 19530, 577, 4, .1898, .0628, .1045, .0559},
                      PaperRow{64, 29935, 29621, 19388, 535, 4, .1091, .0320, .0554, .0294}));

TEST_P(ZeroBubblePaper, RatesAreThePublishedOnes) {
  const PaperRow& row = GetParam();
  const auto rate = [&](const std::string& name) {
    const Schedule schedule = makeSchedule(name, 8, row.m);
    return simulated(schedule, {row.forward, row.input, row.weight}, row.latency * kUnit).bubbleOfSpan();
  };
  const auto rounded = [](double value) { return std::round(value * 1e4) / 1e4; };
  EXPECT_DOUBLE_EQ(rounded(rate("1f1b")), row.one_forward_one_backward);
  EXPECT_DOUBLE_EQ(rounded(rate("zb-h1")), row.h1);
  EXPECT_DOUBLE_EQ(rounded(rate("zb-h2")), row.h2);
  EXPECT_NEAR(rate(fmt::format("interleaved:v={}", row.chunks)), row.interleaved, .0035);
}

// Everything that can be, where formulas say nothing.
class AnySchedule : public ::testing::TestWithParam<int> {
 protected:
  static std::optional<Schedule> make(const std::string& name, int p, int m) {
    try {
      return makeSchedule(name, p, m);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfiguration) << error.message();
      return std::nullopt;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, AnySchedule, ::testing::Range(1, 9));

std::vector<std::string> allTexts() {
  std::vector<std::string> texts = scheduleNames();
  texts.insert(texts.end(), {"interleaved:v=3", "looped-bfs:v=4", "interleaved-zb:v=3", "eager-1f1b:extra=2",
                             "forward-only:v=2"});
  return texts;
}

// Updates take no time here.
Schedule passesOnly(Schedule schedule) {
  for (std::vector<Action>& order : schedule.orders) {
    order.erase(
        std::remove_if(order.begin(), order.end(), [](const Action& action) { return !isPass(action.kind); }),
        order.end());
  }
  schedule.microbatches_per_update = 0;
  schedule.versions.clear();
  return schedule;
}

TEST_P(AnySchedule, IsNoFasterThanItsWorkAndItsLongestWay) {
  const int p = GetParam();
  for (const std::string& name : allTexts()) {
    for (int m = 1; m <= 4 * p; ++m) {
      const std::optional<Schedule> schedule = make(name, p, m);
      if (!schedule) continue;
      const Ticks latency = 5;
      const Ratio ratio{2, 1, 1};
      const Simulation simulation = simulated(*schedule, ratio, latency);
      const Ticks work = m * (schedule->forward_only ? ratio.forward : ratio.all()) * kUnit;
      EXPECT_THAT(simulation.busy, Each(work)) << schedule->name();
      // One microbatch through all stages and back, over every boundary between ranks.
      Ticks hops = 0;
      const RankOfStage& ranks = schedule->rank_of_stage;
      for (StageId s(1); ranks.has(s); ++s) hops += ranks[s.previous()] != ranks[s] ? latency : 0;
      const Ticks there = p * ratio.forward * kUnit + hops;
      const Ticks back = p * ratio.input * kUnit + hops;
      EXPECT_GE(simulation.makespan, std::max(work, schedule->forward_only ? there : there + back))
          << schedule->name() << " m=" << m;
      EXPECT_LE(simulation.longestSpan(), simulation.makespan);
      const Simulation exposed = simulate({.schedule = *schedule,
                                           .stages = equalStages(*schedule, ratio.share()),
                                           .latency = latency,
                                           .communication = CommunicationModel::kExposed});
      EXPECT_GE(exposed.makespan, simulation.makespan) << schedule->name() << " m=" << m;
      for (const auto& memory : simulation.memory)
        EXPECT_EQ(memory.back().held, 0) << schedule->name() << " m=" << m;
    }
  }
}

TEST_P(AnySchedule, AgreesWithASecondSimulator) {
  const int p = GetParam();
  std::mt19937 random(static_cast<unsigned>(p));
  const auto any = [&](int most) { return static_cast<int64_t>(random() % static_cast<unsigned>(most)); };
  for (const std::string& name : allTexts()) {
    for (int m = 1; m <= 4 * p; ++m) {
      const std::optional<Schedule> made = make(name, p, m);
      if (!made) continue;
      const Schedule schedule = passesOnly(*made);
      IdVector<StageId, PassTimes> stages;
      std::vector<SecondCosts> costs;
      for (int stage = 0; stage < schedule.stages; ++stage) {
        PassTimes times{
            .forward = any(9), .backward_input = any(9), .backward_weight = any(9), .activation = any(9)};
        times.input_memory = schedule.forward_only ? 0 : -any(static_cast<int>(times.activation) + 1);
        stages.push_back(times);
        costs.push_back({times.forward, times.backward_input, times.backward_weight, times.activation,
                         times.input_memory, -times.activation - times.input_memory});
      }
      const Ticks latency = any(7);
      const Simulation simulation =
          simulate({.schedule = schedule, .stages = stages, .latency = latency, .pairs_together = false});
      const SecondSimulation second = secondSimulation(schedule, costs, latency);
      ASSERT_FALSE(second.stuck);
      ASSERT_EQ(simulation.makespan, second.makespan) << schedule.name() << " p=" << p << " m=" << m;
      ASSERT_EQ(simulation.idlePerRank(), second.idle) << schedule.name() << " p=" << p << " m=" << m;
      ASSERT_EQ(simulation.longestSpan(), second.longestSpan());
      if (!schedule.forward_only) {
        ASSERT_EQ(simulation.peak_memory, second.peak_memory) << schedule.name() << " p=" << p << " m=" << m;
      }
      for (size_t rank = 0; rank < schedule.orders.size(); ++rank) {
        std::vector<Ticks> starts;
        for (const SimulatedAction& timed : simulation.ranks[PipelineRankId(rank)])
          starts.push_back(timed.start);
        ASSERT_EQ(starts, second.starts[rank]) << schedule.name() << " p=" << p << " m=" << m;
      }
    }
  }
}

}  // namespace
}  // namespace pipeshard
