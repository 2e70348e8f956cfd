#include "tools/report.h"

#include <cmath>
#include <limits>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/error.h"
#include "runtime/validate.h"
#include "tools/report_html.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Plan planOf(int stages, int64_t microbatches, const std::string& schedule) {
  Plan plan;
  plan.model_path = "/models/tiny <b>.onnx";
  plan.dimensions = {{"batch", 8}};
  plan.batch_dimension = "batch";
  plan.loss = "cross-entropy:logits,labels";
  plan.optimizer = "sgd:lr=0.1";
  plan.cluster = {1, stages};
  plan.microbatches = microbatches;
  plan.schedule = schedule;
  for (int s = 0; s < stages; ++s) {
    plan.layers.push_back({fmt::format("first_of_{}", s), fmt::format("last_of_{}", s), 2 * s, 2 * s + 1, 100});
    StagePlan stage;
    stage.first_layer = stage.last_layer = s;
    stage.devices = {s};
    stage.forward_flops = 100;
    stage.backward_flops = 200;
    plan.stages.push_back(stage);
  }
  return plan;
}

TensorComparison compared(const std::string& name, double error, double bound) {
  TensorComparison tensor;
  tensor.name = name;
  tensor.step = 1;
  tensor.error = error;
  tensor.bound = bound;
  return tensor;
}

ValidationReport validated(std::vector<TensorComparison> tensors) {
  ValidationReport report;
  report.ranks = 2;
  report.steps = {{1.25, 1.25}, {1.125, 1.125}};
  report.tensors = std::move(tensors);
  return report;
}

size_t countOf(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

TEST(Report, NamesEveryStageWithItsOperatorsAndRank) {
  const std::string page = renderReport({planOf(5, 4, "1f1b")});
  for (int s = 0; s < 5; ++s) {
    EXPECT_THAT(page, HasSubstr(breakable(fmt::format("first_of_{}", s))));
    EXPECT_THAT(page, HasSubstr(breakable(fmt::format("last_of_{}", s))));
    EXPECT_THAT(page, HasSubstr(fmt::format("stage {} · rank {}", s, s)));
  }
}

TEST(Report, EscapesWhateverComesFromTheModel) {
  Plan plan = planOf(2, 2, "gpipe");
  plan.notes = {"operator <script>alert('x')</script> & co. is \"replicated\""};
  plan.layers[0].first_node = "<img src=x>";
  const std::string page = renderReport({plan});
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, Not(HasSubstr("tiny <b>")));
  EXPECT_THAT(page, HasSubstr("operator &lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; co. is &quot;replicated&quot;"));
}

TEST(Report, NeedsNothingFromOutside) {
  const ValidationReport validation = validated({compared("w", 1e-7, 1e-5)});
  const std::string page = renderReport({planOf(2, 2, "gpipe"), &validation});
  for (const char* reference : {"http://", "https://", "src=", "url(", "@import", "<link", "<script", "<iframe"}) {
    EXPECT_THAT(page, Not(HasSubstr(reference)));
  }
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
}

TEST(Report, SaysThatAPlanIsNotValidatedYet) {
  const std::string page = renderReport({planOf(2, 2, "gpipe")});
  EXPECT_THAT(page, HasSubstr("not validated yet"));
  EXPECT_THAT(page, Not(HasSubstr("PASS")));
  EXPECT_THAT(page, Not(HasSubstr("FAIL")));
}

TEST(Report, SaysPassAndTheWorstErrorWhenAllTensorsAreWithinTheirBounds) {
  const ValidationReport validation =
      validated({compared("head.weight", 3e-7, 1e-5), compared("shown", 0.5, std::numeric_limits<double>::infinity())});
  const std::string page = renderReport({planOf(2, 2, "gpipe"), &validation});
  EXPECT_THAT(page, HasSubstr("PASS: equals one device"));
  EXPECT_THAT(page, Not(HasSubstr("FAIL")));
  EXPECT_THAT(page, HasSubstr("3.00e-07"));
  EXPECT_THAT(page, HasSubstr("shown only"));
  EXPECT_THAT(page, HasSubstr("1.125"));
}

