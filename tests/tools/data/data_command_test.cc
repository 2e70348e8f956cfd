// `--data` as a user gives it: tokens of a text, other files, their order, and what is said about bad ones.
#include <cstring>
#include <fstream>

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "runtime/files/npz.h"
#include "runtime/files/tensor_file.h"
#include "tests/runtime/files/npz_writer.h"
#include "tests/sanitizers.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class DataCommand : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return folder_.file(name); }

  std::string plan(const std::string& model, std::vector<std::string> options) {
    const std::string directory = at("plan" + std::to_string(++plans_));
    options.insert(options.begin(), {"plan", model, "--optimizer", "adamw:lr=3e-3", "-o", directory});
    const CommandResult result = runPipeshard(options);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return directory;
  }

  static CommandResult run(const std::string& plan, const std::vector<std::string>& options) {
    std::vector<std::string> arguments = {"run", plan, "--threads", "1"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return runPipeshard(arguments);
  }

  // Of every step of a run that succeeds.
  std::vector<double> losses(const std::string& plan, std::vector<std::string> options) {
    options.insert(options.end(), {"--json", at("losses.json")});
    const CommandResult result = run(plan, options);
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
    std::vector<double> found;
    const nlohmann::json document = nlohmann::json::parse(readFile(at("losses.json")));
    for (const nlohmann::json& step : document["steps"]) found.push_back(step["loss"].get<double>());
    return found;
  }

  // Bytes of a text of the checkout, 36 windows of GPT-2's 16 tokens.
  std::string textTokens() {
    writeFile(at("text.txt"), readFile(PIPESHARD_SOURCE_DIR "/README.md").substr(0, 16 * 36 + 5));
    const CommandResult made = runPipeshard({"tokens", at("text.txt"), "-o", at("text.u16")});
    EXPECT_EQ(made.exit_code, 0) << made.errors;
    EXPECT_THAT(made.output, HasSubstr("581 tokens (uint16)"));
    return at("text.u16");
  }

  static void expectRefused(const CommandResult& result, ErrorCode code, const std::string& message) {
    EXPECT_EQ(result.exit_code, static_cast<int>(code)) << result.output << result.errors;
    EXPECT_THAT(result.errors, HasSubstr(message));
  }

  TemporaryFolder folder_;
  int plans_ = 0;
};

double mean(std::vector<double>::const_iterator first, std::vector<double>::const_iterator last) {
  double sum = 0;
  for (auto it = first; it != last; ++it) sum += *it;
  return sum / static_cast<double>(last - first);
}

TEST_F(DataCommand, EveryPlanReadsTheSameShuffledTokensAndLearns) {
  const std::string tokens = textTokens();
  const std::string one = plan("examples/gpt2.onnx", {"--cluster", "1x1", "--data", tokens});
  const std::vector<std::string> options = {"--data", tokens, "--shuffle", "--epochs", "8", "--seed", "3"};
  const std::vector<double> want = losses(one, options);
  ASSERT_EQ(want.size(), 40u);  // 36 windows: four batches of 8, and one of 4
  EXPECT_GT(want.front(), 5);
  EXPECT_LT(mean(want.end() - 5, want.end()), 3.5);
  for (const std::vector<std::string>& way :
       {std::vector<std::string>{"--cluster", "2x2", "--stages", "uniform:2", "--microbatches", "2"},
        {"--cluster", "1x4", "--stages", "uniform:4", "--microbatches", "4", "--schedule", "1f1b"},
        {"--cluster", "1x2", "--stages", "uniform:1", "--method", "zero3"}}) {
    std::vector<std::string> planned = way;
    planned.insert(planned.end(), {"--data", tokens});
    const std::vector<double> got = losses(plan("examples/gpt2.onnx", planned), options);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(got[i], want[i], 1e-3) << way[1] << " step " << i + 1;
  }
  std::vector<std::string> in_order = options;
  std::erase(in_order, "--shuffle");
  EXPECT_GT(std::abs(losses(one, in_order).front() - want.front()), 1e-3);
}

