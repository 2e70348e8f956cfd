#include "runtime/evaluation/evaluation.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "runtime/device/aligned_memory.h"
#include "runtime/execute/executor.h"
#include "tests/expect_error.h"
#include "tests/runtime/pipeline_program.h"

namespace pipeshard {
namespace {

TEST(EvaluationSpecTest, IsDueAfterEverySoManySteps) {
  EvaluationSpec spec;
  spec.every_steps = 10;
  EXPECT_EQ(spec.nextDue(0), std::numeric_limits<int64_t>::max()) << "nothing was asked for";
  spec.data.path = "held.npz";
  EXPECT_EQ(spec.nextDue(0), 10);
  EXPECT_EQ(spec.nextDue(9), 10);
  EXPECT_EQ(spec.nextDue(10), 20);
  spec.every_steps = 0;
  EXPECT_EQ(spec.nextDue(0), std::numeric_limits<int64_t>::max()) << "at the end alone";
}

TEST(EvaluationSpecTest, IsFirstWhereOneWasDueThatIsNotKnown) {
  EvaluationSpec spec;
  spec.every_steps = 10;
  spec.at_start = true;
  EXPECT_FALSE(spec.isFirst(0) || spec.isFirst(10)) << "nothing was asked for";
  spec.data.path = "held.npz";
  EXPECT_TRUE(spec.isFirst(0));
  EXPECT_TRUE(spec.isFirst(10));
  EXPECT_FALSE(spec.isFirst(11));
  spec.at_start = false;
  spec.known_step = 10;
  EXPECT_FALSE(spec.isFirst(0));
  EXPECT_FALSE(spec.isFirst(10));
  EXPECT_TRUE(spec.isFirst(20));
}

TEST(EvaluationSpecTest, LossesAreWeighted) {
  WeightedLoss some, others;
  some.add(2, 8);
  some.add(3, 4);
  others.add(8, 4);
  EXPECT_TRUE(std::isnan(WeightedLoss().mean()));
  some.add(others);
  EXPECT_DOUBLE_EQ(some.mean(), (16.0 + 12 + 32) / 16);
}

// A host that keeps one tensor more than its guest, before all others.
RankImage hostImage() {
  RankImage image = std::move(pipelineImages(1)[0]);
  Buffer more;
  more.name = more.value = "more";
  more.kind = BufferKind::kWeight;
  more.data_type = more.source_type = DataType::kFloat64;
  more.shape = {37};
  more.source = makeConstant<double>({37}, std::vector<double>(37, 0.5));
  Program& program = image.program;
  program.buffers.unrolled().insert(program.buffers.begin(), more);
  const auto moved = [](BufferId& id) { id = id.next(); };
  for (Instruction& instruction : program.instructions) {
    for (BufferId& id : instruction.inputs) moved(id);
    for (BufferId& id : instruction.outputs) moved(id);
  }
  for (Result& result : program.results) moved(result.buffer);
  return image;
}

class GuestTest : public ::testing::Test {
 protected:
  GuestTest() : host_(hostImage(), {}), data_(makeDataSource({"", 5}, host_.program())) {}

  void attach(Executor& guest) {
    const int64_t bytes = std::max(host_.memory().total_bytes, guest.guestBytes(host_));
    arena_ = AlignedMemory(bytes);
    host_.attach(arena_.bytes(), nullptr, data_.get());
    guest.attachAsGuest(host_, arena_.bytes(), nullptr, data_.get());
  }

  Executor host_;
  std::unique_ptr<DataSource> data_;
  AlignedMemory arena_;
};

TEST_F(GuestTest, WorksOnTheTensorsOfItsHost) {
  Executor guest(std::move(pipelineImages(1)[0]), {});
  EXPECT_LT(guest.memory().total_bytes, host_.memory().total_bytes);
  attach(guest);
  EXPECT_EQ(guest.memory().total_bytes, host_.memory().total_bytes) << "the same but for the host's tensor";
  const std::vector<ExpectedStep> expected = expectedSteps(4, 5);
  for (int64_t step = 1; step <= 4; ++step) {
    // By turns; each finds the weights that the other has left.
    const StepReport report = step % 2 == 1 ? host_.runStep(step) : guest.runStep(step);
    ASSERT_TRUE(report.loss.has_value());
    EXPECT_NEAR(*report.loss, expected[step - 1].loss, 1e-12 * expected[step - 1].loss) << step;
  }
  std::vector<double> more(37);
  std::memcpy(more.data(), host_.content(BufferId(0)).data(), sizeof(double) * more.size());
  EXPECT_EQ(more, std::vector<double>(37, 0.5)) << "what the guest does not know of stays";
}

// The first parameter is changed.
template <typename Change>
RankImage guestImage(const Change& change) {
  RankImage image = std::move(pipelineImages(1)[0]);
  for (Buffer& buffer : image.program.buffers) {
    if (buffer.kind != BufferKind::kParameter) continue;
    change(buffer);
    break;
  }
  return image;
}

TEST_F(GuestTest, ATensorThatTheHostDoesNotHaveIsRefused) {
  Executor guest(guestImage([](Buffer& buffer) { buffer.name += "_other"; }), {});
  EXPECT_ERROR(attach(guest), ErrorCode::kConfiguration, "which the program that trains does not keep so");
}

TEST_F(GuestTest, APartOfATensorThatTheHostKeepsWholeIsRefused) {
  Executor guest(guestImage([](Buffer& buffer) {
                   buffer.part = BufferPart{{buffer.shape[0] * 2, buffer.shape[1]}, {0, 0}};
                 }),
                 {});
  EXPECT_ERROR(attach(guest), ErrorCode::kConfiguration, "which the program that trains does not keep so");
}

}  // namespace
}  // namespace pipeshard
