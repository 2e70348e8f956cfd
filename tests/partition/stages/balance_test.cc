// Balancing by parameters, by modules and by lists; modules of operators; weighted stages against brute
// force.
#include "partition/stages/balance.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/graph/exporter_marks.h"
#include "partition/layers/modules.h"
#include "partition/stages/stages.h"
#include "tests/partition/training_builder.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename F>
void expectError(F&& f, ErrorCode code, const std::string& message) {
  try {
    f();
    ADD_FAILURE() << "accepted; expected " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_THAT(error.message(), HasSubstr(message));
  }
}

// ---- assignStages against all contiguous partitions ----

// What assignStages minimises, in its order, and the cuts. Weights and widths in the tests are small and
// widths divide 12, so that weight * 12 / width is exact.
using Score = std::tuple<int64_t, int64_t, int64_t, std::vector<LayerId>>;

std::optional<Score> score(const StageProblem& problem, const std::vector<LayerId>& last) {
  int64_t largest = 0, squares = 0, cut = 0;
  LayerId first(0);
  for (size_t s = 0; s < last.size(); ++s) {
    const int64_t weight = std::accumulate(problem.weight.begin() + first.index(),
                                           problem.weight.begin() + last[s].index() + 1, int64_t{0});
    if (weight < problem.least_weight) return std::nullopt;
    largest = std::max(largest, weight * 12 / problem.widths[s]);
    if (problem.even) squares += weight * weight * 12 / problem.widths[s];
    if (s + 1 < last.size()) cut += problem.cut_bytes[last[s]];
    first = last[s].next();
  }
  return Score{largest, squares, cut, last};
}

void enumerate(const StageProblem& problem, std::vector<LayerId>& last, std::optional<Score>& best) {
  const size_t left = problem.widths.size() - last.size();
  const LayerId latest(problem.weight.size() - left);
  const LayerId first = last.empty() ? LayerId(0) : last.back().next();
  for (LayerId l = left == 1 ? latest : first; l <= latest; ++l) {
    last.push_back(l);
    if (left > 1) {
      enumerate(problem, last, best);
    } else if (const std::optional<Score> found = score(problem, last); found && (!best || *found < *best)) {
      best = found;
    }
    last.pop_back();
  }
}

TEST(WeightedStages, AgreeWithBruteForceOverAllPartitions) {
  std::mt19937 random(11);
  constexpr int kWidths[] = {1, 1, 2, 3, 4};
  int feasible = 0;
  for (int round = 0; round < 1500; ++round) {
    StageProblem problem;
    const size_t layers = 1 + random() % 9;
    for (size_t i = 0; i < layers; ++i) {
      problem.weight.push_back(random() % 5);
      problem.cut_bytes.push_back(random() % 4);
    }
    const size_t stages = 1 + random() % layers;
    for (size_t s = 0; s < stages; ++s) problem.widths.push_back(kWidths[random() % 5]);
    problem.even = random() % 2 == 0;
    problem.least_weight = random() % 2;
    std::optional<Score> best;
    std::vector<LayerId> last;
    enumerate(problem, last, best);
    if (!best) continue;
    ++feasible;
    EXPECT_EQ(score(problem, assignStages(problem)), best) << "round " << round;
  }
  EXPECT_GT(feasible, 900);
}

TEST(WeightedStages, GiveAWideStageMore) {
  EXPECT_THAT(
      positionsOf(assignStages({.weight = {1, 1, 1, 1}, .cut_bytes = {1, 1, 1, 0}, .widths = {1, 3}})),
      ElementsAre(0, 3));
  EXPECT_THAT(
      positionsOf(assignStages({.weight = {1, 1, 1, 1}, .cut_bytes = {1, 1, 1, 0}, .widths = {3, 1}})),
      ElementsAre(2, 3));
}

TEST(WeightedStages, LeaveNoStageEmptyWhereEvenIsPossible) {
  // Five equal blocks between layers without weight: one stage has two and none has none, even where a cheap
  // cut tempts.
  const std::vector<LayerId> last = assignStages({.weight = {0, 1, 1, 1, 1, 1, 0},
                                                  .cut_bytes = {0, 9, 9, 9, 9, 0, 0},
                                                  .widths = {1, 1, 1, 1},
                                                  .even = true,
                                                  .least_weight = 1});
  EXPECT_THAT(positionsOf(last), ElementsAre(1, 2, 3, 6));
}