TEST(Report, SaysFailAndNamesTheTensorThatIsOverItsBound) {
  const ValidationReport validation =
      validated({compared("broken", std::numeric_limits<double>::infinity(), 1e-5), compared("fine", 1e-8, 1e-5)});
  const std::string page = renderReport({planOf(2, 2, "gpipe"), &validation});
  EXPECT_THAT(page, HasSubstr("FAIL: differs from one device"));
  EXPECT_THAT(page, Not(HasSubstr("PASS")));
  EXPECT_THAT(page, HasSubstr("2 tensors compared, 1 over its bound"));
  EXPECT_THAT(page, HasSubstr("<code>broken</code>"));
  EXPECT_THAT(page, HasSubstr("not finite"));
  EXPECT_EQ(countOf(page, "<span class=\"bad\">FAIL</span>"), 1u);
  EXPECT_EQ(countOf(page, "<span class=\"ok\">pass</span>"), 1u);
}

TEST(Report, ShowsTheFifteenWorstTensors) {
  std::vector<TensorComparison> tensors;
  for (int t = 0; t < 40; ++t) tensors.push_back(compared(fmt::format("weight{:02}", t), 1e-6 / (t + 1), 1e-5));
  const ValidationReport validation = validated(tensors);
  const std::string page = renderReport({planOf(2, 2, "gpipe"), &validation});
  EXPECT_THAT(page, HasSubstr("weight14"));
  EXPECT_THAT(page, Not(HasSubstr("weight15")));
}

TEST(Report, ShowsMemoryAndTimeOfEveryRankOnceMeasured) {
  ValidationReport validation = validated({compared("w", 1e-7, 1e-5)});
  EXPECT_THAT(renderReport({planOf(2, 2, "gpipe"), &validation}), Not(HasSubstr("id=\"memory\"")));
  RankResult rank;
  rank.memory.parameters = 3 << 20;
  rank.arena_bytes = 7 << 20;
  validation.planned.ranks = {rank, rank};
  validation.planned.steps = {{2, 1.125, {}, 0.75, {0.5, 0.25}, {0.125, 0.5}}};
  const std::string page = renderReport({planOf(2, 2, "gpipe"), &validation});
  EXPECT_EQ(countOf(page, "3.00 MiB"), 2u);
  EXPECT_EQ(countOf(page, "7.00 MiB"), 2u);
  EXPECT_THAT(page, HasSubstr("0.7500 s"));
  EXPECT_THAT(page, HasSubstr("0.1250 s"));
}

TEST(Report, GivesTheCommandsQuotedForTheShell) {
  const std::string page = renderReport({planOf(2, 2, "gpipe")});
  EXPECT_THAT(page, HasSubstr("pipeshard plan &#39;/models/tiny &lt;b&gt;.onnx&#39;"));
  EXPECT_THAT(page, HasSubstr("--dim batch=8"));
  EXPECT_THAT(page, HasSubstr("--cluster 1x2"));
}

TEST(Report, CountsUnusedDevices) {
  Plan plan = planOf(2, 2, "gpipe");
  plan.cluster = {2, 2};
  const std::string page = renderReport({plan});
  EXPECT_THAT(page, HasSubstr("2 of 4 devices stay unused"));
  EXPECT_EQ(countOf(page, "<b>unused</b>"), 2u);
}

TEST(Report, DrawsNoMoreDevicesThanAPageCanHold) {
  Plan plan = planOf(2, 2, "gpipe");
  plan.cluster = {1000, 8};
  const std::string page = renderReport({plan});
  EXPECT_EQ(countOf(page, "<li>rank ") + countOf(page, "<li class=\"idle\">rank "), 512u);
  EXPECT_THAT(page, HasSubstr("And 7488 devices that are not drawn"));
}

Plan shardedPlan() {
  Plan plan = planOf(2, 2, "gpipe");
  plan.cluster = {1, 8};
  plan.stages[0].devices = {0, 1, 2, 3};
  plan.stages[1].devices = {4};
  plan.stages[0].sharding =
      ShardingPlan{"megatron:2,2", {2, 2}, {{"h", "0:i"}}, {{"w<1>", "R,S1"}, {"h", "S0,S1"}, {"y", "S0,R;P1"}}, 1250000, 500000, 3 << 20,
                   1500000,        true};
  return plan;
}