TEST_F(DataCommand, AResumedRunReadsWhatAnUnbrokenOneReads) {
  const std::string tokens = textTokens();
  const std::string directory =
      plan("examples/gpt2.onnx", {"--cluster", "1x2", "--stages", "uniform:2", "--data", tokens});
  const std::vector<std::string> options = {"--data", tokens, "--shuffle"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), options.begin(), options.end());
    return more;
  };
  const std::vector<double> whole =
      losses(directory, with({"--steps", "12", "--checkpoint", at("whole")}));  // into the third epoch
  losses(directory, with({"--steps", "7", "--checkpoint", at("paused")}));
  const std::vector<double> rest = losses(directory, with({"--steps", "12", "--checkpoint", at("paused")}));
  EXPECT_EQ(rest, std::vector<double>(whole.begin() + 7, whole.end()));
  const CommandResult compared = runPipeshard({"checkpoint", at("whole"), "--compare", at("paused")});
  EXPECT_EQ(compared.exit_code, 0) << compared.output;
  // another order is said
  const CommandResult other =
      run(directory, {"--data", tokens, "--steps", "13", "--checkpoint", at("paused")});
  EXPECT_EQ(other.exit_code, 0);
  EXPECT_THAT(other.output + other.errors, HasSubstr("text.u16, shuffled'; going on with"));
}

TEST_F(DataCommand, RandomNumbersAreSaidAndDoNotGoOnFromData) {
  const std::string tokens = textTokens();
  const std::string directory =
      plan("examples/gpt2.onnx", {"--cluster", "1x2", "--stages", "uniform:2", "--data", tokens});
  const auto save = [&](const char* folder, const char* steps, std::vector<std::string> more) {
    more.insert(more.end(), {"--steps", steps, "--checkpoint", at(folder)});
    return run(directory, more);
  };
  const CommandResult made_up = save("made_up", "1", {});
  EXPECT_THAT(made_up.output, StartsWith("data: random numbers (no --data)\n"));
  const CommandResult trained = save("saved", "2", {"--data", tokens, "--shuffle"});
  EXPECT_EQ(trained.exit_code, 0) << trained.errors;
  EXPECT_THAT(trained.output, Not(HasSubstr("random numbers")));
  expectRefused(
      save("saved", "3", {}), ErrorCode::kConfiguration,
      "text.u16, shuffled', and without --data this run would go on with random numbers; give data");
  // no step is left, or random numbers come before data
  const CommandResult done = save("saved", "2", {});
  EXPECT_EQ(done.exit_code, 0) << done.errors;
  EXPECT_THAT(done.output, AllOf(HasSubstr("nothing is left to do"), Not(HasSubstr("random numbers"))));
  const CommandResult more = save("made_up", "2", {"--data", tokens});
  EXPECT_EQ(more.exit_code, 0) << more.errors;
  EXPECT_THAT(more.errors, HasSubstr("was made with random numbers; going on with the data '" + tokens));
}

TEST_F(DataCommand, EveryKindOfFileGivesTheSameBatches) {
  std::vector<float> x(24 * 32), y(24 * 32);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(i % 29) / 8 - 1;
    y[i] = static_cast<float>(i % 31) / 16;
  }
  const std::vector<TensorView> tensors = {{"x", DataType::kFloat32, {24, 32}, x.data()},
                                           {"y", DataType::kFloat32, {24, 32}, y.data()}};
  writeTensorFile(at("d.safetensors"), tensors);
  const auto array = [](const std::vector<float>& numbers) {
    const auto bytes = std::as_bytes(std::span(numbers));
    return NpzArray{DataType::kFloat32, {24, 32}, {bytes.begin(), bytes.end()}};
  };
  pipeshard::writeNpz(at("d.npz"), std::map<std::string, NpzArray>{{"x", array(x)}, {"y", array(y)}});
  std::filesystem::create_directory(at("folder"));
  writeFile(at("folder/x.npy"), npyArray("<f4", "(24, 32)", bytesOf(x)));
  writeFile(at("folder/y.npy"), npyArray("<f4", "(24, 32)", bytesOf(y)));
  std::string csv, lines;
  for (const char* name : {"x", "y"}) {
    for (int k = 0; k < 32; ++k) csv += fmt::format("{}{}[{}]", csv.empty() ? "" : ",", name, k);
  }
  for (int row = 0; row < 24; ++row) {
    const std::span<const float> a(x.data() + row * 32, 32), b(y.data() + row * 32, 32);
    csv += fmt::format("\n{},{}", fmt::join(a, ","), fmt::join(b, ","));
    lines += fmt::format("{{\"x\": [{}], \"y\": [{}]}}\n", fmt::join(a, ","), fmt::join(b, ","));
  }
  writeFile(at("d.csv"), csv + "\n");
  writeFile(at("d.jsonl"), lines);
  const std::string directory = plan("examples/mlp.onnx", {"--cluster", "1x2", "--stages", "uniform:2"});
  const std::vector<double> want = losses(directory, {"--data", at("d.npz"), "--shuffle", "--epochs", "2"});
  EXPECT_EQ(want.size(), 6u);
  for (const char* name : {"d.safetensors", "folder", "d.csv", "d.jsonl"})
    EXPECT_EQ(losses(directory, {"--data", at(name), "--shuffle", "--epochs", "2"}), want) << name;
}