TEST(WeightedStages, DoNotOverflowOnLargeParameters) {
  const int64_t huge = int64_t{1} << 50;
  const StageProblem problem{
      .weight = {huge, 1, 1, huge}, .cut_bytes = {1, 1, 1, 0}, .widths = {1, 1}, .even = true};
  EXPECT_THAT(positionsOf(assignStages(problem)), ElementsAre(1, 3));
}

// ---- modules ----

Node nodeIn(const std::string& scopes, const std::string& classes) {
  Node node;
  node.metadata = {{"pkg.torch.onnx.class_hierarchy", classes}, {"pkg.torch.onnx.name_scopes", scopes}};
  return node;
}

std::string describe(const std::vector<ModuleScope>& scopes) {
  std::string text;
  for (const ModuleScope& scope : scopes) text += scope.path + ":" + scope.type + " ";
  return text;
}

TEST(ModuleScopes, AreReadFromBothExportersOfPyTorch) {
  EXPECT_EQ(
      describe(moduleScopes(nodeIn("['', 'transformer', 'transformer.h.0', 'add']",
                                   "['models.GPT2', 'a.b.GPT2Model', 'a.b.GPT2Block', 'aten.add.Tensor']"))),
      "transformer:GPT2Model transformer.h.0:GPT2Block ");
  EXPECT_EQ(describe(moduleScopes(nodeIn("['_empty_nn_module_stack_from_metadata_hook', 'sym_size']", ""))),
            "");
  EXPECT_EQ(describe(moduleScopes(nodeIn("['', \"it's\", 'add']", ""))), "it's: ");
  EXPECT_EQ(describe(moduleScopes(nodeIn("['unfinished", ""))), "");
  Node torchscript;
  torchscript.name = "/transformer/h.0/attn/MatMul_1";
  EXPECT_EQ(describe(moduleScopes(torchscript)), "transformer: transformer.h.0: transformer.h.0.attn: ");
  Node plain;
  plain.name = "node_cross_entropy_loss/mean";
  EXPECT_EQ(describe(moduleScopes(plain)), "");
}

// embed, then three blocks of two nodes, then the loss: the exporter's metadata on a chain.
TrainingGraph blocks() {
  TrainingGraph training = chainTraining(7, 1);
  for (int i = 1; i <= 6; ++i) {
    const std::string path = "net.layers." + std::to_string((i - 1) / 2);
    training.graph.nodes[i].metadata = nodeIn("['', 'net', '" + path + "', '" + path + ".fc', 'mm']",
                                              "['Top', 'x.Net', 'x.Block', 'torch.nn.Linear', 'aten.mm']")
                                           .metadata;
  }
  return training;
}

std::vector<int> unitsOf(const std::string& pattern) {
  const TrainingGraph training = blocks();
  return matchModules(training.graph, chainOf(training).nodes, pattern).unit;
}

TEST(MatchModules, CountsTheOutermostMatchingModuleOnce) {
  EXPECT_THAT(unitsOf("block"), ElementsAre(-1, 0, 0, 1, 1, 2, 2, -1));
  EXPECT_THAT(unitsOf("LAYERS\\.\\d+$"), ElementsAre(-1, 0, 0, 1, 1, 2, 2, -1));
  EXPECT_THAT(unitsOf("layers\\.[12]"), ElementsAre(-1, -1, -1, 0, 0, 1, 1, -1));
  EXPECT_THAT(unitsOf("^Net$"), ElementsAre(-1, 0, 0, 0, 0, 0, 0, -1));
  EXPECT_THAT(unitsOf("Loss"), ElementsAre(-1, -1, -1, -1, -1, -1, -1, 0));  // an operator's type
  EXPECT_THAT(unitsOf("^node_h0$|linear"), ElementsAre(0, 1, 1, 2, 2, 3, 3, -1));
}

