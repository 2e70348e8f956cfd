#include "tools/report/report.h"
#include "tests/partition/schedules/schedule_from_text.h"
#include "tools/report/report_sharding.h"

#include <cmath>
#include <limits>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "partition/families/make_schedule.h"
#include "partition/families/plan_schedule.h"
#include "runtime/validation/validate.h"
#include "tests/tools/report/report_samples.h"
#include "tools/report/report_html.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Report, NamesEveryStageWithItsOperatorsAndRank) {
  const std::string page = renderReport({planOf(5, 4, "1f1b")});
  for (int s = 0; s < 5; ++s) {
    EXPECT_THAT(page, HasSubstr(breakable(fmt::format("first_of_{}", s))));
    EXPECT_THAT(page, HasSubstr(breakable(fmt::format("last_of_{}", s))));
    EXPECT_THAT(page, HasSubstr(fmt::format("<li>rank {}<b>stage {}</b></li>", s, s)));
  }
}

TEST(Report, EscapesWhateverComesFromTheModel) {
  Plan plan = planOf(2, 2, "gpipe");
  plan.notes = {"operator <script>alert('x')</script> & co. is \"replicated\""};
  plan.layers[LayerId(0)].first_node = "<img src=x>";
  const std::string page = renderReport({plan});
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, Not(HasSubstr("tiny <b>")));
  EXPECT_THAT(
      page,
      HasSubstr(
          "operator &lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; co. is &quot;replicated&quot;"));
}

