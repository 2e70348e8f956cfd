// What exporters do to a module without a word: files of tests/oracle/make_traps.py. Either as many elements
// are trained as PyTorch trains, or planning stops and says what to do.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ir/base/tensor_box.h"
#include "onnx_import/format/reader.h"
#include "runtime/execute/dump.h"
#include "tests/onnx_import/model_files.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kFolder = PIPESHARD_SOURCE_DIR "/tests/golden/traps";
constexpr const char* kExportWhole = "torch.onnx.export(module, args, \"model.onnx\", optimize=False, ...)";
constexpr const char* kExportWholeTorchScript =
    "dynamo=False, training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False, ...)";

// Refused are those whose cause is not empty; the others train all.
struct Trap {
  std::string cause;               // "table (folded into the constant"
  std::string remedy;              // that the error names
  std::vector<std::string> notes;  // that planning prints
};

const std::map<std::string, Trap>& traps() {
  static const Trap none;
  static const std::string transposed =
      "1 parameter that the exporter's optimizer has stored transposed, trained as such under its own name";
  static const std::string merged =
      "2 parameters that the exporter's optimizer had merged with equal ones, apart again";
  static const std::string statistics =
      "2 running statistics that the exporter's optimizer had merged with equal tensors, apart again";
  static const std::string folded = " that the exporter's optimizer had folded into constants, made again";
  static const std::string unfolded = "parameter" + folded, unfolded_ones = "parameters" + folded;
  static const std::string computed = " (computed by the exporter, from parameters or constants)";
  static const std::string gone =
      "norm.second.weight (no operator reads it: unused, or merged with an equal one, and what reads it, "
      "too)";
  static const std::string runtime =
      "the file was written by ONNX Runtime's optimizer, which merges equal weights, takes tied ones apart "
      "and leaves no names: what is trained are the weights of this file, not the module's; plan the "
      "exporter's file instead";
  static const std::string unclear =
      "the file does not tell whether the module trains mask_token, least: operators read them as a choice "
      "or limit";
  static const std::string decide =
      "--train NAME_REGEX trains them, --freeze NAME_REGEX leaves them as in the file";
  static const std::map<std::string, Trap> table = {
      {"batch_norm_folded",
       {"layers.1.weight (a batch normalisation is folded into it, or it into a convolution)",
        kExportWhole,
        {}}},
      {"batch_norm_folded_again", none},
      {"batch_norm_folded_torchscript",
       {"onnx::Conv_13 (the weight of 'layers.0', into which the batch normalization behind it is folded)",
        kExportWholeTorchScript,
        {}}},
      {"batch_norm_folded_torchscript_again", none},
      {"statistics_merged", {"", "", {statistics}}},
      {"statistics_merged_torchscript", {"", "", {statistics}}},
      {"transposed", {"", "", {transposed}}},
      {"transposed_torchscript", {"", "", {transposed}}},
      {"merged", {"", "", {merged}}},
      {"merged_torchscript", {"", "", {merged}}},
      {"positions_folded",
       {"trained: positions.weight (folded into the constant 'embedding_1')", kExportWhole, {}}},
      {"positions_folded_torchscript", {"onnx::Add_15" + computed, kExportWholeTorchScript, {}}},
      {"layer_scale_folded", {"", "", {"1 " + unfolded}}},
      {"class_token_folded", {"", "", {"1 " + unfolded}}},
      {"functions_folded", {"", "", {"3 " + unfolded_ones}}},
      {"group_norms_folded", {"", "", {"4 " + unfolded_ones}}},
      {"lstm_folded", {"", "", {"8 " + unfolded_ones}}},
      {"gru_folded", {"", "", {"8 " + unfolded_ones}}},
      {"windows_folded", {"", "", {"1 " + unfolded}}},
      {"layer_scale_folded_torchscript", {"onnx::Mul_10" + computed, kExportWholeTorchScript, {}}},
      {"bias_table_folded", {"trained: table (folded into the constant 'view')", kExportWhole, {}}},
      {"bias_table_folded_again", none},
      {"bias_table_folded_torchscript", {"onnx::Add_20" + computed, kExportWholeTorchScript, {}}},
      {"bias_table_folded_torchscript_again", none},
      {"tied", {"", "", {"other names of tied parameters, trained as one: words.weight (head.weight)"}}},
      {"tied_torchscript",
       {"",
        "",
        {"tied again, as the file has a transposed copy: words.weight",
         "other names of tied parameters, trained as one: head.weight (words.weight)"}}},
      {"tied_and_lost", {"trained: " + gone + ". Export", kExportWhole, {}}},
      {"tied_and_lost_without_name", {"trained: " + gone + ". Export", kExportWhole, {}}},
      {"lost", {"norms.second.bias (no operator reads it: unused, or merged", kExportWhole, {}}},
      {"lost_torchscript", {"", "", {merged}}},
      {"unread",
       {"",
        "",
        {"never read by the forward pass, so that training leaves them as they are: unused.weight, "
         "unused.bias"}}},
      {"label_smoothing",
       {"", "", {"the label_smoothing of a cross-entropy, which the exporter drops, is put back"}}},
      {"unusual_place", none},
      {"unusual_place_torchscript", {unclear, decide, {}}},
      {"unmarked", {unclear, decide, {}}},
      {"inference_mode",
       {"",
        "",
        {"1 batch normalization of a module in training mode, but the exporter has written inference mode: "
         "the running statistics of the file are used, and stay as they are, where PyTorch would take the "
         "batch's; --mode training does so"}}},
      {"dropout", {"", "", {"random numbers (dropout and the like): 1 tensor is drawn in every step"}}},
      {"dropout_torchscript", none},  // nothing in the file tells
      {"attention_dropout",
       {"",
        "",
        {"the dropout inside 1 attention is not in the file (the exporter's optimizer removes it): there "
         "nothing is dropped; exported with " +
         std::string(kExportWhole) + " it is there, and --mode training drops"}}},
      {"attention_dropout_torchscript",
       {"", "", {"1 dropout in inference mode, so that nothing is dropped; --mode training drops"}}},
      {"runtime_optimized",
       {"", "", {runtime, "tied again, as the file has a transposed copy: head.weight"}}},
      {"runtime_optimized_torchscript",
       {"", "", {runtime, "tied again, as the file has a transposed copy: words.weight"}}},
  };
  return table;
}

