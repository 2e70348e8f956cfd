// LoopedList against a vector that has all of its items.
#include "ir/program/looped_list.h"

#include <gtest/gtest.h>

#include <random>

#include "ir/program/numbers.h"
#include "ir/program/program.h"

namespace pipeshard {
namespace {

Instruction instructionOf(size_t number) {
  Instruction made;
  made.kind = number % 3 == 0 ? InstructionKind::kFree : InstructionKind::kRun;
  made.microbatch = number % 5 == 0 ? -1 : static_cast<int>(number % 7);
  made.offset = static_cast<int64_t>(number);
  for (size_t i = 0; i < number % 4; ++i) made.inputs.push_back(BufferId(number + i));
  if (number % 3 != 0) made.outputs.push_back(BufferId(2 * number));
  return made;
}

bool same(const Instruction& a, const Instruction& b) {
  return formOf(a) == formOf(b) && numbersOf(a) == numbersOf(b);
}

// A list, and what its items are.
struct Lists {
  LoopedList<Instruction> looped;
  std::vector<Instruction> plain;
};

// Loops and items that stand alone by turns, or loop behind loop.
Lists randomLists(std::mt19937& random) {
  const auto below = [&](size_t most) { return random() % most; };
  Lists lists;
  for (size_t part = 0; part < 1 + below(5); ++part) {
    for (size_t i = below(3); i > 0; --i) {
      lists.plain.push_back(instructionOf(below(1000)));
      lists.looped.push_back(lists.plain.back());
    }
    std::vector<Instruction> body;
    std::vector<std::vector<int64_t>> numbers, steps;
    for (size_t i = 0; i < 1 + below(4); ++i) {
      body.push_back(instructionOf(100 + below(1000)));
      numbers.push_back(numbersOf(body.back()));
      steps.emplace_back();
      for (size_t k = 0; k < numbers.back().size(); ++k) steps.back().push_back(below(4));
    }
    const size_t count = 2 + below(5);
    lists.looped.addLoop(body, steps, count);
    for (size_t k = 0; k < count; ++k) {
      for (size_t i = 0; i < body.size(); ++i) {
        setNumbers(lists.plain.emplace_back(body[i]), numbers[i]);
        for (size_t n = 0; n < numbers[i].size(); ++n) numbers[i][n] += steps[i][n];
      }
    }
  }
  return lists;
}

TEST(LoopedList, IsTheVectorOfItsItems) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const Lists lists = randomLists(random);
    const std::vector<Instruction>& plain = lists.plain;
    ASSERT_EQ(lists.looped.size(), plain.size());
    size_t at = 0;
    for (const Instruction& item : lists.looped) ASSERT_TRUE(same(item, plain[at++])) << round;
    ASSERT_EQ(at, plain.size());
    const InstructionReader reader(lists.looped);
    for (size_t i = 0; i < 3 * plain.size(); ++i) {
      const size_t any = random() % plain.size();
      ASSERT_TRUE(same(reader[any], plain[any]));
      ASSERT_TRUE(same(lists.looped.copyAt(any), plain[any]));
      ASSERT_EQ(formOf(lists.looped.form(any)), formOf(plain[any]));
    }
    LoopedList<Instruction> unrolled = lists.looped;
    ASSERT_EQ(unrolled.unrolled().size(), plain.size());
    for (size_t i = 0; i < plain.size(); ++i) ASSERT_TRUE(same(unrolled.plain()[i], plain[i]));
  }
}

TEST(LoopedList, WhatIsChangedOnceIsChangedInAllIterations) {
  std::mt19937 random(2);
  for (int round = 0; round < 100; ++round) {
    Lists lists = randomLists(random);
    std::vector<bool> is_stored(lists.plain.size());
    lists.looped.forEachStored([&](size_t i, Instruction& item) {
      ASSERT_TRUE(same(item, lists.plain[i]));
      is_stored[i] = true;
      item.offset += 1000;
    });
    for (const LoopedList<Instruction>::Loop& loop : lists.looped.loops()) {
      for (size_t i = loop.first; i < loop.end(); ++i) ASSERT_EQ(is_stored[i], i < loop.first + loop.period);
    }
    lists.looped.push_back(instructionOf(7));
    ASSERT_EQ(lists.looped.copyAt(lists.plain.size()).offset, 7);
    size_t at = 0;
    for (const Instruction& item : std::as_const(lists.looped)) {
      if (at == lists.plain.size()) break;
      ASSERT_EQ(item.offset, lists.plain[at++].offset + 1000);
    }
  }
}

TEST(LoopedList, BuffersCountInTheirNames) {
  LoopedList<Buffer> buffers;
  Buffer buffer;
  buffer.name = "h@8[0:4]";
  buffers.addLoop({buffer}, {{2}}, 4);
  EXPECT_EQ(buffers.copyAt(3).name, "h@14[0:4]");
  EXPECT_EQ(buffers.form(3).name, "h@8[0:4]");
  buffers.forEachStored([](size_t, Buffer& stored) { stored.name = "h@8[4:8]"; });
  std::string names;
  for (const Buffer& item : std::as_const(buffers)) names += item.name + " ";
  EXPECT_EQ(names, "h@8[4:8] h@10[4:8] h@12[4:8] h@14[4:8] ");
}

}  // namespace
}  // namespace pipeshard
