// The losses of --loss: numbers of PyTorch 2.15 in float64, and gradients against differences.
#include <gtest/gtest.h>

#include "onnx_import/autodiff/loss.h"
#include "onnx_import/prepare/inference.h"
#include "tests/onnx_import/autodiff/gradient_check.h"

namespace pipeshard::testing {
namespace {

const std::vector<double> kScores = {0.5, -1.25, 2.0, 1.5, 0.25, -0.75, -2.0, 0.125, 3.0, 0.1, 0.2, 0.3};
const std::vector<double> kTargets = {0, 1, 0.5, 1, 0, 0.25, 1, 1, 0, 0, 0.75, 1};

// y = f(x) for a trained x, and inputs "labels" and "t". The loss, checked.
double lossOf(const std::string& text, const char* function = "") {
  TestGraph test;
  ValueId y = test.parameter("x", makeTensor({4, 3}, kScores));
  if (*function != 0) {
    y = std::string(function) == "LogSoftmax" ? test.op(function, {y}, {{"axis", int64_t{1}}})
                                              : test.op(function, {y});
  } else {
    y = test.op("Identity", {y});
  }
  test.graph().value(y).name = "y";
  test.input("t", makeTensor({4, 3}, kTargets));
  test.input("labels", makeConstant<int64_t>({4}, {2, 0, -100, 1}));
  const ValueId loss = attachLoss(test.graph(), parseLoss(text));
  inferShapes(test.graph());
  const std::string name = test.graph().value(loss).name;
  checkLossGradients(test, loss);
  return elementsOf(Interpreter(test.graph()).run(test.contents()).at(name)).at(0);
}

TEST(LossValues, AreThoseOfPyTorch) {
  EXPECT_NEAR(lossOf("cross-entropy:y,labels"), 0.5550791469128336, 1e-14);
  EXPECT_NEAR(lossOf("cross-entropy:y,labels,smoothing=0.1"), 0.6467458135795002, 1e-14);
  EXPECT_NEAR(lossOf("cross-entropy:y,labels,axis=1"), 0.5550791469128336, 1e-14);
  EXPECT_NEAR(lossOf("nll:y,labels", "LogSoftmax"), 0.5550791469128336, 1e-14);
  EXPECT_NEAR(lossOf("bce:y,t", "Sigmoid"), 1.0799719127002103, 1e-14);
  EXPECT_NEAR(lossOf("bce-with-logits:y,t"), 1.0799719127002103, 1e-14);
  EXPECT_NEAR(lossOf("mse:y,t"), 2.3702604166666665, 1e-14);
  EXPECT_NEAR(lossOf("l1:y,t"), 1.1854166666666666, 1e-14);
  EXPECT_NEAR(lossOf("smooth-l1:y,t"), 0.7762760416666666, 1e-14);
}

TEST(LossValues, AddUp) {
  EXPECT_NEAR(lossOf("cross-entropy:y,labels+0.5*mse:y,t"), 0.5550791469128336 + 0.5 * 2.3702604166666665,
              1e-14);
}

}  // namespace
}  // namespace pipeshard::testing