TEST(MatchModules, SaysWhatThereIsWhenNothingMatches) {
  expectError([] { unitsOf("decoder"); }, ErrorCode::kConfiguration,
              "--balance type:decoder matches no module and no operator; there are modules Block (3), Linear "
              "(3), Net");
  const TrainingGraph plain = chainTraining(2, 1);
  expectError([&] { matchModules(plain.graph, chainOf(plain).nodes, "decoder"); }, ErrorCode::kConfiguration,
              "no modules are recorded, operator types are Loss, Op (2)");
  expectError([] { unitsOf("h.[0"); }, ErrorCode::kUsage, "--balance type:h.[0 is no regular expression: ");
  expectError([] { unitsOf(""); }, ErrorCode::kUsage, "needs a regular expression");
}

TEST(UnitLayers, StartWhereAUnitStartsAndEndBehindIt) {
  const auto text = [](const std::vector<int>& unit) {
    const UnitLayers layers = unitLayers(unit);
    std::string result;
    for (const LayerId layer : layers.ends.ids())
      result += std::to_string(layers.ends[layer]) + ":" + std::to_string(layers.weights[layer]) + " ";
    return result;
  };
  EXPECT_EQ(text({-1, 0, 0, 1, 1, -1}), "0:0 2:1 4:1 5:0 ");
  EXPECT_EQ(text({0, -1, 0, -1, 1}), "2:1 3:0 4:1 ");
  EXPECT_EQ(text({0, 1, 0, 2}), "0:1 2:1 3:1 ");  // interleaved: each counts once, where it first appears
  EXPECT_EQ(text({-1, -1}), "1:0 ");
  EXPECT_EQ(text({0}), "0:1 ");
}

// ---- parseBalance and balanceStages ----

TEST(ParseBalance, ReadsEveryForm) {
  EXPECT_EQ(parseBalance("flops").kind, Balance::Kind::kFlops);
  EXPECT_EQ(parseBalance("parameters").kind, Balance::Kind::kParameters);
  EXPECT_EQ(parseBalance("type:h\\.\\d+,3").pattern, "h\\.\\d+,3");
  EXPECT_THAT(parseBalance("3,5,5,1").counts, ElementsAre(3, 5, 5, 1));
  EXPECT_THAT(parseBalance("7").counts, ElementsAre(7));
  for (const char* text : {"flops", "time", "size", "parameters", "type:h\\.\\d+,3", "3,5,5,1", "7"})
    EXPECT_EQ(balanceToString(parseBalance(text)), text);
}

TEST(ParseBalance, RefusesAnythingElseAndListsTheForms) {
  for (const char* text : {"", "even", "flop", "3,", ",3", "3,,5", "3,0", "3,-1", "3 5", "3;5", "[3,5]",
                           "uniform", "99999999999", "1.5"}) {
    expectError([&] { parseBalance(text); }, ErrorCode::kUsage,
                "is not understood; write flops, time, size, parameters, type:REGEX (modules or operators "
                "that match");
  }
}

Cuts balance(const TrainingGraph& training, const std::string& text, const std::vector<int>& widths,
             int layers = 0) {
  return balanceStages(chainOf(training), parseBalance(text), widths, layers);
}

// Six nodes; the first and the last three read a parameter each.
TrainingGraph fourParameters(int states) {
  TrainingBuilder builder(1);
  ValueId last = builder.input("x");
  for (int i = 0; i < 6; ++i) {
    std::vector<ValueId> inputs = {last};
    if (i == 0 || i > 2) inputs.push_back(builder.parameter("w" + std::to_string(i)));
    last = builder.op("h" + std::to_string(i), inputs);
  }
  return builder.finish({last}, states);
}

// A heavy last layer, as an output projection is one, decides the largest stage. The others are even all the
// same, where cheap cuts would make stages of 1, 1 and 4 layers.
TEST(BalanceStages, ByFlopsIsEvenWhereOneStageIsTheLargestAnyway) {
  const TrainingGraph training = fourParameters(0);
  Chain chain = chainOf(training);
  ASSERT_EQ(chain.count(), 7);
  chain.flops = {1, 1, 1, 1, 1, 1, 6};
  chain.backward_flops = {2, 2, 2, 2, 2, 2, 12};
  chain.cut_bytes = {1, 1, 9, 9, 9, 1, 0};
  const auto stage_ends = [&](const char* text) {
    return positionsOf(balanceStages(chain, parseBalance(text), {1, 1, 1, 1}, 7).stage_ends);
  };
  EXPECT_THAT(stage_ends("flops"), ElementsAre(1, 3, 5, 6));
}