int64_t elementsThatPyTorchTrains(const std::string& name) {
  static const nlohmann::json numbers = nlohmann::json::parse(std::ifstream(kFolder + "/traps.json"));
  return numbers.at(name);
}

CommandResult planTrap(const std::string& name, const std::vector<std::string>& options = {}) {
  const TemporaryFolder folder;
  std::vector<std::string> line = {
      "plan", kFolder + "/" + name + ".onnx", "--cluster", "1x1", "--no-programs", "-o", folder.file("plan")};
  line.insert(line.end(), options.begin(), options.end());
  return runPipeshard(line);
}

std::string trains(int64_t elements, int64_t of) {
  return "trains " + std::to_string(elements) + " of " + std::to_string(of) + " parameters";
}

class Traps : public ::testing::TestWithParam<std::string> {};

TEST_P(Traps, TrainAllOrStopWithTheRemedy) {
  const Trap& trap = traps().at(GetParam());
  const CommandResult result = planTrap(GetParam());
  if (trap.cause.empty()) {
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    const int64_t elements = elementsThatPyTorchTrains(GetParam());
    EXPECT_THAT(result.output, HasSubstr(trains(elements, elements)));
  } else {
    EXPECT_EQ(result.exit_code, 65) << result.output;
    EXPECT_THAT(result.errors, HasSubstr(trap.cause));
    EXPECT_THAT(result.errors, HasSubstr(trap.remedy));
  }
  for (const std::string& note : trap.notes) EXPECT_THAT(result.output, HasSubstr(note));
}

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const auto& [name, trap] : traps()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Files, Traps, ::testing::ValuesIn(names()),
                         [](const auto& param) { return param.param; });

TEST(TrapFiles, AreAllLookedAt) {
  std::vector<std::string> files, known = names();
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".onnx") files.push_back(entry.path().stem());
  }
  for (const char* partly : {"frozen", "frozen_torchscript", "beside_the_loss"}) known.emplace_back(partly);
  std::sort(files.begin(), files.end());
  std::sort(known.begin(), known.end());
  EXPECT_EQ(files, known);
}

// Exporters do not say which parameters a module does not train.
TEST(TrapFiles, WhatAModuleFreezesIsAnOption) {
  for (const char* name : {"frozen", "frozen_torchscript"}) {
    const CommandResult result = planTrap(name, {"--freeze", "^layers.0.weight$"});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.output, HasSubstr(trains(elementsThatPyTorchTrains(name), 16)));
    EXPECT_THAT(result.output,
                HasSubstr("not trained (--freeze, or no gradient in the file): layers.0.weight"));
  }
}

TEST(TrapFiles, WhatTheLossDoesNotDependOnIsNotCounted) {
  const CommandResult result = planTrap("beside_the_loss");
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr(trains(elementsThatPyTorchTrains("beside_the_loss"), 25)));
  EXPECT_THAT(result.output,
              HasSubstr("no gradient of the loss reaches these parameters, which stay as they are: "
                        "second.weight, second.bias"));
}

