// What --train and --freeze mean in files whose exporter marks the module's parameters.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/graph/weight_role.h"
#include "onnx_import/autodiff/parameters.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Words = std::vector<std::string>;

constexpr const char* kTaken = "taken for constants, not trained: val_7 (--train NAME_REGEX trains them)";

// y = (x fc_weight + norm_bias) * norm_var * val_60 * val_7 with a loss over it. val_60 was folded
// from other constants; val_7 from nothing, as a list of numbers in the module's code.
class MarkedParameters : public ::testing::Test {
 protected:
  MarkedParameters() {
    for (const char* name : {"fc_weight", "norm_bias"}) setExportedKind(value(name), "PARAMETER");
    setExportedKind(value("norm_var"), "BUFFER");
    value("val_60").metadata.emplace_back("pkg.onnxscript.optimizer.folded_from", "['val_37', 'val_38']");
    list({"fc_weight", "norm_bias"});
  }

  // The module's parameters.
  void list(const Words& names) {
    std::string text;
    for (const std::string& name : names) text += "p_" + name + ": PARAMETER target='" + name + "'\n";
    graph.metadata = {{"pkg.torch.export.ExportedProgram.graph_signature", text}};
  }
  Value& value(const std::string& name) { return graph.value(findValue(graph, name)); }
  Words trained() const {
    Words names;
    for (ValueId id : trainableParameters(graph)) names.push_back(graph.value(id).name);
    return names;
  }
  std::string summary() const { return trainedSummary(graph, findValue(graph, "loss")); }
  Words notes() const { return parameterNotes(graph, findValue(graph, "loss")); }

  Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,3] x) => (float loss)
      <float[3,2] fc_weight = {1,2,3,4,5,6}, float[2] norm_bias = {1,2}, float[2] norm_var = {1,2},
       float[1] val_60 = {0.7}, float[2] val_7 = {1,2}> {
      a = MatMul(x, fc_weight)
      b = Add(a, norm_bias)
      c = Mul(b, norm_var)
      d = Mul(c, val_60)
      e = Mul(d, val_7)
      loss = ReduceMean <keepdims = 0> (e) })");
};

TEST_F(MarkedParameters, AreWhatAWidePatternMeans) {
  EXPECT_THAT(overrideParameters(graph, {"."}, {}),
              ElementsAre(HasSubstr("left out, are norm_var, val_60, val_7 (an expression")));
  EXPECT_THAT(trained(), ElementsAre("fc_weight", "norm_bias"));
  EXPECT_EQ(summary(), "trains 8 of 8 parameters in 2 tensors; 1 taken for constants");
  EXPECT_THAT(notes(), ElementsAre(kTaken));
}

TEST_F(MarkedParameters, AreMeantByTheNameOfTheirModule) {
  EXPECT_THAT(overrideParameters(graph, {"norm"}, {"."}), ElementsAre(HasSubstr("are norm_var (")));
  EXPECT_THAT(trained(), ElementsAre("norm_bias"));
  EXPECT_EQ(summary(), "trains 2 of 8 parameters in 1 tensors; 1 taken for constants");
  EXPECT_THAT(notes(), ElementsAre("not trained (--freeze, or no gradient in the file): fc_weight", kTaken));
}

TEST_F(MarkedParameters, AreNotWhatIsTrainedByItsOwnName) {
  EXPECT_THAT(overrideParameters(graph, {".", "^val_60$", "_var"}, {}),
              ElementsAre(HasSubstr("left out, are val_7 (")));
  EXPECT_EQ(summary(),
            "trains 8 of 8 parameters in 2 tensors, and 3 elements in 2 tensors beside the parameters"
            "; 1 taken for constants");
  EXPECT_THAT(notes(), ElementsAre("trained, though no parameter of the module: norm_var, val_60", kTaken));
}

TEST_F(MarkedParameters, AreAloneInCountsAndLists) {
  EXPECT_THAT(overrideParameters(graph, {}, {"."}), IsEmpty());
  EXPECT_EQ(summary(), "trains 0 of 8 parameters in 0 tensors; 1 taken for constants");
  EXPECT_THAT(notes(), ElementsAre(HasSubstr("no gradient in the file): fc_weight, norm_bias"), kTaken));
  const Error unknown = testing::errorOf([&] { overrideParameters(graph, {"tail"}, {}); });
  EXPECT_THAT(unknown.what(), HasSubstr("such names are fc_weight, norm_bias"));
  EXPECT_THAT(unknown.what(), Not(HasSubstr("val_")));
  EXPECT_THAT(overrideParameters(graph, {}, {"val|_var"}),
              ElementsAre("--freeze 'val|_var' means no parameter of the module; nothing trains "
                          "norm_var, val_60, val_7 anyway"));
}

// A constant may hold what is not found: it is meant, and a note says what is trained.
TEST_F(MarkedParameters, ThatTheFileHasNoMoreMayBeInAConstant) {
  list({"fc_weight", "norm_bias", "gate"});
  overrideParameters(graph, {"."}, {}, {"gate"});
  EXPECT_THAT(trained(), ElementsAre("fc_weight", "norm_bias", "val_7"));
  EXPECT_THAT(notes(), ElementsAre("trained, though no parameter of the module: val_7"));
}

// Without any mark nothing tells: patterns mean what they are found in.
TEST_F(MarkedParameters, AreUnknownInFilesWithoutMarks) {
  for (const char* name : {"fc_weight", "norm_bias", "norm_var", "val_60"}) value(name).metadata.clear();
  graph.metadata.clear();
  EXPECT_THAT(overrideParameters(graph, {"."}, {}), IsEmpty());
  EXPECT_EQ(summary(), "trains 13 of 13 parameters in 5 tensors");
  EXPECT_THAT(notes(), IsEmpty());
}

}  // namespace
}  // namespace pipeshard
