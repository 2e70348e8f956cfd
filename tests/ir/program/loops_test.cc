// Loops of lists: what they are found in, and what of them is refused.
#include "ir/program/loops.h"

#include <random>

#include <gtest/gtest.h>

#include "ir/program/numbers.h"
#include "ir/program/program_json.h"
#include "tests/expect_error.h"
#include "tests/ir/base/edited_text.h"
#include "tests/ir/program/program_writer.h"
#include "tests/ir/program/unrolled_json.h"

namespace pipeshard {
namespace {

struct Item {
  char form;
  std::vector<int64_t> numbers;
};

std::vector<Loop> loopsOf(const std::vector<Item>& items) {
  NumberedList list;
  for (const Item& item : items) list.add(std::string(1, item.form), item.numbers);
  return findLoops(list);
}

// Of every letter one item, whose number grows by `step` from one to the next of its form.
std::vector<Item> lettered(const std::string& forms, int64_t step) {
  std::vector<Item> items;
  std::map<char, int64_t> next;
  for (const char form : forms) items.push_back({form, {next[form]}}), next[form] += step;
  return items;
}

TEST(FindLoops, FindsWhatComesAgain) {
  EXPECT_EQ(loopsOf(lettered("pabcabcabcq", 2)), (std::vector<Loop>{{1, 3, 3}}));
  EXPECT_EQ(loopsOf(lettered("aaaaaabababab", 1)), (std::vector<Loop>{{0, 1, 6}, {6, 2, 3}}));
  EXPECT_EQ(loopsOf(lettered("abaabaabaabac", 1)), (std::vector<Loop>{{0, 3, 4}}));
  EXPECT_EQ(loopsOf(lettered("abcdabcd", 1)), (std::vector<Loop>{}));  // twice is not worth it
  EXPECT_EQ(loopsOf({}), (std::vector<Loop>{}));
}

TEST(FindLoops, StopsWhereNumbersLoseTheirStep) {
  std::vector<Item> items = lettered("abababababab", 3);
  items[8].numbers[0] += 1;
  EXPECT_EQ(loopsOf(items), (std::vector<Loop>{{0, 2, 4}}));
  items = lettered("aaaaaaaaaa", 0);
  for (Item& item : items) item.numbers = {7, 9};
  EXPECT_EQ(loopsOf(items), (std::vector<Loop>{{0, 1, 10}}));
}

// A step of a thousand microbatches, of which the first is made in buffers of its own.
TEST(FindLoops, AreFoundBehindALongUnevenStart) {
  NumberedList list;
  constexpr size_t kPeriod = 1000, kCount = 1000;
  for (size_t k = 0; k < kCount; ++k) {
    for (size_t i = 0; i < kPeriod; ++i)
      list.add(std::to_string(i), {static_cast<int64_t>(k == 0 && i % 2 == 1 ? 7 : 3 * k)});
  }
  EXPECT_EQ(findLoops(list), (std::vector<Loop>{{kPeriod, kPeriod, kCount - 1}}));
}

// The longer one that saves more is not hidden by short ones in it.
TEST(FindLoops, TakesTheOneThatSavesMost) {
  std::string body = "aaaaaaaabc";
  std::vector<Item> items;
  for (int64_t k = 0; k < 20; ++k) {
    for (size_t i = 0; i < body.size(); ++i) items.push_back({body[i], {k * 5, static_cast<int64_t>(i) + k}});
  }
  EXPECT_EQ(loopsOf(items), (std::vector<Loop>{{0, 10, 20}}));
}

TEST(FindLoops, AreInOrderAndHoldInRandomLists) {
  std::mt19937 random(1);
  size_t covered = 0;
  for (int run = 0; run < 2000; ++run) {
    std::string forms;
    while (forms.size() < 60) {
      std::string body;
      for (size_t i = 1 + random() % 5; i > 0; --i) body += static_cast<char>('a' + random() % 3);
      for (size_t i = 1 + random() % 6; i > 0; --i) forms += body;
    }
    std::vector<Item> items = lettered(forms, 1);
    for (size_t i = 0; i < items.size(); ++i) items[i].numbers[0] = static_cast<int64_t>(i / (1 + run % 4));
    size_t end = 0;
    for (const Loop& loop : loopsOf(items)) {
      ASSERT_GE(loop.first, end);
      ASSERT_GE(loop.count, 3u);
      end = loop.end();
      ASSERT_LE(end, items.size());
      covered += loop.end() - loop.first;
      for (size_t i = loop.first; i + loop.period < end; ++i) {
        const Item &now = items[i], &next = items[i + loop.period];
        const size_t in_body = loop.first + (i - loop.first) % loop.period;
        ASSERT_EQ(now.form, next.form);
        ASSERT_EQ(next.numbers[0] - now.numbers[0],
                  items[in_body + loop.period].numbers[0] - items[in_body].numbers[0]);
      }
    }
  }
  EXPECT_GT(covered, 10000u);
}

// The time is bounded where nothing repeats, and where everything does.
TEST(FindLoops, TakesStepsInProportionToTheList) {
  std::vector<Item> periodic, random_items;
  std::mt19937 random(2);
  for (int64_t i = 0; i < 200'000; ++i) {
    periodic.push_back({'a', {i * i}});  // equal forms, no step
    random_items.push_back({static_cast<char>('a' + random() % 2), {0}});
  }
  EXPECT_TRUE(loopsOf(periodic).empty());
  EXPECT_LT(loopsOf(random_items).size(), random_items.size());
}

// One rank that passes microbatches on to itself, so to speak.
ProgramKind kindOf(int64_t microbatches) {
  ProgramWriter writer(0, 1, microbatches);
  writer.input("x", {2 * microbatches, 3}, 0);
  writer.parameter("w");
  writer.subgraph("forward", Phase::kForward, {"x", "w"}, {"h"});
  for (int k = 0; k < microbatches; ++k) {
    const std::string at = "@" + std::to_string(k);
    writer.load("x" + at, k, 2 * k);
    writer.run(0, k, {"x" + at, "w"}, {"h" + at});
    writer.release("x" + at);
    writer.result(Result::Kind::kOutput, "h", "h" + at);
    writer.program().results.back().microbatch = k;
    writer.program().results.back().axis = 0;
  }
  ProgramKind kind{writer.program(), {}, {}};
  for (Buffer& buffer : kind.program.buffers) {
    if (buffer.name != "w") buffer.part = BufferPart{{4, 3}, {0, 0}};
    kind.start_slots.push_back(buffer.name == "w" ? -1 : 0);
  }
  kind.boxed.resize(kind.program.buffers.size());
  return kind;
}

TEST(LoopsOfKinds, ComeBackInFull) {
  for (const int64_t microbatches : {1, 2, 3, 4, 11, 100, 1000}) {
    const ProgramKind kind = kindOf(microbatches);
    const std::string text = kindToJson(kind);
    const ProgramKind read = kindFromJson(text);
    EXPECT_EQ(programToJson(read.program), programToJson(kind.program));
    EXPECT_EQ(read.start_slots, kind.start_slots);
    EXPECT_EQ(read.boxed, kind.boxed);
    EXPECT_EQ(kindToJson(read), text);
    EXPECT_EQ(programToJson(kindFromJson(UnrolledJson::of(nlohmann::ordered_json::parse(text))).program),
              programToJson(kind.program));
    if (microbatches >= 11) {
      EXPECT_LT(text.size(), 2900u) << text;
    }
  }
}

// Random items, of which runs come again with random steps, and some of them with a fault in between.
class RandomProgram {
 public:
  explicit RandomProgram(unsigned seed) : random_(seed) {}