TEST(Report, ShowsHowStagesAreSharded) {
  const Plan plan = shardedPlan();
  const std::string page = renderReport({.plan = plan,
                                         .parameters = {{0, "w<1>", DataType::kFloat32, {256, 512}, {256, 256}},
                                                        {0, "bias", DataType::kFloat32, {512}, {512}},
                                                        {1, "elsewhere", DataType::kFloat32, {512}, {512}}}});
  for (const char* text :
       {"id=\"sharding\"", "href=\"#sharding\"", "2 × 2 of 4 devices", "megatron:2,2", "1.250 ms", "0.500 ms", "3.00 MiB",
        "1.500 ms (optimal)", "width:71.4%", "<code>w&lt;1&gt;</code>", "512 KiB", "256 KiB", "2 other tensors that are not whole"}) {
    EXPECT_THAT(page, HasSubstr(text));
  }
  EXPECT_THAT(page, HasSubstr("<span class=\"spec whole\">R</span>"));
  EXPECT_THAT(page, Not(HasSubstr("elsewhere")));
  EXPECT_EQ(countOf(page, "<span class=\"spec c0\">R,S1</span>"), 2u);  // in the legend and of the parameter
  EXPECT_EQ(countOf(page, "<span class=\"spec c1\">S0,R;P1</span>"), 2u);
  EXPECT_EQ(countOf(page, "<span class=\"spec c2\">S0,S1</span>"), 2u);
}

TEST(Report, OfAPlanWithoutShardingsSaysNothingOfThem) {
  const std::string page = renderReport({planOf(2, 2, "gpipe")});
  EXPECT_THAT(page, Not(HasSubstr("harding")));
  EXPECT_THAT(page, Not(HasSubstr(".spec")));
  EXPECT_TRUE(readParameters(planOf(2, 2, "gpipe"), "/nowhere").empty());
}

TEST(Report, IsTheSameForTheSameInput) {
  const Plan plan = planOf(4, 8, "1f1b");
  EXPECT_EQ(renderReport({plan}), renderReport({plan}));
}

TEST(StageTimes, FollowTheFlopsAndFallBackToOneAndTwo) {
  Plan plan = planOf(2, 2, "gpipe");
  plan.stages[1].backward_flops = 350;
  EXPECT_EQ(stageTimes(plan)[1].forward, 100);
  EXPECT_EQ(stageTimes(plan)[1].backward_input + stageTimes(plan)[1].backward_weight, 350);
  plan.stages[0].forward_flops = 0;
  EXPECT_EQ(stageTimes(plan)[1].forward, 1);
  EXPECT_EQ(stageTimes(plan)[1].backward_input + stageTimes(plan)[1].backward_weight, 2);
}

TEST(ScheduleSvg, DrawsABoxForEveryPassWithItsMicrobatch) {
  const Schedule schedule = makeSchedule("1f1b", 3, 5);
  const Simulation timeline = simulate({.schedule = schedule, .stages = std::vector<PassTimes>(3)});
  const std::vector<std::string> names = {"a < b", "second", "third"};
  const std::string svg = renderScheduleSvg(timeline, names);
  EXPECT_EQ(countOf(svg, "<g><title>stage "), 2u * 3 * 5);
  EXPECT_EQ(countOf(svg, "forward of microbatch 4:"), 3u);
  EXPECT_THAT(svg, HasSubstr("a &lt; b"));
  EXPECT_THAT(svg, HasSubstr("xmlns="));
  EXPECT_THAT(renderScheduleSvg(timeline, names, SvgUse::kInPage), Not(HasSubstr("xmlns=")));
}

TEST(ScheduleSvg, StaysLightForManyMicrobatches) {
  const Schedule schedule = makeSchedule("gpipe", 16, 1024);
  const Simulation timeline = simulate({.schedule = schedule, .stages = std::vector<PassTimes>(16)});
  const std::string svg = renderScheduleSvg(timeline, {});
  EXPECT_LT(svg.size(), 2u << 20);
  EXPECT_THAT(svg, HasSubstr("rank 15"));
}

TEST(EscapeHtml, ReplacesMarkupAndControlCharacters) {
  EXPECT_EQ(escapeHtml("a<b>&\"'c\n"), "a&lt;b&gt;&amp;&quot;&#39;c\n");
  EXPECT_EQ(escapeHtml(std::string_view("\0\x1b", 2)), "\xEF\xBF\xBD\xEF\xBF\xBD");
}

}  // namespace
}  // namespace pipeshard
