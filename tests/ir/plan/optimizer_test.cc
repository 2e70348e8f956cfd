// What --optimizer and --group say, and the learning rates of schedules, after the formulas that PyTorch's
// documentation has for its schedulers.
#include "ir/plan/optimizer.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tests/expect_error.h"

namespace pipeshard {
namespace {

// Of steps 1, 2, ...
std::vector<double> ratesOf(const char* text, int64_t steps) {
  const OptimizerSpec spec = parseOptimizer(text);
  std::vector<double> rates;
  for (int64_t step = 1; step <= steps; ++step)
    rates.push_back(scheduledRate(spec.schedule, spec.learning_rate, step));
  return rates;
}

void expectRates(const char* text, const std::vector<double>& want) {
  const std::vector<double> got = ratesOf(text, std::ssize(want));
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got[i], want[i], 1e-14) << text << " in step " << i + 1;
}

TEST(OptimizerText, IsCompleteAndParsedBack) {
  EXPECT_EQ(optimizerToString(parseOptimizer("rmsprop")),
            "rmsprop:lr=0.01,alpha=0.99,eps=1e-08,weight_decay=0,momentum=0");
  EXPECT_EQ(optimizerToString(parseOptimizer("adagrad:lr_decay=0.1")),
            "adagrad:lr=0.01,lr_decay=0.1,eps=1e-10,weight_decay=0");
  EXPECT_EQ(optimizerToString(parseOptimizer("lion")), "lion:lr=0.0001,beta1=0.9,beta2=0.99,weight_decay=0");
  EXPECT_EQ(optimizerToString(parseOptimizer("sgd:lr=0.1,schedule=cosine,warmup=10,steps=100,final=0.01")),
            "sgd:lr=0.1,momentum=0,weight_decay=0,nesterov=0,schedule=cosine,warmup=10,start_factor=0,"
            "steps=100,final=0.01");
  EXPECT_EQ(optimizerToString(parseOptimizer("sgd:schedule=constant")), optimizerToString(OptimizerSpec()));
  for (const char* text :
       {"lion:lr=3e-4,warmup=100", "adamw:schedule=linear,steps=7", "sgd:schedule=step,step_size=3,gamma=0.3",
        "lamb:lr=3e-4,eps=1e-7", "adafactor:d=2,eps1=1e-9,beta2_decay=-0.5",
        "muon:nesterov=0,ns_steps=7,match_rms=1,adamw_lr=3e-4",
        "adagrad:final_div_factor=77,schedule=one-cycle,steps=1000,pct_start=0.1,div_factor=3"}) {
    EXPECT_EQ(parseOptimizer(optimizerToString(parseOptimizer(text))), parseOptimizer(text)) << text;
  }
}

TEST(OptimizerText, IsRefusedWhereItMeansNothing) {
  const auto refuses = [](const char* text, const char* message) {
    EXPECT_ERROR(parseOptimizer(text), ErrorCode::kUsage, message);
  };
  refuses("shampoo:lr=1", "unknown optimizer 'shampoo'");
  refuses("lamb:ns_steps=1", "its keys are lr, beta1, beta2, eps, weight_decay");
  refuses("muon:ns_steps=2.5", "ns_steps=2.5 is no whole number");
  refuses("muon:ns_steps=21", "outside of [1, 21)");
  refuses("adafactor:beta2_decay=0.5", "beta2_decay=0.5 is outside of");
  refuses("adan", "unknown optimizer 'adan'");
  refuses("lion:eps=1", "its keys are lr, beta1, beta2, weight_decay");
  refuses("sgd:schedule=zigzag,steps=1", "none of constant, linear, cosine, one-cycle, step");
  refuses("sgd:steps=10", "schedule=constant");
  refuses("sgd:schedule=cosine,gamma=0.1,steps=3", "adds warmup, start_factor, steps, final");
  refuses("sgd:schedule=one-cycle,steps=10,warmup=3", "no key 'warmup'");
  refuses("sgd:schedule=cosine", "needs steps=N");
  refuses("sgd:schedule=step", "needs step_size=N");
  refuses("sgd:schedule=linear,steps=10,warmup=10", "must be more than warmup=10");
  refuses("sgd:warmup=1.5", "no whole number of steps");
  refuses("sgd:warmup=-1", "outside of");
  refuses("sgd:schedule=one-cycle,steps=3,pct_start=0.3", "pct_start=0.3 of steps=3");
  refuses("sgd:schedule=one-cycle,steps=3,pct_start=1", "pct_start=1");
  refuses("sgd:lr=0,schedule=cosine,steps=3,final=1", "above 0");
  refuses("sgd:schedule=linear,steps=2,schedule=cosine", "'schedule' is given twice");
  refuses("none:lr=1", "has no keys");
}

TEST(LearningRate, RisesInALineInTheWarmUp) {
  expectRates("sgd:lr=0.4,warmup=4", {0, 0.1, 0.2, 0.3, 0.4, 0.4});
  expectRates("sgd:lr=0.4,warmup=4,start_factor=0.5", {0.2, 0.25, 0.3, 0.35, 0.4, 0.4});
}

TEST(LearningRate, FallsInALine) {
  expectRates("sgd:lr=1,schedule=linear,warmup=2,steps=6", {0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0});
  expectRates("sgd:lr=1,schedule=linear,steps=4,final=0.2", {1, 0.8, 0.6, 0.4, 0.2, 0.2});
}

// CosineAnnealingLR: eta_min + (eta_max - eta_min) (1 + cos(pi T_cur / T_max)) / 2
TEST(LearningRate, FallsAlongACosine) {
  std::vector<double> want = {0, 0.1};
  for (int t = 0; t <= 8; ++t) want.push_back(0.02 + (0.2 - 0.02) * (1 + std::cos(M_PI * t / 8)) / 2);
  want.insert(want.end(), {0.02, 0.02});
  expectRates("sgd:lr=0.2,schedule=cosine,warmup=2,steps=10,final=0.02", want);
}

TEST(LearningRate, FallsInSteps) {
  expectRates("sgd:lr=1,schedule=step,step_size=2,gamma=0.5", {1, 1, 0.5, 0.5, 0.25, 0.25, 0.125});
  expectRates("sgd:lr=1,schedule=step,warmup=1,step_size=2", {0, 1, 1, 0.1, 0.1, 0.01});
}

// OneCycleLR, cos: between phases' ends, at pct_start total_steps - 1 and total_steps - 1, along
// end + (start - end) (1 + cos(pi share)) / 2.
TEST(LearningRate, RisesAndFallsInOneCycle) {
  const double first = 1.0 / 25, last = first / 1e4, peak = 0.3 * 10 - 1;
  std::vector<double> want;
  for (int n = 0; n < 10; ++n) {
    const auto along = [](double start, double end, double share) {
      return end + (start - end) / 2 * (1 + std::cos(M_PI * share));
    };
    want.push_back(n <= peak ? along(first, 1, n / peak) : along(1, last, (n - peak) / (9 - peak)));
  }
  EXPECT_EQ(want[2], 1);
  want.push_back(last);
  expectRates("sgd:lr=1,schedule=one-cycle,steps=10", want);
}

TEST(ParameterGroups, AreParsed) {
  const ParameterGroup group = parseParameterGroup("(?:bias|ln):weight_decay=0,lr_scale=0.5");
  EXPECT_EQ(group.pattern, "(?:bias|ln)");
  EXPECT_EQ(groupSettings(group), "lr_scale=0.5, weight_decay=0");
  for (const char* text : {"bias", "bias:", ":lr=1", "(?:bias)", "bias:momentum=1", "bias:lr=x", "bias:lr=-1",
                           "bias:lr=1,lr=2", "bias:lr"}) {
    EXPECT_ERROR(parseParameterGroup(text), ErrorCode::kUsage, "");
  }
}

TEST(ParameterGroups, ScaleTheWholeSchedule) {
  OptimizerSpec spec = parseOptimizer("adamw:lr=0.2,schedule=cosine,steps=10,final=0.1,weight_decay=0.3");
  applyGroup(parseParameterGroup("a:lr_scale=0.5"), spec);
  EXPECT_EQ(spec.learning_rate, 0.1);
  EXPECT_EQ(spec.schedule.final_rate, 0.05);
  EXPECT_EQ(spec.weight_decay, 0.3);
  applyGroup(parseParameterGroup("a:lr=0.4,weight_decay=0"), spec);
  EXPECT_EQ(spec.learning_rate, 0.4);
  EXPECT_EQ(spec.schedule.final_rate, 0.2);
  EXPECT_EQ(spec.weight_decay, 0);
}

// What Muon leaves to AdamW has a rate of its own.
TEST(ParameterGroups, MeanBothRatesOfMuon) {
  OptimizerSpec spec = parseOptimizer("muon:lr=0.5,adamw_lr=0.25,schedule=cosine,steps=10,final=0.125");
  applyGroup(parseParameterGroup("a:lr_scale=0.5"), spec);
  EXPECT_EQ(spec.learning_rate, 0.25);
  EXPECT_EQ(spec.adam_rate, 0.125);
  EXPECT_EQ(spec.schedule.final_rate, 0.0625);
  applyGroup(parseParameterGroup("a:lr=0.75"), spec);
  EXPECT_EQ(spec.learning_rate, 0.75);
  EXPECT_EQ(spec.adam_rate, 0.75);
}

TEST(ParameterGroups, GoOverEarlierOnes) {
  const auto settings = [](const std::vector<const char*>& texts) {
    ParameterGroup all;
    for (const char* text : texts) addGroup(parseParameterGroup(text), all);
    return groupSettings(all);
  };
  EXPECT_EQ(settings({"a:lr_scale=0.5", "b:lr_scale=0.25"}), "lr_scale=0.25");
  EXPECT_EQ(settings({"a:lr_scale=0.5,weight_decay=1", "b:lr=2"}), "lr=2, weight_decay=1");
  EXPECT_EQ(settings({"a:lr=2", "b:lr_scale=0.5"}), "lr=2, lr_scale=0.5");
  EXPECT_EQ(settings({"a:lr=2,lr_scale=0.5", "b:muon=0", "c:weight_decay=3"}),
            "lr=2, lr_scale=0.5, weight_decay=3, muon=0");
  EXPECT_EQ(settings({}), "");
}

}  // namespace
}  // namespace pipeshard