  ProgramKind make() {
    Program& program = kind_.program;
    program.world_size = 4;
    program.microbatches = kMost;
    program.subgraphs.resize(3);
    for (int i = 0; i < kMost; ++i) {
      Buffer& buffer = program.buffers.emplace_back();
      buffer.name = "b" + std::to_string(i) + "@" + std::to_string(random_() % 50) + (i % 3 ? "" : "@again");
      if (i % 20 != 0) buffer.name = std::string(1, "xyz"[i % 3]) + "@" + std::to_string(i / 3);
      buffer.data_type = DataType::kFloat32;
      buffer.shape = {4};
      if (i % 2 == 0) buffer.part = BufferPart{{8}, {0}};
      kind_.start_slots.push_back(i % 2 == 0 ? i % 5 : -1);
    }
    kind_.boxed.resize(kMost);
    while (program.instructions.size() < 200)
      repeat(program.instructions.unrolled(), [&] { return instruction(); });
    while (program.results.size() < 40) repeat(program.results, [&] { return result(); });
    return kind_;
  }

 private:
  static constexpr int kMost = 300;

  int64_t below(int64_t count) { return static_cast<int64_t>(random_() % count); }
  BufferId buffer() { return BufferId(static_cast<size_t>(below(kMost))); }

  Instruction instruction() {
    Instruction made;
    made.kind = static_cast<InstructionKind>(below(11));
    if (below(2) == 0) made.subgraph = SubgraphId(static_cast<size_t>(below(3)));
    if (below(2) == 0) made.microbatch = static_cast<int>(below(kMost));
    if (below(3) == 0) made.peer = RankId(static_cast<size_t>(below(4)));
    if (below(3) == 0) made.offset = below(100);
    made.background = below(4) == 0;
    for (int64_t i = below(4); i > 0; --i) made.inputs.push_back(buffer());
    for (int64_t i = below(3); i > 0; --i) made.outputs.push_back(buffer());
    return made;
  }