TEST(BalanceStages, ByParametersPutsEqualBytesOnStages) {
  TrainingBuilder builder(1);
  ValueId last = builder.input("x");
  for (int i = 0; i < 6; ++i) {  // three parameters on the first node, one on each of the last three
    std::vector<ValueId> inputs = {last};
    for (int p = 0; p < (i == 0 ? 3 : i < 3 ? 0 : 1); ++p)
      inputs.push_back(builder.parameter(std::to_string(i) + "." + std::to_string(p)));
    last = builder.op("h" + std::to_string(i), inputs);
  }
  const TrainingGraph training = builder.finish({last});
  const Cuts cuts = balance(training, "parameters", {1, 1}, 7);
  EXPECT_THAT(cuts.layer_ends, ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(positionsOf(cuts.stage_ends), ElementsAre(0, 6));  // 3 + 3 parameters
  EXPECT_THAT(positionsOf(balance(training, "flops", {1, 1}, 7).stage_ends), ElementsAre(2, 6));
  // The first parameters decide the largest stage; the others are even all the same.
  EXPECT_THAT(positionsOf(balance(training, "parameters", {1, 1, 1, 1}, 7).stage_ends),
              ElementsAre(0, 3, 4, 6));
}

TEST(BalanceStages, ByParametersCountsASharedParameterOnce) {
  TrainingBuilder builder(1);
  const ValueId shared = builder.parameter("shared");
  const ValueId a = builder.op("a", {builder.input("x"), shared});
  const ValueId b = builder.op("b", {a, builder.parameter("w")});
  const TrainingGraph training = builder.finish({builder.op("c", {b, shared})});
  EXPECT_THAT(chainOf(training).parameter_bytes, ElementsAre(24, 24, 0, 0));
}

TEST(BalanceStages, BySizeCountsParametersWithTheirStatesAndWhatTheBackwardPassReads) {
  const TrainingGraph training = fourParameters(2);
  const Chain chain = chainOf(training);
  const std::vector<int64_t> sizes = nodeSizes(chain);
  ASSERT_EQ(sizes.size(), 7U);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const ValueId output = training.graph.node(chain.nodes[i]).outputs[0];
    bool read_again = false;
    for (size_t n = 0; n < training.graph.nodes.size(); ++n) {
      const std::vector<ValueId>& inputs = training.graph.nodes[n].inputs;
      const bool is_backward =
          training.node_phase[n] == Phase::kBackwardInput || training.node_phase[n] == Phase::kBackwardWeight;
      read_again =
          read_again || (is_backward && std::find(inputs.begin(), inputs.end(), output) != inputs.end());
    }
    // 24 bytes of value, gradient and two states each; 24 of an activation.
    const int64_t parameter = chain.parameter_bytes[i] * 4;
    EXPECT_EQ(sizes[i], parameter + (read_again ? training.graph.bytes(output) : 0)) << i;
  }
  // some activations are read again
  EXPECT_GT(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), 4 * 96);
  const Cuts cuts = balance(training, "size", {1, 1}, 7);
  EXPECT_GE(cuts.stage_ends[0], LayerId(2));
}

// A device ten times as fast at everything: the balance stays; times follow.
TEST(BalanceStages, ByTimeTakesWhatTheModelSays) {
  const TrainingGraph training = fourParameters(0);
  const Chain chain = chainOf(training);
  CostModel slow, fast;
  slow.bytes_per_ns = slow.flops_per_ns = 0.001;
  fast.bytes_per_ns = fast.flops_per_ns = 0.01;
  const std::vector<int64_t> slow_times = nodeTimes(chain, slow), fast_times = nodeTimes(chain, fast);
  for (size_t i = 0; i < slow_times.size(); ++i)
    EXPECT_NEAR(static_cast<double>(slow_times[i]), 10.0 * static_cast<double>(fast_times[i]), 30) << i;
  EXPECT_GT(slow_times[5], slow_times[1]);  // a parameter is one more thing to read, and a backward node
  EXPECT_EQ(balanceStages(chain, parseBalance("time"), {1, 1}, 7, slow).stage_ends,
            balanceStages(chain, parseBalance("time"), {1, 1}, 7, fast).stage_ends);
}

