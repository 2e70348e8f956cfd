// Attention against its definition, row by row, and its gradients against differences: sizes of several
// blocks, wholly masked rows, threads, refusals.
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/operators/attention_form.h"
#include "tests/runtime/kernels/kernel_call.h"

namespace pipeshard::testing {
namespace {

using ::testing::HasSubstr;

constexpr auto kF64 = DataType::kFloat64;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLowest = -3.4028234663852886e38;

struct Sizes {
  int64_t heads, queries, keys, width, value_width;
  int64_t group = 1;  // heads that have the same keys and values
  Shape query() const { return of(group, queries, width); }
  Shape key() const { return of(1, keys, width); }
  Shape value() const { return of(1, keys, value_width); }
  Shape row() const { return of(group, queries, 1); }
  Shape output() const { return of(group, queries, value_width); }
  Shape scores() const { return of(group, queries, keys); }

 private:
  Shape of(int64_t of_group, int64_t rows, int64_t columns) const {
    if (group == 1) return {heads, rows, columns};
    return {heads / group, of_group, rows, columns};
  }
};

Tensor number(double value) { return makeTensor<double>({}, {value}); }

// Key j is seen by query i.
Tensor maskOf(const Sizes& s, const std::function<bool(int64_t, int64_t)>& seen) {
  Tensor mask{DataType::kBool, {s.queries, s.keys}, std::vector<std::byte>(s.queries * s.keys)};
  for (int64_t i = 0; i < s.queries; ++i) {
    for (int64_t j = 0; j < s.keys; ++j) mask.bytes[i * s.keys + j] = std::byte(seen(i, j));
  }
  return mask;
}
bool isCausal(int64_t i, int64_t j) { return j <= i; }

// Dropout.
constexpr double kFactor = 1.25;
bool isKept(int64_t i, int64_t j) { return (7 * i + 3 * j) % 5 != 0; }

struct Problem {
  Sizes sizes;
  std::vector<std::optional<Tensor>> inputs;  // of Attention
  std::map<std::string, Attribute> attributes;
  AttentionForm form;
};

Problem problemOf(const Sizes& s, const std::string& overlays, const Tensor& mask, double fill,
                  bool safe = false) {
  Problem problem;
  problem.sizes = s;
  problem.attributes = {{"overlays", overlays}, {"nan_to_zero", int64_t{safe}}};
  problem.form = attentionForm(overlays, safe, false);
  problem.inputs = {randomTensor(kF64, s.query(), 1), randomTensor(kF64, s.key(), 2),
                    randomTensor(kF64, s.value(), 3), number(0.6)};
  problem.inputs.resize(problem.form.inputs);
  if (problem.form.mask >= 0) {
    problem.inputs[problem.form.mask] = mask;
    problem.inputs[problem.form.fill()] = number(fill);
  }
  if (problem.form.bias >= 0) problem.inputs[problem.form.bias] = randomTensor(kF64, s.scores(), 4);
  if (problem.form.second_bias >= 0)
    problem.inputs[problem.form.second_bias] = randomTensor(kF64, {s.queries, s.keys}, 6);
  if (problem.form.keep >= 0) {
    problem.inputs[problem.form.keep] = maskOf(s, isKept);
    problem.inputs[problem.form.factor()] = number(kFactor);
  }
  return problem;
}

KernelCall forwardOf(const Problem& problem) {
  const Sizes& s = problem.sizes;
  return makeCall("pipeshard", "Attention", 1, problem.inputs,
                  {{kF64, s.output()}, {kF64, s.row()}, {kF64, s.row()}}, problem.attributes);
}

KernelCall gradientOf(const Problem& problem, const std::string& op, const Tensor& dy,
                      const std::vector<OutputSpec>& outputs) {
  const std::vector<Tensor> forward = runKernel(forwardOf(problem));
  std::vector<std::optional<Tensor>> inputs = {dy, forward[1], forward[2]};
  inputs.insert(inputs.end(), problem.inputs.begin(), problem.inputs.end());
  return makeCall("pipeshard", op, 1, inputs, outputs, problem.attributes);
}

// By definition: scores of one row.
std::vector<double> scoresOfRow(const Problem& problem, int64_t head, int64_t query) {
  const Sizes& s = problem.sizes;
  const auto given = [&](int input) { return elementsOf<double>(*problem.inputs[input]); };
  const std::vector<double> q = given(0), k = given(1);
  std::vector<std::vector<double>> biases;
  for (const int bias : problem.form.biases()) biases.push_back(given(bias));
  std::vector<double> scores;
  for (int64_t j = 0; j < s.keys; ++j) {
    double product = 0;
    for (int64_t d = 0; d < s.width; ++d)
      product += q[(head * s.queries + query) * s.width + d] * k[(head / s.group * s.keys + j) * s.width + d];
    double score = 0.6 * product;
    double added = 0;
    for (const auto& bias : biases) added += bias[((head * s.queries + query) * s.keys + j) % bias.size()];
    if (problem.form.biasFirst()) score += added;
    if (problem.form.mask >= 0 &&
        problem.inputs[problem.form.mask]->bytes[query * s.keys + j] == std::byte(0))
      score = given(problem.form.fill())[0];
    if (!problem.form.biasFirst()) score += added;
    scores.push_back(score);
  }
  return scores;
}

std::vector<double> byDefinition(const Problem& problem) {
  const Sizes& s = problem.sizes;
  const std::vector<double> v = elementsOf<double>(*problem.inputs[2]);
  std::vector<double> y;
  for (int64_t head = 0; head < s.heads; ++head) {
    for (int64_t i = 0; i < s.queries; ++i) {
      std::vector<double> p = scoresOfRow(problem, head, i);
      const double most = *std::max_element(p.begin(), p.end());
      double sum = 0;
      for (double& x : p) sum += x = std::exp(x - most);
      for (int64_t j = 0; problem.form.keep >= 0 && j < s.keys; ++j) p[j] *= isKept(i, j) ? kFactor : 0;
      for (int64_t e = 0; e < s.value_width; ++e) {
        double total = 0;
        for (int64_t j = 0; j < s.keys; ++j)
          total += p[j] / sum * v[(head / s.group * s.keys + j) * s.value_width + e];
        y.push_back(total);
      }
    }
  }
  return y;
}

void expectNear(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::abs(want[i]))) << "element " << i;
}