struct Way {
  std::string trap;
  std::vector<std::string> options;
  std::string output;
};

TEST(TrapFiles, TheOptionsThatMessagesNameHelp) {
  const std::vector<Way> ways = {
      {"unmarked", {"--train", "mask_token|least"}, trains(28, 28)},
      {"unmarked", {"--freeze", "mask_token|least"}, trains(20, 28)},
      {"unusual_place_torchscript", {"--train", "mask_token", "--freeze", "least"}, trains(24, 28)},
      {"layer_scale_folded_torchscript", {"--train", "onnx::Mul_10"}, trains(16, 16)},
      {"positions_folded", {"--freeze", "positions"}, trains(29, 29)},
      {"tied",
       {"--freeze", "^words.weight$"},
       "not trained (--freeze, or no gradient in the file): head.weight"},
      {"tied", {"--freeze", ".", "--train", "^words"}, trains(24, 32)},
      {"tied", {"--group", "^words:lr_scale=0.5"}, "group '^words': 1 parameter, lr_scale=0.5"},
      {"unread", {}, "(or names of a tied parameter that no call goes by"},
      {"lost", {"--freeze", "second"}, trains(8, 8)},
      {"batch_norm_folded", {"--train", "weight|bias"}, trains(6, 6)},
      {"batch_norm_folded",
       {"--train", "weight|bias"},
       "not in the file as the module has them, and not trained as such: layers.0.weight, layers.0.bias, "
       "layers.1.weight, layers.1.bias"},
      {"inference_mode",
       {"--mode", "training"},
       "put into training mode, which the file does not have: 1 batch"},
      {"statistics_merged",
       {"--mode", "training"},
       "put into training mode, which the file does not have: 1 batch"},
      {"attention_dropout_torchscript", {"--mode", "training"}, "1 tensor is drawn in every step"},
      {"label_smoothing", {"--loss", "cross-entropy:linear,labels,smoothing=0.1"}, trains(15, 15)},
  };
  for (const Way& way : ways) {
    const CommandResult result = planTrap(way.trap, way.options);
    EXPECT_EQ(result.exit_code, 0) << way.trap << result.errors;
    EXPECT_THAT(result.output, HasSubstr(way.output)) << way.trap;
  }
}

TEST(TrapFiles, ALabelSmoothingThatIsPutBackCanBeCut) {
  const std::string file = kFolder + "/label_smoothing.onnx";
  const CommandResult cut =
      runPipeshard({"validate", file, "--cluster", "1x2", "--dim", "batch=4", "--microbatches", "2"});
  EXPECT_EQ(cut.exit_code, 0) << cut.output << cut.errors;
  EXPECT_THAT(cut.output, HasSubstr("the label_smoothing of a cross-entropy, which the exporter drops"));
  const CommandResult asked =
      planTrap("label_smoothing", {"--loss", "cross-entropy:linear,labels,smoothing=0.1"});
  EXPECT_EQ(asked.exit_code, 0) << asked.errors;
  EXPECT_THAT(asked.output, Not(HasSubstr("label_smoothing of"))) << "not of the loss";
}

TEST(TrapFiles, InspectSaysFirstWhetherTheFileIsTrained) {
  const std::string file = kFolder + "/positions_folded.onnx";
  const TemporaryFolder folder;
  const CommandResult refused = runPipeshard({"inspect", file, "--json", folder.file("refused.json")});
  EXPECT_EQ(refused.exit_code, 0) << refused.errors;
  EXPECT_THAT(readFile(folder.file("refused.json")),
              HasSubstr("\"cannot_be_trained\": \"the exporter's optimizer has changed"));
  EXPECT_THAT(refused.output,
              HasSubstr("\ncannot be trained as it is: the exporter's optimizer has changed"));
  EXPECT_THAT(refused.output, HasSubstr("\ncannot be trained: positions.weight (folded into the constant"));
  EXPECT_THAT(refused.output, HasSubstr("training: refused: cannot be trained as it is (above)"));
  EXPECT_THAT(refused.output, Not(HasSubstr("\ntrains ")));
  const CommandResult taken = runPipeshard({"inspect", file, "--freeze", "positions"});
  EXPECT_EQ(taken.exit_code, 0) << taken.errors;
  EXPECT_THAT(taken.output,
              HasSubstr("\ntrains 29 of 29 parameters in 3 tensors; 1 taken for constants\n"
                        "note: not in the file as the module has them, and not trained as such: "
                        "positions.weight"));
  EXPECT_THAT(taken.output, Not(HasSubstr("cannot be trained")));
}