TEST(BalanceStages, ByTypeSpreadsModulesEvenly) {
  const TrainingGraph training = blocks();
  const Cuts cuts = balance(training, "type:block", {1, 1, 1});
  EXPECT_THAT(cuts.layer_ends, ElementsAre(0, 2, 4, 6, 7));
  ASSERT_EQ(cuts.stage_ends.size(), 3u);
  EXPECT_EQ(balance(training, "type:block", {1, 2}).stage_ends.front(), LayerId(1));  // one block, then two
  EXPECT_EQ(balance(training, "type:block", {2, 1}).stage_ends.front(), LayerId(2));  // two blocks, then one
  expectError(
      [&] {
        balance(training, "type:block", {1, 1, 1, 1});
      },
      ErrorCode::kConfiguration,
      "--balance type:block matches 3 modules (net.layers.0, net.layers.1, net.layers.2), too few for 4 "
      "stages");
  expectError(
      [&] {
        balance(training, "type:^net$", {1, 1});
      },
      ErrorCode::kConfiguration, "matches one module (net), too few for 2 stages");
  expectError(
      [&] {
        balance(training, "type:block", {1, 1}, 4);
      },
      ErrorCode::kUsage, "--layers and --balance type:block exclude each other");
}

// A batch normalisation that is called twice: from where its running mean is read to where it is updated.
TEST(BalanceStages, KeepsAllUsesOfAStatisticInOneStage) {
  TrainingGraph training = chainTraining(7, 1);  // 8 forward nodes
  const std::vector<NodeId> forward = forwardNodes(training);
  training.forward_states.push_back(
      {training.graph.node(forward[1]).inputs[0], training.graph.node(forward[5]).outputs[0]});
  const Cuts cuts = balance(training, "flops", {1, 1});
  EXPECT_THAT(cuts.layer_ends, ElementsAre(0, 5, 6, 7));
  EXPECT_THAT(positionsOf(cuts.stage_ends), ElementsAre(1, 3));
  EXPECT_THAT(balance(training, "2,1", {1, 1}).layer_ends, ElementsAre(0, 5, 7));
  expectError(
      [&] {
        balance(training, "flops", {1, 1, 1, 1, 1});
      },
      ErrorCode::kConfiguration, "or between two calls of a batch normalization");
}

TEST(BalanceStages, ByAListGivesEachStageItsLayers) {
  const TrainingGraph training = chainTraining(7, 1);  // 8 forward nodes
  const Cuts cuts = balance(training, "3,4,1", {1, 1, 1});
  EXPECT_THAT(cuts.layer_ends, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(positionsOf(cuts.stage_ends), ElementsAre(2, 6, 7));
  EXPECT_THAT(positionsOf(balance(training, "1,3", {1, 1}, 4).stage_ends), ElementsAre(0, 3));
  expectError(
      [&] {
        balance(training, "1,3", {1, 1}, 5);
      },
      ErrorCode::kConfiguration,
      "--balance 1,3 holds 4 layers, but --layers says 5; make the numbers add up to 5");
  expectError(
      [&] {
        balance(training, "1,3", {1, 1, 1});
      },
      ErrorCode::kConfiguration, "--balance 1,3 lists 2 stages, but there are 3");
  expectError(
      [&] {
        balance(training, "5,5", {1, 1});
      },
      ErrorCode::kConfiguration, "--balance 5,5 holds 10 layers, but the model has only 8 forward nodes");
  expectError(
      [&] {
        balance(training, "2000000000,2000000000", {1, 1});
      },
      ErrorCode::kConfiguration, "holds 4000000000 layers");
}

}  // namespace
}  // namespace pipeshard