KernelCall inFloat32(KernelCall call) {
  for (auto& tensor : call.inputs) {
    if (tensor->type == kF64) tensor = convertTensor(*tensor, DataType::kFloat32);
  }
  for (OutputSpec& output : call.outputs) output.type = DataType::kFloat32;
  return call;
}

// Less than one block of queries, several with a rest, and keys so many that blocks are small.
// Heads in groups.
const std::vector<Sizes> kSizes = {{2, 7, 5, 3, 4}, {2, 200, 70, 8, 6},  {1, 40, 4200, 2, 3},
                                   {5, 1, 1, 1, 1}, {6, 70, 9, 3, 2, 3}, {2, 200, 70, 8, 6, 2}};

// Long ones take their time: fewer of them.
std::vector<std::string> overlaysFor(const Sizes& s) {
  if (s.keys > 1000) return {"", "mask_bias", "bias_bias_mask"};
  if (s.queries > 100) return {"", "mask", "mask_bias", "bias_mask", "bias_bias", "mask_drop"};
  return attentionOverlays();
}

TEST(AttentionKernel, IsItsDefinition) {
  for (const Sizes& s : kSizes) {
    for (const std::string& overlays : overlaysFor(s)) {
      for (const double fill : {-1e9, kLowest, -kInfinity}) {
        SCOPED_TRACE(fmt::format("{} queries, '{}', {}", s.queries, overlays, fill));
        const Problem problem = problemOf(s, overlays, maskOf(s, isCausal), fill);
        const std::vector<double> want = byDefinition(problem);
        expectNear(numbersOf(runOnOneAndTwoThreads(forwardOf(problem))[0]), want, 1e-13);
        expectNear(numbersOf(runOnOneAndTwoThreads(inFloat32(forwardOf(problem)))[0]), want, 2e-5);
      }
    }
  }
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// d <dy, y> in the direction of a random change of one input, by central differences.
double slopeAlong(Problem problem, size_t input, const std::vector<double>& direction,
                  const std::vector<double>& dy) {
  constexpr double kStep = 1e-6;
  const std::vector<double> center = elementsOf<double>(*problem.inputs[input]);
  const auto moved = [&](double step) {
    std::vector<double> elements = center;
    for (size_t i = 0; i < elements.size(); ++i) elements[i] += step * direction[i];
    problem.inputs[input] = makeTensor<double>(problem.inputs[input]->shape, elements);
    return dot(numbersOf(runKernel(forwardOf(problem))[0]), dy);
  };
  return (moved(kStep) - moved(-kStep)) / (2 * kStep);
}

void expectSlopes(const Problem& problem) {
  const Sizes& s = problem.sizes;
  const Tensor dy = randomTensor(kF64, s.output(), 5);
  const auto check = [&](const Tensor& gradient, size_t input) {
    for (uint64_t seed = 20; seed < 23; ++seed) {
      const std::vector<double> direction = randomNumbers(numbersOf(gradient).size(), seed);
      const double want = slopeAlong(problem, input, direction, numbersOf(dy));
      EXPECT_NEAR(dot(numbersOf(gradient), direction), want, 1e-7 * (1 + std::abs(want)))
          << "input " << input;
    }
  };
  const KernelCall all =
      gradientOf(problem, "AttentionGrad", dy, {{kF64, s.query()}, {kF64, s.key()}, {kF64, s.value()}});
  const std::vector<Tensor> gradients = runOnOneAndTwoThreads(all);
  for (size_t input = 0; input < 3; ++input) check(gradients[input], input);
  const std::vector<Tensor> narrow = runOnOneAndTwoThreads(inFloat32(all));
  for (size_t input = 0; input < 3; ++input)
    expectNear(numbersOf(narrow[input]), numbersOf(gradients[input]), 1e-4);
  if (problem.form.bias < 0) return;
  const std::vector<Tensor> scores =
      runOnOneAndTwoThreads(gradientOf(problem, "AttentionScoresGrad", dy, {{kF64, s.scores()}}));
  check(scores[0], problem.form.bias);
}

TEST(AttentionKernel, GradientsAreSlopes) {
  for (const Sizes& s : kSizes) {
    for (const std::string& overlays : overlaysFor(s)) {
      for (const double fill : {-1e9, kLowest}) {
        SCOPED_TRACE(fmt::format("{} queries, '{}', {}", s.queries, overlays, fill));
        expectSlopes(problemOf(s, overlays, maskOf(s, isCausal), fill));
      }
    }
  }
}

// A fill that is no end of the scale takes part in the softmax, and rows that see nothing are even.
TEST(AttentionKernel, FillsAreScores) {
  const Sizes s = {2, 9, 11, 4, 3};
  const Tensor mask = maskOf(s, [](int64_t i, int64_t j) { return i != 4 && (i + j) % 3 != 0; });
  for (const double fill : {0.25, kLowest}) {
    for (const char* overlays : {"mask", "bias_mask", "mask_bias"}) {
      const Problem problem = problemOf(s, overlays, mask, fill);
      expectNear(numbersOf(runKernel(forwardOf(problem))[0]), byDefinition(problem), 1e-13);
      if (fill == 0.25) expectSlopes(problem);  // differences of the other are lost in it
    }
  }
}

// A window of keys per query, chosen by what is added.
Tensor windowOf(const Sizes& s, double hidden) {
  std::vector<double> elements;
  for (int64_t row = 0; row < s.heads * s.queries; ++row) {
    const int64_t first = row % s.queries / 2;
    for (int64_t j = 0; j < s.keys; ++j)
      elements.push_back(j < first || j > first + 3 ? hidden : 0.125 * static_cast<double>(j % 3));
  }
  return makeTensor<double>(s.scores(), elements);
}

// Keys that no query of a block sees are left out: the same probabilities, unless the products are as large
// as what hides them, or what is hidden is no number.
TEST(AttentionKernel, HiddenKeysAreLeftOut) {
  const Sizes s = {2, 300, 160, 4, 3};
  for (const double hidden : {kLowest, -kInfinity, -1e9}) {
    Problem problem = problemOf(s, "bias", {}, 0);
    problem.inputs[problem.form.bias] = windowOf(s, hidden);
    expectNear(numbersOf(runOnOneAndTwoThreads(forwardOf(problem))[0]), byDefinition(problem), 1e-13);
    if (hidden != -kInfinity) expectSlopes(problem);
    std::vector<double> queries = elementsOf<double>(*problem.inputs[0]);
    for (size_t i = 0; i < queries.size(); i += 3) queries[i] *= 1e39;
    problem.inputs[0] = makeTensor<double>(s.query(), queries);
    expectNear(numbersOf(runKernel(forwardOf(problem))[0]), byDefinition(problem), 1e-13);
  }
}

TEST(AttentionKernel, WhatIsNoNumberIsSeenBehindAMask) {
  const Sizes s = {1, 300, 160, 4, 3};
  for (const size_t input : {1, 2}) {
    Problem problem = problemOf(s, "mask", maskOf(s, isCausal), -kInfinity);
    std::vector<double> elements = elementsOf<double>(*problem.inputs[input]);
    elements.back() = std::nan("");
    problem.inputs[input] = makeTensor<double>(problem.inputs[input]->shape, elements);
    const std::vector<double> got = numbersOf(runKernel(forwardOf(problem))[0]);
    const std::vector<double> want = byDefinition(problem);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(std::isnan(got[i]), std::isnan(want[i])) << i;
  }
}

// What a softmax over nothing is, NaN, or 0 where that is asked for; gradients then are 0, too.
TEST(AttentionKernel, RowsThatSeeNothingAreNanOrZero) {
  const Sizes s = {2, 9, 11, 4, 3};
  const Tensor mask = maskOf(s, [](int64_t i, int64_t) { return i != 4; });
  const Tensor dy = randomTensor(kF64, s.output(), 5);
  for (const bool safe : {false, true}) {
    const Problem problem = problemOf(s, "mask", mask, -kInfinity, safe);
    const std::vector<double> y = numbersOf(runKernel(forwardOf(problem))[0]);
    for (size_t i = 0; i < y.size(); ++i) {
      const bool sees = i / s.value_width % s.queries != 4;
      EXPECT_TRUE(sees ? std::isfinite(y[i]) : safe ? y[i] == 0 : std::isnan(y[i])) << i;
    }
    if (!safe) continue;
    const std::vector<Tensor> gradients = runKernel(
        gradientOf(problem, "AttentionGrad", dy, {{kF64, s.query()}, {kF64, s.key()}, {kF64, s.value()}}));
    for (const Tensor& gradient : gradients) {
      for (const double x : numbersOf(gradient)) ASSERT_TRUE(std::isfinite(x));
    }
    for (int64_t d = 0; d < s.width; ++d) EXPECT_EQ(numbersOf(gradients[0])[4 * s.width + d], 0);
  }
}

// A second bias that hides keys, alone, beside one that hides others, and beside one that brings them back.
TEST(AttentionKernel, KeysAreHiddenByTwoBiases) {
  const Sizes s = {2, 300, 160, 4, 3};
  const Tensor window = windowOf(s, kLowest);
  std::vector<double> last_hidden(s.keys), back(s.keys, 3e38);
  for (int64_t j = 120; j < s.keys; ++j) last_hidden[j] = kLowest;
  for (const auto& first : {randomTensor(kF64, {s.queries, s.keys}, 9),
                            makeTensor<double>({s.keys}, last_hidden), makeTensor<double>({s.keys}, back)}) {
    for (const char* overlays : {"bias_bias", "mask_bias_bias", "bias_bias_mask"}) {
      Problem problem =
          problemOf(s, overlays, maskOf(s, [](int64_t, int64_t j) { return j != 3; }), -kInfinity);
      problem.inputs[problem.form.bias] = first;
      problem.inputs[problem.form.second_bias] = window;
      expectNear(numbersOf(runOnOneAndTwoThreads(forwardOf(problem))[0]), byDefinition(problem), 1e-13);
    }
  }
}

// Threads share the blocks of a head where there are few heads: the same bits as one thread a head. Waves of
// blocks end within heads.
TEST(AttentionKernel, FewHeadsGiveTheSameBitsOnAnyThreads) {
  for (const Sizes& s :
       std::vector<Sizes>{{1, 1300, 300, 8, 6}, {3, 500, 290, 4, 3}, {6, 300, 520, 4, 3, 2}}) {
    for (const char* overlays : {"", "mask_drop"}) {
      const Problem problem = problemOf(s, overlays, maskOf(s, isCausal), kLowest);
      const KernelCall call = gradientOf(problem, "AttentionGrad", randomTensor(kF64, s.output(), 5),
                                         {{kF64, s.query()}, {kF64, s.key()}, {kF64, s.value()}});
      runOnThreads(call, {1, 2, 4, 16});
      runOnThreads(inFloat32(call), {1, 2, 4, 16});
    }
    expectSlopes(problemOf(s, "mask", maskOf(s, isCausal), kLowest));
  }
}

// Only what is asked for is computed.
TEST(AttentionKernel, GradientsMayBeLeftOut) {
  const Sizes s = {2, 7, 5, 3, 4};
  const Problem problem = problemOf(s, "", {}, 0);
  const Tensor dy = randomTensor(kF64, s.output(), 5);
  const std::vector<OutputSpec> all = {{kF64, s.query()}, {kF64, s.key()}, {kF64, s.value()}};
  const std::vector<Tensor> whole = runKernel(gradientOf(problem, "AttentionGrad", dy, all));
  for (size_t left_out = 0; left_out < 3; ++left_out) {
    std::vector<OutputSpec> outputs = all;
    outputs[left_out] = {};
    const std::vector<Tensor> some = runKernel(gradientOf(problem, "AttentionGrad", dy, outputs));
    for (size_t o = 0; o < 3; ++o) {
      if (o == left_out) continue;
      EXPECT_EQ(some[o].bytes, whole[o].bytes);
    }
  }
}

// Swin's masks: exp(-100) is a denormal number of float32, which slows the products behind it tenfold.
TEST(AttentionKernel, HasNoDenormalNumbersWhereAMaskIsMinusAHundred) {
  const Sizes s = {2, 7, 5, 3, 4};
  Problem problem = problemOf(s, "bias", {}, 0);
  std::vector<double> bias = elementsOf<double>(*problem.inputs[4]);
  for (size_t i = 4; i < bias.size(); i += s.keys) bias[i] = -100;  // of the last key
  problem.inputs[4] = makeTensor<double>(s.scores(), bias);
  const auto narrow = [](KernelCall call) {
    for (auto& tensor : call.inputs) tensor = convertTensor(*tensor, DataType::kFloat32);
    for (OutputSpec& output : call.outputs) output.type = DataType::kFloat32;
    return call;
  };
  const std::vector<double> want = byDefinition(problem);
  const std::vector<double> got = numbersOf(runKernel(narrow(forwardOf(problem)))[0]);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6);

  const Tensor dy = randomTensor(kF64, s.output(), 5);
  const std::vector<OutputSpec> outputs = {{kF64, s.query()}, {kF64, s.key()}, {kF64, s.value()}};
  const std::vector<double> of_values =
      numbersOf(runKernel(narrow(gradientOf(problem, "AttentionGrad", dy, outputs)))[2]);
  for (int64_t head = 0; head < s.heads; ++head) {
    for (int64_t e = 0; e < s.value_width; ++e)
      EXPECT_EQ(of_values[(head * s.keys + 4) * s.value_width + e], 0);
  }
}