// As planning does: what is taken for constants is said.
TEST(TrapFiles, InspectGivesTheNotesOfPlanning) {
  const testing::ModelFolder folder;
  const std::string file = folder.write("constants.onnx", testing::parseText(R"(
    <ir_version: 10, opset_import: ["" : 18]>
    g (float[n,2] x, float[n,2] t) => (float loss)
      <float[2,2] w = {1,2,3,4}, float[1,2] run_mask = {0,1}> {
      h = MatMul(x, w)
      m = Add(h, run_mask)
      d = Sub(m, t)
      s = Mul(d, d)
      loss = ReduceMean <keepdims = 0> (s) })"));
  for (const char* command : {"inspect", "validate"}) {
    const CommandResult result = runPipeshard({command, file, "--dim", "n=2"});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.output, HasSubstr("taken for constants, not trained: run_mask")) << command;
  }
}

// Whatever else is wrong with it.
TEST(TrapFiles, AQuantizedFileIsRefusedByThatWord) {
  const testing::ModelFolder folder;
  const std::string file = folder.write("quantized.onnx", testing::parseText(R"(
    <ir_version: 10, opset_import: ["" : 21]>
    g (float[n,3] x) => (float[n,2] y)
      <int8[3,4] codes = {1,2,3,4,5,6,7,8,9,10,11,12}, float[4] scales = {1,2,3,4},
       float[4,2] head = {1,2,3,4,5,6,7,8}> {
      weight = DequantizeLinear <axis = 1> (codes, scales)
      h = MatMul(x, weight)
      y = MatMul(h, head) })"));
  const std::string why = "the file is quantised (DequantizeLinear): quantised weights cannot be trained";
  const CommandResult refused = runPipeshard({"validate", file, "--dim", "n=2"});
  EXPECT_EQ(refused.exit_code, 65);
  EXPECT_THAT(refused.errors, HasSubstr(why));
  const CommandResult looked = runPipeshard({"inspect", file});
  EXPECT_EQ(looked.exit_code, 0) << looked.errors;
  EXPECT_THAT(looked.output, HasSubstr("cannot be trained as it is: " + why));
  const CommandResult around = runPipeshard({"inspect", file, "--train", "head"});
  EXPECT_EQ(around.exit_code, 0) << around.errors;
  EXPECT_THAT(around.output, HasSubstr("trains 8 of 8 parameters in 1 tensors"));
  EXPECT_THAT(around.output, HasSubstr("quantized weights, not trained: codes (int8 [3,4])"));
}

// Its weights are in floating point: there is no other file that it was made from.
TEST(TrapFiles, AFakeQuantizedFileIsRefusedByThatWord) {
  const testing::ModelFolder folder;
  const std::string file = folder.write("fake_quantized.onnx", testing::parseText(R"(
    <ir_version: 10, opset_import: ["" : 21]>
    g (float[n,3] x, float[n,2] t) => (float loss)
      <float[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float scale = {0.5}, int8 zero = {0},
       float[4,2] head = {1,2,3,4,5,6,7,8}> {
      codes = QuantizeLinear(w, scale, zero)
      rounded = DequantizeLinear(codes, scale, zero)
      h = MatMul(x, rounded)
      y = MatMul(h, head)
      d = Sub(y, t)
      s = Mul(d, d)
      loss = ReduceMean <keepdims = 0> (s) })"));
  const CommandResult refused = runPipeshard({"validate", file, "--dim", "n=2"});
  EXPECT_EQ(refused.exit_code, 65);
  EXPECT_THAT(refused.errors, HasSubstr("the module rounds w in each pass"));
  EXPECT_THAT(refused.errors, HasSubstr("straight-through gradient"));
  const CommandResult around = runPipeshard({"inspect", file, "--train", "head"});
  EXPECT_EQ(around.exit_code, 0) << around.errors;
  EXPECT_THAT(around.output, HasSubstr("trains 8 of "));
}

// Of a file that lists no buffers, with weights in half precision.
TEST(TrapFiles, ExportSaysWhatTheModuleWouldMiss) {
  const testing::ModelFolder folder;
  onnx::ModelProto model = testing::parseText(R"(
    <ir_version: 10, opset_import: ["" : 18]>
    g (float[n,2] x) => (float loss)
      <float[2] norm__scale = {1,1}, float[2] norm__bias = {0,0}, float[2] norm__running_mean = {0,0},
       float[2] norm__running_var = {1,1}> {
      wide = Cast <to = 1> (fc__weight)
      h = MatMul(x, wide)
      y = BatchNormalization(h, norm__scale, norm__bias, norm__running_mean, norm__running_var)
      s = Mul(y, y)
      loss = ReduceMean <keepdims = 0> (s) })");
  const auto withDots = [](std::string& name) {
    if (const size_t at = name.find("__"); at != name.npos) name.replace(at, 2, ".");
  };
  for (auto& tensor : *model.mutable_graph()->mutable_initializer()) withDots(*tensor.mutable_name());
  for (auto& node : *model.mutable_graph()->mutable_node()) {
    for (std::string& input : *node.mutable_input()) withDots(input);
  }
  onnx::TensorProto& weight = *model.mutable_graph()->add_initializer();
  weight = testing::floatTensor("fc.weight", {2, 2}, {});
  weight.clear_float_data();
  weight.set_data_type(onnx::TensorProto::FLOAT16);
  weight.set_raw_data(std::string("\0\x3c\0\x3c\0\x3c\0\x3c", 8));  // ones
  const std::string file = folder.write("half.onnx", model), plan = folder.file("plan");
  const std::string saved = folder.file("saved");
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"plan", file, "--dim", "n=2", "-o", plan},
                                             {"run", plan, "--steps", "1", "--checkpoint", saved}}) {
    const CommandResult result = runPipeshard(words);
    ASSERT_EQ(result.exit_code, 0) << result.errors;
  }
  const CommandResult exported =
      runPipeshard({"export", saved, "--safetensors", folder.file("t.safetensors")});
  EXPECT_EQ(exported.exit_code, 0) << exported.errors;
  EXPECT_THAT(exported.output,
              HasSubstr("note: rounded to float16, which the model's file has (the checkpoint "
                        "keeps what was trained): fc.weight"));
  EXPECT_THAT(exported.output,
              HasSubstr("note: 2 tensors of the model's file not here, as nothing trains them: "
                        "norm.running_mean, norm.running_var"));
}