TEST(Report, NeedsNothingFromOutside) {
  const ValidationReport validation = validated({compared("w", 1e-7, 1e-5)});
  const std::string page = renderReport({planOf(2, 2, "gpipe"), &validation});
  for (const char* reference :
       {"http://", "https://", "src=", "url(h", "url(d", "@import", "<link", "<script", "<iframe"}) {
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
  const ValidationReport validation = validated(
      {compared("head.weight", 3e-7, 1e-5), compared("shown", 0.5, std::numeric_limits<double>::infinity())});
  const std::string page = renderReport({planOf(2, 2, "gpipe"), &validation});
  EXPECT_THAT(page, HasSubstr("PASS: equals one device"));
  EXPECT_THAT(page, Not(HasSubstr("FAIL")));
  EXPECT_THAT(page, HasSubstr("3.00e-07"));
  EXPECT_THAT(page, HasSubstr("shown only"));
  EXPECT_THAT(page, HasSubstr("1.125"));
}

TEST(Report, SaysFailAndNamesTheTensorThatIsOverItsBound) {
  const ValidationReport validation = validated(
      {compared("broken", std::numeric_limits<double>::infinity(), 1e-5), compared("fine", 1e-8, 1e-5)});
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
  for (int t = 0; t < 40; ++t)
    tensors.push_back(compared(fmt::format("weight{:02}", t), 1e-6 / (t + 1), 1e-5));
  const ValidationReport validation = validated(tensors);
  const std::string page = renderReport({planOf(2, 2, "gpipe"), &validation});
  EXPECT_THAT(page, HasSubstr("weight14"));
  EXPECT_THAT(page, Not(HasSubstr("weight15")));
}

TEST(Report, ShowsMemoryAndTimeOfEveryRankOnceMeasured) {
  ValidationReport validation = validated({compared("w", 1e-7, 1e-5)});
  EXPECT_THAT(renderReport({planOf(2, 2, "gpipe"), &validation}), Not(HasSubstr("Process, measured")));
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

TEST(Report, GivesTheOptionsThatDecideWhatAStepDoes) {
  Plan plan = planOf(2, 1, "pipedream");
  plan.updates_per_step = 4;
  plan.given.bucket_bytes = 0;
  plan.given.overlap_receives = OverlapReceives::kOn;
  plan.stages[StageId(1)].recomputation = Recomputation::kAlways;
  const std::string page = renderReport({plan});
  for (const char* option : {"--schedule pipedream", "--window 4", "--bucket off", "--overlap-receives on",
                             "--recompute 1:always"})
    EXPECT_THAT(page, HasSubstr(option));
  EXPECT_THAT(page, Not(HasSubstr("--stage-devices")));
}

TEST(Report, SaysThatReceivesDoNotOverlapWhereTheyWouldByDefault) {
  Plan plan = planOf(2, 2, "gpipe");
  EXPECT_THAT(renderReport({plan}), Not(HasSubstr("--overlap-receives")));
  plan.cluster = uniformCluster(2, 1);
  EXPECT_THAT(renderReport({plan}), HasSubstr("--overlap-receives off"));
}

TEST(Report, CountsUnusedDevices) {
  Plan plan = planOf(2, 2, "gpipe");
  plan.cluster = uniformCluster(2, 2);
  const std::string page = renderReport({plan});
  EXPECT_THAT(page, HasSubstr("2 of 4 devices stay unused"));
  EXPECT_EQ(countOf(page, "<b>unused</b>"), 2u);
}

TEST(Report, DrawsNoMoreDevicesThanAPageCanHold) {
  Plan plan = planOf(2, 2, "gpipe");
  plan.cluster = uniformCluster(1000, 8);
  const std::string page = renderReport({plan});
  EXPECT_EQ(countOf(page, "<li>rank ") + countOf(page, "<li class=\"idle\">rank "), 512u);
  EXPECT_THAT(page, HasSubstr("And 7488 devices that are not drawn"));
}

TEST(Report, ShowsHowStagesAreSharded) {
  const Plan plan = shardedPlan();
  const std::string page = renderReport({.plan = plan, .parameters = shardedParameters()});
  for (const char* text :
       {"id=\"sharding\"", "href=\"#sharding\"", "2x2 of 4 devices", "megatron:2,2", "1.250 ms", "0.500 ms",
        "3.00 MiB", "1.500 ms (optimal)", "width:71.4%", "<code>w&lt;1&gt;</code>", "512 KiB", "256 KiB",
        "2 other tensors that are not whole"}) {
    EXPECT_THAT(page, HasSubstr(text));
  }
  EXPECT_THAT(page, HasSubstr("<span class=\"spec whole\">R</span>"));
  EXPECT_THAT(page, Not(HasSubstr("of_another_stage")));
  EXPECT_EQ(countOf(page, "<span class=\"spec c0\">R,S1</span>"), 2u);  // in the legend and of the parameter
  EXPECT_EQ(countOf(page, "<span class=\"spec c1\">S0,R;P1</span>"), 2u);
  EXPECT_EQ(countOf(page, "<span class=\"spec c2\">S0,S1</span>"), 2u);
}

TEST(Report, OfAPlanWithoutShardingsSaysNothingOfThem) {
  const std::string page = renderReport({planOf(2, 2, "gpipe")});
  EXPECT_THAT(page, Not(HasSubstr("harding")));
  EXPECT_THAT(page, Not(HasSubstr(".spec")));
  EXPECT_TRUE(parametersOf(planOf(2, 2, "gpipe"), {}, {}).empty());
}

TEST(Report, IsTheSameForTheSameInput) {
  const Plan plan = planOf(4, 8, "1f1b");
  EXPECT_EQ(renderReport({plan}), renderReport({plan}));
}

TEST(Report, ShowsWhatWasMeasuredBelowWhatWasPredicted) {
  const Plan plan = chunkedPlan(4, 2, 8);
  const Schedule schedule = scheduleOf(plan);
  const std::string page = renderReport({.plan = plan, .measured = measuredTrace(plan, schedule)});
  const size_t predicted = page.find(">predicted</text>");
  const size_t measured = page.find(">measured</text>");
  ASSERT_NE(predicted, std::string::npos);
  ASSERT_NE(measured, std::string::npos);
  EXPECT_LT(predicted, measured);
  EXPECT_EQ(countOf(page, "stage 7, forward of microbatch 4:"), 2u);
  EXPECT_THAT(page, HasSubstr("this plan, measured"));
  EXPECT_THAT(page, HasSubstr("stages 0, 4"));
}

TEST(Report, TellsTheBubbleByFormulaWhereThereIsOne) {
  const std::string page = renderReport({planOf(4, 8, "1f1b")});
  EXPECT_THAT(page, HasSubstr("(p−1)/(m+p−1) = 27.3% of the step, (p−1)/m = 37.5% of the useful work"));
  const Plan plan = planOf(4, 8, "1f1b");
  Schedule schedule = makeSchedule("1f1b", 4, 8);
  schedule.spec = ScheduleSpec::ofFile();
  EXPECT_THAT(renderReport({.plan = plan, .schedule = &schedule}), Not(HasSubstr("by formula")));
}

// As in dithering, areas keep their shares: of a forward pass of 1 and a backward pass of 2, too thin to be
// seen.
TEST(Report, DrawsCrowdedRowsByPixels) {
  const std::string page = renderReport({planOf(1, 4000, "1f1b")});
  EXPECT_LT(page.size(), 300'000U);
  const auto pixels = [&](const std::string& css_class) {
    const std::string begin = "<path class=\"" + css_class + "\" d=\"";
    size_t at = page.find(begin) + begin.size(), sum = 0;
    const size_t end = page.find("\"/>", at);
    while ((at = page.find('h', at + 1)) < end) {
      if (page[at + 1] != '-') sum += std::stoul(page.substr(at + 1));
    }
    return static_cast<double>(sum);
  };
  EXPECT_NEAR(pixels("f0") / pixels("b0"), 0.5, 0.01);
}

TEST(Report, TellsChunksOfARankApartByShades) {
  const Plan plan = chunkedPlan(4, 2, 8);
  const std::string page = renderReport({.plan = plan});
  EXPECT_EQ(countOf(page, "<rect class=\"f0\" x=\"0\""), 2u);  // the legend's, and the first pass of rank 0
  EXPECT_GE(countOf(page, "<rect class=\"f2\""), 32u);
  EXPECT_EQ(countOf(page, "<rect class=\"f1\""), 0u);
}

TEST(Report, ShowsWhatMemoryIsForAsPlanned) {
  const Plan plan = planOf(2, 2, "gpipe");
  ReportInput input{plan};
  input.memory = {{.parameters = 3 << 20, .activations = 5 << 20}, {.parameters = 4 << 20}};
  const std::string page = renderReport(input);
  EXPECT_THAT(page, HasSubstr("8.00 MiB"));
  EXPECT_THAT(page, HasSubstr("At the fullest moment of a step, as planned"));
}

TEST(ReportPictures, StandAloneAsFiles) {
  const Plan plan = chunkedPlan(4, 2, 8);
  const Schedule schedule = scheduleOf(plan);
  const auto pictures = renderPictures({.plan = plan, .measured = measuredTrace(plan, schedule)});
  ASSERT_EQ(pictures.size(), 3u);
  for (const auto& [name, svg] : pictures) {
    EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"")) << name;
    EXPECT_THAT(svg, HasSubstr("prefers-color-scheme:dark"));
    EXPECT_LT(svg.size(), 300'000u) << name;
  }
  EXPECT_EQ(countOf(pictures[0].second, "class=\"seat\""), 4u);
  // predicted and measured, forward and backward
  EXPECT_EQ(countOf(pictures[1].second, "<g><title>stage "), 2u * 4 * 2 * 8 * 2);
}

TEST(EscapeHtml, ReplacesMarkupAndControlCharacters) {
  EXPECT_EQ(escapeHtml("a<b>&\"'c\n"), "a&lt;b&gt;&amp;&quot;&#39;c\n");
  EXPECT_EQ(escapeHtml(std::string_view("\0\x1b", 2)), "\xEF\xBF\xBD\xEF\xBF\xBD");
}

}  // namespace
}  // namespace pipeshard