TEST(AttentionKernel, RefusesWhatDoesNotFit) {
  const Sizes s = {2, 7, 5, 3, 4};
  const Problem good = problemOf(s, "mask_bias", maskOf(s, isCausal), -1);
  const auto refused = [&](size_t input, const Tensor& tensor) {
    Problem bad = good;
    bad.inputs[input] = tensor;
    return refusalOf([&] { createKernel(forwardOf(bad)); });
  };
  EXPECT_THAT(refused(1, randomTensor(kF64, {2, 5, 4}, 1)), HasSubstr("input 1 has shape"));
  EXPECT_THAT(refused(2, randomTensor(kF64, {2, 6, 4}, 1)), HasSubstr("input 2 has shape"));
  EXPECT_THAT(refused(2, randomTensor(kF64, {5, 4}, 1)), HasSubstr("as many axes each"));
  EXPECT_THAT(refused(3, randomTensor(kF64, {2}, 1)), HasSubstr("it must be one number"));
  EXPECT_THAT(refused(4, randomTensor(kF64, {7, 5}, 1)), HasSubstr("needs bool"));
  EXPECT_THAT(refused(6, randomTensor(kF64, {7, 4}, 1)), HasSubstr("cannot be broadcast to the scores'"));
  Problem fewer = good;
  fewer.inputs.pop_back();
  EXPECT_THAT(refusalOf([&] { createKernel(forwardOf(fewer)); }), HasSubstr("these overlays need 7"));
  fewer.attributes["overlays"] = std::string("causal");
  EXPECT_THAT(refusalOf([&] { createKernel(forwardOf(fewer)); }),
              HasSubstr("attribute overlays is 'causal'"));
}

}  // namespace
}  // namespace pipeshard::testing