// Their Identity is undone behind the change of modes.
TEST(TrapFiles, RunningStatisticsThatWereMergedAreSaidToMove) {
  const CommandResult result = planTrap("statistics_merged_torchscript", {"--mode", "training"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("put into training mode, which the file does not have: 1 batch"));
  EXPECT_THAT(result.output, Not(HasSubstr("stay as they are")));
}

// A trained scale must not be the variance, too.
TEST(TrapFiles, RunningStatisticsThatWereMergedAreNotTrained) {
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{}, {"--mode", "training"}}) {
    std::vector<std::string> line = {
        "validate", kFolder + "/statistics_merged.onnx", "--cluster", "1x1", "--dim", "batch=4"};
    line.insert(line.end(), more.begin(), more.end());
    const CommandResult result = runPipeshard(line);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.output, HasSubstr("PASS"));
  }
}

// The module's layers.0.weight is [2,4]; the file has its transposed matrix, val_0.
TEST(TrapFiles, DumpsHaveTheModulesOrientation) {
  const std::string model = kFolder + "/transposed.onnx";
  const Graph graph = readModel(model);
  const auto& stored = std::get<Constant>(graph.initializers.at(findValue(graph, "val_0")));
  ASSERT_EQ(stored.shape, (Shape{4, 2}));
  std::vector<std::byte> expected(stored.bytes.size());
  transposeMatrix(stored.bytes, stored.shape[0], stored.shape[1], sizeof(float), expected);
  for (const auto& [cluster, method] : {std::pair("1x1", "auto"), std::pair("1x2", "megatron:1,2,1")}) {
    const TemporaryFolder folder;
    const std::string plan = folder.file("plan"), dump = folder.file("dump");
    ASSERT_EQ(runPipeshard({"plan", model, "--dim", "batch=2", "--cluster", cluster, "--method", method,
                            "--optimizer", "sgd:lr=1e-30", "-o", plan})
                  .exit_code,
              0);
    const CommandResult run = runPipeshard({"run", plan, "--steps", "1", "--dump", dump});
    ASSERT_EQ(run.exit_code, 0) << run.errors;
    const StepDump::Tensor weight =
        StepDump::open(dump, 1, cluster[2] - '0').read("parameter/layers.0.weight");
    EXPECT_EQ(weight.shape, (Shape{2, 4}));
    EXPECT_EQ(weight.bytes, expected);
    const CommandResult validate = runPipeshard({"validate", model, "--dim", "batch=2", "--cluster", cluster,
                                                 "--method", method, "--optimizer", "adamw", "--steps", "3"});
    EXPECT_EQ(validate.exit_code, 0) << validate.output << validate.errors;
  }
}

}  // namespace
}  // namespace pipeshard
