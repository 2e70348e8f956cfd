// What a message between devices waits for, of a program whose buffers and temporaries have been given
// places.
#include <gtest/gtest.h>

#include "runtime/execute/memory_plan.h"
#include "tests/ir/program/program_writer.h"

namespace pipeshard {
namespace {

TEST(WaitsOfMessages, AreForWorkOnTheirMemory) {
  ProgramWriter writer(0, 2, 1);
  writer.program().groups = {{RankId(0), RankId(1)}};
  writer.zero("a");                       // 0: at 0
  writer.zero("b");                       // 1: at 64
  writer.send(1, "a");                    // 2: behind 0
  writer.receive(1, "c");                 // 3: at 128, which nothing has touched
  writer.accumulate("c", "b", false, 0);  // 4
  writer.receive(1, "d");                 // 5: at 120, up to the middle of c, which 4 reads
  writer.send(1, "c");                    // 6: read, not written: only the message before has written it
  writer.allReduce(0, "b");               // 7: in the background
  writer.inBackground();
  writer.send(1, "b");     // 8: behind 7, whose moment is not known: all before it
  writer.release("a");     // 9: no work
  writer.receive(1, "e");  // 10: at 0, of which 0 has written, and a message read
  writer.parameter("w");
  writer.send(1, "w");  // 11: as the step before has left it
  const Program& program = writer.program();
  MemoryPlan plan;
  plan.offsets = {0, 64, 128, 120, 0, 256};
  ASSERT_EQ(program.buffers.size(), plan.offsets.size());
  const std::vector<const RunMemory*> runs(program.instructions.size());
  const Accumulation accumulation =
      findAccumulation(program, [](const Instruction&, size_t) { return false; });
  const std::vector<std::optional<size_t>> waits = waitsOfMessages(program, accumulation, plan, runs);
  const auto of = [&](size_t i) { return waits.at(i); };
  EXPECT_EQ(of(2), 1u);
  EXPECT_EQ(of(3), std::nullopt);
  EXPECT_EQ(of(5), 5u);
  EXPECT_EQ(of(6), std::nullopt);
  EXPECT_EQ(of(8), 9u);
  EXPECT_EQ(of(10), 1u);
  EXPECT_EQ(of(11), 0u);

  // An accumulation that its run has done is no work, and what a run makes for itself lies somewhere.
  Accumulation done = accumulation;
  done.done[4] = true;
  EXPECT_EQ(waitsOfMessages(program, done, plan, runs)[5], std::nullopt);
  RunMemory zeros;
  zeros.temporaries = {{8, 0, 1}};
  std::vector<const RunMemory*> with_run = runs;
  with_run[1] = &zeros;
  plan.run_of.assign(program.instructions.size(), 0);
  plan.run_base = 100;
  plan.run_offsets = {{40}};
  EXPECT_EQ(waitsOfMessages(program, accumulation, plan, with_run)[3], 2u);
}

}  // namespace
}  // namespace pipeshard