  Result result() {
    Result made{Result::Kind::kOutput, "y", "", buffer()};
    made.microbatch = static_cast<int>(below(3)) - 1;
    return made;
  }

  // A number never leaves the program: where it would, it begins again.
  template <typename T, typename Make>
  void repeat(std::vector<T>& items, const Make& make) {
    std::vector<T> body;
    for (int64_t i = 1 + below(6); i > 0; --i) body.push_back(make());
    std::vector<std::vector<int64_t>> steps;
    for (const T& item : body) {
      steps.emplace_back();
      for (size_t n = numbersOf(item).size(); n > 0; --n) steps.back().push_back(below(5) - 2);
    }
    for (int64_t k = 1 + below(12); k > 0; --k) {
      for (size_t i = 0; i < body.size(); ++i) {
        items.push_back(body[i]);
        std::vector<int64_t> numbers = numbersOf(body[i]);
        for (size_t n = 0; n < numbers.size(); ++n)
          numbers[n] = (numbers[n] + steps[i][n] + (below(100) == 0 ? 1 : 0) + kMost) % kMost;
        setNumbers(body[i], numbers);
      }
    }
  }

  std::mt19937 random_;
  ProgramKind kind_;
};

TEST(LoopsOfKinds, OfRandomProgramsComeBackItemForItem) {
  size_t loops = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ProgramKind kind = RandomProgram(seed).make();
    const std::string text = kindToJson(kind), in_full = programToJson(kind.program);
    for (const std::string& way : {text, UnrolledJson::of(nlohmann::ordered_json::parse(text))}) {
      const ProgramKind read = kindFromJson(way);
      ASSERT_EQ(programToJson(read.program), in_full);
      ASSERT_EQ(read.start_slots, kind.start_slots);
    }
    for (size_t at = text.find("repeat"); at != std::string::npos; at = text.find("repeat", at + 1)) ++loops;
  }
  EXPECT_GT(loops, 2000u);
}

TEST(LoopsOfKinds, CountTheNumberInANameOfABuffer) {
  const std::vector<std::pair<std::string, std::vector<int64_t>>> names = {
      {"h@3", {3}}, {"h@0[0:4]", {0}}, {"h@12@again", {12}}, {"a@1@@7.part", {7}},
      {"h", {}},    {"h@", {}},        {"h@again", {}},      {"@5", {5}},
      {"h@03", {}}, {"h@3@04", {}},    {"h@3 @x", {3}},      {"h@1234567890", {}}};
  for (const auto& [name, numbers] : names) {
    Buffer buffer;
    buffer.name = name;
    EXPECT_EQ(numbersOf(buffer), numbers) << name;
    setNumbers(buffer, numbers);
    EXPECT_EQ(buffer.name, name);
  }
  Buffer again;
  again.name = "h@12@again";
  setNumbers(again, std::vector<int64_t>{7});
  EXPECT_EQ(again.name, "h@7@again");
}

TEST(LoopsOfKinds, AProgramAloneHasEveryInstruction) {
  const Program program = kindOf(100).program;
  EXPECT_EQ(programToJson(program).find("repeat"), std::string::npos);
  const std::string loop =
      R"("results": [{"repeat":2,"steps":[[0]],"body":[{"kind":"loss","name":"loss","buffer":0}]},)";
  EXPECT_ERROR(programFromJson(replaced(programToJson(program), "\"results\": [", loop)),
               ErrorCode::kConfiguration, "program.json.results[0]: found unknown keys \"repeat\"");
}

TEST(LoopsOfKinds, AreRefusedWithWhatIsWrong) {
  const std::string text = kindToJson(kindOf(100));
  const auto refuses = [&](const std::string& from, const std::string& to, const std::string& message) {
    EXPECT_ERROR(kindFromJson(replaced(text, from, to)), ErrorCode::kConfiguration, message);
  };
  const std::string of_instructions = "{\"repeat\":100,\"steps\":[[1,2,2],[1,0,2,0,2],[0,2]]";
  ASSERT_NE(text.find(of_instructions), std::string::npos) << text;
  const auto loop = [](int count, const std::string& steps) {
    return "{\"repeat\":" + std::to_string(count) + ",\"steps\":" + steps;
  };
  refuses(of_instructions, loop(0, "[[1,2,2],[1,0,2,0,2],[0,2]]"), ".repeat: found 0");
  refuses(of_instructions, loop(101, "[[1,2,2],[1,0,2,0,2],[0,2]]"),
          ".steps[0]: found [1,2,2]; expected steps with which 0 stays within 0 and 99 in 101 iterations");
  refuses(of_instructions, loop(100, "[[1,2,2],[1,0,2,0],[0,2]]"),
          ".steps[1]: found [1,0,2,0]; expected 5 numbers");
  refuses(of_instructions, loop(100, "[[1,2,2],[1,0,2,0,2],[0,-2]]"), ".steps[2]");
  refuses(of_instructions, loop(100, "[[1,2,2],[1,0,2,0,2]]"), "a list for each of them");
  refuses(of_instructions, loop(100, "[[1,9223372036854775807,2],[1,0,2,0,2],[0,2]]"), ".steps[0]");
  refuses(of_instructions, "{\"repeat\":100", "key \"steps\" is missing");
  refuses("\"name\":\"h@0\"", "\"name\":\"x@0\"", "a name that no earlier buffer has");
}

// Counts beyond all bounds, each within the limits of its items.
TEST(LoopsOfKinds, AreRefusedWhereTheyStandForTooMuch) {
  const std::string text = kindToJson(kindOf(4));
  const auto withResults = [&](const std::string& loops) {
    return replaced(text, "\"results\": [", "\"results\": [" + loops);
  };
  const std::string result = R"({"kind":"loss","name":"loss","buffer":0})";
  const auto loop = [](int64_t count, const std::string& items, const std::string& steps) {
    return "{\"repeat\":" + std::to_string(count) + ",\"steps\":[" + steps + "],\"body\":[" + items + "]},";
  };
  const auto read = [&](const std::string& loops) {
    return kindFromJson(withResults(loops), LoopBudget(1000, 100'000));
  };
  EXPECT_EQ(read(loop(600, result, "[0]")).program.results.size(), 604u);
  EXPECT_ERROR(read(loop(int64_t{1} << 40, result, "[0]")), ErrorCode::kConfiguration,
               "program.json.results[0].repeat");
  EXPECT_ERROR(kindFromJson(withResults(loop(int64_t{1} << 40, result, "[0]"))), ErrorCode::kConfiguration,
               "program.json.results[0].repeat");
  EXPECT_ERROR(read(loop(501, result + "," + result, "[0],[0]")), ErrorCode::kConfiguration, "at most");
  EXPECT_ERROR(read(loop(500, result, "[0]") + loop(900, result, "[0]")), ErrorCode::kConfiguration,
               "program.json.results[1].repeat");
  const std::string long_name = R"({"kind":"loss","name":")" + std::string(1000, 'n') + R"(","buffer":0})";
  EXPECT_ERROR(read(loop(100, long_name, "[0]")), ErrorCode::kConfiguration, "100000 bytes at most");
}

// What is written can be read, however long the list is: what goes beyond the bounds is written in full.
TEST(LoopsOfKinds, AreWrittenAsFarAsTheyMayBeRead) {
  ProgramKind kind = kindOf(4);
  Result result = kind.program.results[0];
  result.name = std::string(300, 'n');
  for (int i = 0; i < 1200; ++i) {
    result.name[0] = i < 800 ? 'a' : 'b';
    kind.program.results.push_back(result);
  }
  const LoopBudget loops(100'000, 320'000);  // enough for the eight hundred, not for the others
  const std::string text = kindToJson(kind, loops);
  EXPECT_LT(text.size(), 160'000u);
  EXPECT_GT(text.size(), 120'000u);
  EXPECT_EQ(kindFromJson(text, loops).program.results.size(), kind.program.results.size());
}

}  // namespace
}  // namespace pipeshard
