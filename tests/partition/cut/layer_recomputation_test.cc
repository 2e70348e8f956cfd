// What runs again layer by layer, and what selective recomputation keeps.
#include "partition/cut/layer_recomputation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "partition/cut/node_stages.h"
#include "tests/sharding/stage_models.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;

// x w0 -> a; then, as the second layer, Tanh -> n, n w1 -> u, Tanh -> g, g w2 -> y; then Tanh and the loss.
// The gradient of Tanh reads what Tanh made.
class LayerRecomputations : public ::testing::Test {
 protected:
  LayerRecomputations() {
    const Shape shape = {16, 64};
    const ValueId x = model_.input("x", shape);
    const auto product = [&](ValueId value, const std::string& weight) {
      return model_.op("MatMul", {value, model_.parameter(weight, {64, 64})}, shape);
    };
    a_ = product(x, "w0");
    n_ = model_.op("Tanh", {a_}, shape);
    u_ = product(n_, "w1");
    g_ = model_.op("Tanh", {u_}, shape);
    y_ = product(g_, "w2");
    const ValueId last = model_.op("Tanh", {y_}, shape);
    training_ = model_.finish(model_.op("ReduceSum", {last}, {}, {{"keepdims", int64_t{0}}}));
    Plan plan;
    plan.layers = {{"", "", 0, 0}, {"", "", 1, 4}, {"", "", 5, std::ssize(forwardNodes(training_)) - 1}};
    plan.stages.push_back({LayerId(0), LayerId(2), {RankId(0)}});
    layers_ = nodeLayers(training_, plan, nodeStages(training_, plan));
  }

  std::vector<bool> again(const LayerRecomputation& recomputation) const {
    std::vector<bool> nodes;
    for (const NodeId node : forwardNodes(training_)) nodes.push_back(recomputation.again[node.index()]);
    nodes.resize(5);
    return nodes;
  }
  std::vector<bool> kept(const LayerRecomputation& recomputation) const {
    std::vector<bool> values;
    for (const ValueId value : {a_, n_, u_, g_, y_}) values.push_back(recomputation.kept[value.index()]);
    return values;
  }

  testing::StageModel model_;
  ValueId a_, n_, u_, g_, y_;
  TrainingGraph training_;
  std::vector<LayerId> layers_;
};

TEST_F(LayerRecomputations, ByLayersAllRunsAgainThatTheLayerItselfReads) {
  const LayerRecomputation found = recomputationByLayers(training_, layers_);
  EXPECT_THAT(again(found), ElementsAre(false, true, true, true, false));
  EXPECT_THAT(kept(found), ElementsAre(false, false, false, false, false));
}

TEST_F(LayerRecomputations, SelectivelyProductsAreKept) {
  const LayerRecomputation found = selectiveRecomputation(training_, layers_);
  EXPECT_THAT(again(found), ElementsAre(false, true, false, true, false));
  EXPECT_THAT(kept(found), ElementsAre(false, false, true, false, false));
}

// As one layer nothing is handed on: the first product is needed, and the last one.
TEST_F(LayerRecomputations, InOneLayerWhatItMakesIsReadByItself) {
  const std::vector<LayerId> one(layers_.size(), LayerId(0));
  EXPECT_THAT(again(selectiveRecomputation(training_, one)), ElementsAre(false, true, false, true, false));
  EXPECT_THAT(kept(selectiveRecomputation(training_, one)), ElementsAre(true, false, true, false, true));
  EXPECT_THAT(again(recomputationByLayers(training_, one)), ElementsAre(true, true, true, true, true));
}

}  // namespace
}  // namespace pipeshard