TEST_F(DataCommand, ValidateTakesTokens) {
  const CommandResult result = runPipeshard({"validate", "examples/gpt2.onnx", "--cluster", "2x2", "--stages",
                                             "uniform:2", "--microbatches", "2", "--data", textTokens(),
                                             "--shuffle", "--shift-labels", "--steps", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("labels: shifted by one token"));
}

// Shifted labels need a token more, so the same file ends with another batch.
TEST_F(DataCommand, APlanCountsTheRowsThatARunReads) {
  writeFile(at("t.u16"), bytesOf(std::vector<uint16_t>(256, 7)));
  for (const auto& [options, last] : {std::pair<std::vector<std::string>, int>{{}, 0},
                                      {{"--shift-labels"}, 7},
                                      {{"--shift-labels", "--drop-last"}, 0}}) {
    std::vector<std::string> given = {"--data", at("t.u16")};
    given.insert(given.end(), options.begin(), options.end());
    std::vector<std::string> planned = {"--cluster", "1x2", "--stages", "uniform:2"};
    planned.insert(planned.end(), given.begin(), given.end());
    const std::string directory = plan("examples/gpt2.onnx", planned);
    const nlohmann::json document = nlohmann::json::parse(readFile(directory + "/plan.json"));
    EXPECT_EQ(document.contains("last_batch") ? document["last_batch"]["rows"].get<int>() : 0, last);
    given.insert(given.end(), {"--epochs", "1"});
    EXPECT_EQ(losses(directory, given).size(), options.size() == 2 ? 1u : 2u);
  }
  expectRefused(
      runPipeshard({"plan", "examples/gpt2.onnx", "--cluster", "1x2", "--shift-labels", "-o", at("p")}),
      ErrorCode::kUsage, "--shift-labels goes with --data");
}

TEST_F(DataCommand, TwentyGigabytesOfTokensFitIntoSmallWorkers) {
  SKIP_UNDER_SANITIZERS("their shadow of the memory counts as resident");
  writeFile(at("big.u32"), "");
  std::error_code error;
  std::filesystem::resize_file(at("big.u32"), uintmax_t{20} << 30, error);
  if (error) GTEST_SKIP() << "no sparse files here: " << error.message();
  const std::string directory = plan("examples/gpt2.onnx", {"--cluster", "1x2", "--stages", "uniform:2"});
  losses(directory, {"--data", at("big.u32"), "--shuffle", "--steps", "20"});
  const nlohmann::json document = nlohmann::json::parse(readFile(at("losses.json")));
  for (const nlohmann::json& rank : document["ranks"])
    EXPECT_LT(rank["peak_resident_bytes"].get<int64_t>(), 200'000'000);
}

TEST_F(DataCommand, BadDataAreOneSentence) {
  const std::string directory = plan("examples/gpt2.onnx", {"--cluster", "1x2", "--stages", "uniform:2"});
  const auto refused = [&](const std::vector<std::string>& options, ErrorCode code,
                           const std::string& message) {
    expectRefused(run(directory, options), code, message);
  };
  refused({"--data", at("none.u16")}, ErrorCode::kMissingInput, "there is no data file " + at("none.u16"));
  writeFile(at("empty.u16"), "");
  refused({"--data", at("empty.u16")}, ErrorCode::kBadModel, "empty.u16 is empty");
  writeFile(at("cut.u16"), std::string(8 * 16 * 2 + 1, 'a'));
  refused({"--data", at("cut.u16")}, ErrorCode::kBadModel, "its last token is cut off");
  writeFile(at("rest.u16"), std::string(9 * 16 * 2, '\0'));
  refused({"--data", at("rest.u16")}, ErrorCode::kConfiguration, "has 9 examples");
  std::vector<uint16_t> tokens(16 * 16, 7);
  tokens[16 * 11 + 2] = 300;
  writeFile(at("range.u16"), bytesOf(tokens));
  refused({"--data", at("range.u16"), "--steps", "2"}, ErrorCode::kConfiguration,
          "range.u16, array 'input_ids', row 11: found 300 at [11,2], but the model takes integers from 0 "
          "to 255");
  // the model cuts labels off, so that a kernel sees it first
  std::vector<int64_t> ids(16 * 16, 7), labels = ids;
  labels[16 * 11 + 2] = -1;
  writeNpz(at("labels.npz"), {{"input_ids.npy", npyArray("<i8", "(16, 16)", bytesOf(ids))},
                              {"labels.npy", npyArray("<i8", "(16, 16)", bytesOf(labels))}});
  refused({"--data", at("labels.npz"), "--steps", "2"}, ErrorCode::kConfiguration,
          "labels.npz, array 'labels', row 11: found -1 at [11,2], but the model takes integers from 0 to "
          "255 (or -100, which is ignored); step 2 failed: node 'node_cross_entropy_loss'");
  refused({"--epochs", "2"}, ErrorCode::kUsage, "--epochs goes with --data");
  refused({"--shuffle"}, ErrorCode::kUsage, "--shuffle goes with --data");
  refused({"--epochs", "2", "--steps", "3", "--data", at("range.u16")}, ErrorCode::kUsage, "--epochs");
}

TEST_F(DataCommand, PlanAndRunSayWhatNoInputTakes) {
  const std::string numbers(2 * 8 * 16 * 8, '\0');
  writeNpz(at("more.npz"), {{"input_ids.npy", npyArray("<i8", "(16, 16)", numbers)},
                            {"labels.npy", npyArray("<i8", "(16, 16)", numbers)},
                            {"token_type_ids.npy", npyArray("<i8", "(16, 16)", numbers)}});
  const std::string said =
      at("more.npz") + ": no input takes token_type_ids; the model's inputs are input_ids, labels";
  const CommandResult planned = runPipeshard(
      {"plan", "examples/gpt2.onnx", "--cluster", "1x1", "--data", at("more.npz"), "-o", at("plan")});
  EXPECT_EQ(planned.exit_code, 0) << planned.errors;
  EXPECT_THAT(planned.output, HasSubstr(said));
  const CommandResult ran = run(at("plan"), {"--data", at("more.npz"), "--steps", "1"});
  EXPECT_EQ(ran.exit_code, 0) << ran.errors;
  EXPECT_THAT(ran.output, HasSubstr("data: " + said + "; 16 examples"));
}

TEST_F(DataCommand, TokensTakesATokenizerOfHuggingFace) {
  const auto vocabularyWith = [&](int number) {
    const std::string path = at("tokenizer" + std::to_string(number) + ".json");
    writeFile(path,
              R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "model": {"type": "BPE",
      "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": )" +
                  std::to_string(number) + R"(}, "merges": ["a b"]}})");
    return path;
  };
  writeFile(at("ab.txt"), "ab b");
  const CommandResult made =
      runPipeshard({"tokens", at("ab.txt"), "-o", at("ab.u16"), "--tokenizer", vocabularyWith(300)});
  EXPECT_EQ(made.exit_code, 0) << made.errors;
  EXPECT_THAT(made.output, HasSubstr("3 tokens (uint16), from 0 to 300"));
  EXPECT_EQ(readFile(at("ab.u16")), bytesOf(std::vector<uint16_t>{300, 2, 1}));
  expectRefused(
      runPipeshard({"tokens", at("ab.txt"), "-o", at("ab.u16"), "--tokenizer", vocabularyWith(70'000)}),
      ErrorCode::kUsage, "has tokens up to 70000, a uint16 ends at 65535; name a file .u32");
  writeFile(at("latin.txt"), "ab\xe4");
  expectRefused(
      runPipeshard({"tokens", at("latin.txt"), "-o", at("ab.u32"), "--tokenizer", vocabularyWith(300)}),
      ErrorCode::kBadModel, "latin.txt: byte 2 (0xe4) is not UTF-8");
  EXPECT_FALSE(std::filesystem::exists(at("ab.u32")));
}

TEST_F(DataCommand, TokensSaysHowManyDocumentsThereAre) {
  writeFile(at("ab.txt"), "ab<end>b<end>a");
  const auto tokens = [&](const std::string& end, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"tokens", at("ab.txt"), "-o", at("ab.u16"), "--end-of-text", end};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return runPipeshard(arguments);
  };
  const CommandResult marked = tokens("<end>");
  EXPECT_EQ(marked.exit_code, 0) << marked.errors;
  EXPECT_THAT(marked.output, HasSubstr("6 tokens (uint16), from 0 to 256; 3 documents; `--data ... "
                                       "--end-of-text 256` keeps sequences inside them"));
  EXPECT_EQ(readFile(at("ab.u16")), bytesOf(std::vector<uint16_t>{'a', 'b', 256, 'b', 256, 'a'}));
  EXPECT_THAT(tokens("98").output, HasSubstr("14 tokens (uint16), from 0 to 255; 3 documents; "));
  expectRefused(tokens("256"), ErrorCode::kUsage, "--end-of-text 256: bytes has tokens from 0 to 255");
  std::filesystem::remove(at("ab.u16"));
  expectRefused(tokens("<none>"), ErrorCode::kConfiguration, "no document of it ends with that token (256)");
  EXPECT_FALSE(std::filesystem::exists(at("ab.u16")));

  writeFile(at("t.json"),
            R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "model": {"type": "BPE",
      "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}, "added_tokens": [{"id": 3, "content": "<end>",
      "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}]})");
  const std::vector<std::string> tokenizer = {"--tokenizer", at("t.json")};
  const CommandResult made = tokens("<end>", tokenizer);
  EXPECT_THAT(made.output,
              HasSubstr("5 tokens (uint16), from 0 to 3; 3 documents; `--data ... --end-of-text 3`"))
      << made.errors;
  EXPECT_EQ(readFile(at("ab.u16")), bytesOf(std::vector<uint16_t>{2, 3, 1, 3, 0}));
  EXPECT_THAT(tokens("3", tokenizer).output, HasSubstr("; 3 documents; "));
  expectRefused(tokens("<eos>", tokenizer), ErrorCode::kUsage,
                "has no token of its own for that; it has: <end>; or give a token's number");
  expectRefused(tokens("4", tokenizer), ErrorCode::kUsage, "has tokens from 0 to 3");
}

TEST_F(DataCommand, TokensRefusesWhatItCannotWrite) {
  writeFile(at("text.txt"), "\xff\x01z");
  EXPECT_EQ(runPipeshard({"tokens", at("text.txt"), "-o", at("t.u32")}).exit_code, 0);
  EXPECT_EQ(readFile(at("t.u32")), bytesOf(std::vector<uint32_t>{255, 1, 'z'}));
  expectRefused(runPipeshard({"tokens", at("text.txt"), "-o", at("t.npz")}), ErrorCode::kUsage,
                "a file of tokens ends in .u16");
  expectRefused(runPipeshard({"tokens", at("none.txt"), "-o", at("t.u16")}), ErrorCode::kMissingInput,
                "none.txt");
  writeFile(at("empty.txt"), "");
  expectRefused(runPipeshard({"tokens", at("empty.txt"), "-o", at("t.u16")}), ErrorCode::kMissingInput,
                "empty.txt is empty");
  expectRefused(runPipeshard({"tokens", at("text.txt"), "-o", at("t.u16"), "--tokenizer", "bpe.json"}),
                ErrorCode::kMissingInput, "bpe.json");
  expectRefused(runPipeshard({"tokens", at("text.txt"), "-o", at("no/t.u16")}), ErrorCode::kDiskFull,
                "no/t.u16");
}

}  // namespace
}  // namespace pipeshard
