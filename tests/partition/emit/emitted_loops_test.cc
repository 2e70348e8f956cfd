// Kinds' files of emitted programs: steady states are loops, what is read is what was emitted, and whatever
// is changed in a loop is refused exactly where the same list in full is.
#include <random>

#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/program/program_json.h"
#include "ir/program/program_verify.h"
#include "partition/emit/emit_programs.h"
#include "partition/families/make_schedule.h"
#include "partition/families/plan_schedule.h"
#include "partition/stages/partition_training.h"
#include "tests/ir/program/unrolled_json.h"
#include "tests/partition/schedules/schedule_from_text.h"
#include "tests/partition/training_builder.h"

namespace pipeshard {
namespace {

using Json = UnrolledJson::Json;

IdVector<RankId, RankProgram> emit(const std::string& schedule, int ranks, int64_t microbatches) {
  const int stages = ranks * chunksOf(schedule);
  PartitionOptions options;
  options.schedule = parseSchedule(schedule);
  options.cluster = uniformCluster(1, ranks);
  for (int s = 0; s + 1 < stages; ++s) options.boundaries.push_back("h" + std::to_string(s));
  const TrainingGraph training = chainTraining(stages, microbatches);
  return emitOneSize(training, planFor(training, options));
}

ProgramKind kindOf(const Program& program) {
  const size_t buffers = program.buffers.size();
  return {program, std::vector<int>(buffers, -1), std::vector<bool>(buffers)};
}

// Every schedule that trains, over ranks and microbatches.
TEST(EmittedLoops, ComeBackItemForItemUnderEverySchedule) {
  int compared = 0;
  for (const ScheduleFamily& family : scheduleFamilies()) {
    for (const int ranks : {1, 2, 4}) {
      for (const int64_t microbatches : {1, 2, 7, 8, 16}) {
        IdVector<RankId, RankProgram> emitted;
        try {
          if (makeSchedule(family.name, ranks, microbatches).forward_only) continue;
          emitted = emit(family.name, ranks, microbatches);
        } catch (const Error&) {
          continue;  // it does not exist
        }
        for (const RankProgram& rank : emitted) {
          const std::string text = kindToJson(kindOf(rank.program)), in_full = programToJson(rank.program);
          ASSERT_EQ(programToJson(kindFromJson(text).program), in_full) << family.name;
          ASSERT_EQ(programToJson(kindFromJson(UnrolledJson::of(Json::parse(text))).program), in_full);
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 200);
}

// A steady state is written once, however long it is.
TEST(EmittedLoops, ATextDoesNotGrowWithTheMicrobatches) {
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved:v=2", "zb-h1"}) {
    const auto few = emit(schedule, 4, 32), many = emit(schedule, 4, 256);
    for (const RankId rank : few.ids()) {
      const size_t before = kindToJson(kindOf(few[rank].program)).size();
      const size_t after = kindToJson(kindOf(many[rank].program)).size();
      EXPECT_LT(after, before + before / 10) << schedule << ", rank " << rank.index();
      EXPECT_GT(programToJson(many[rank].program).size(), 5 * after) << schedule << ", rank " << rank.index();
    }
  }
}

// Kinds' documents, of which one loop gets a fault.
class MutatedLoops {
 public:
  explicit MutatedLoops(const IdVector<RankId, RankProgram>& ranks) {
    for (const RankProgram& rank : ranks) documents_.push_back(Json::parse(kindToJson(kindOf(rank.program))));
  }

  void mutate(std::mt19937& random) {
    std::vector<Json*> loops;
    for (const char* key : {"instructions", "instructions", "instructions", "buffers", "results"}) {
      for (Json& element : documents_[random() % documents_.size()].at(key)) {
        if (element.contains("repeat")) loops.push_back(&element);
      }
    }
    if (!loops.empty()) change(*loops[random() % loops.size()], random);
  }

  // The programs that are read, or nothing where something is refused.
  template <typename TextOf>
  std::optional<std::vector<std::string>> accepted(const TextOf& text_of) const {
    std::vector<Program> programs;
    std::vector<std::string> texts;
    try {
      for (const Json& document : documents_) {
        programs.push_back(kindFromJson(text_of(document)).program);
        texts.push_back(programToJson(programs.back()));
      }
      verifyPrograms(programs);
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::kConfiguration || error.code() == ErrorCode::kInternal)
          << error.message();
      return std::nullopt;
    } catch (const std::runtime_error&) {  // of UnrolledJson
      return std::nullopt;
    }
    return texts;
  }

 private:
  static void change(Json& loop, std::mt19937& random) {
    Json& body = loop["body"];
    Json& steps = loop["steps"];
    const size_t i = random() % body.size(), j = random() % body.size();
    const int64_t by = static_cast<int64_t>(random() % 5) - 2;
    switch (random() % 8) {
      case 0: loop["repeat"] = loop["repeat"].get<int64_t>() + by; break;
      case 1: loop["repeat"] = static_cast<int64_t>(random() % 64) - 1; break;
      case 2:
      case 3:
        if (Json& of_item = steps[i]; !of_item.empty()) {
          Json& step = of_item[random() % of_item.size()];
          step = step.get<int64_t>() + by;
        }
        break;
      case 4: changeSlot(body[i], random); break;
      case 5: std::swap(body[i], body[j]); break;
      case 6:  // a whole step elsewhere
        std::swap(body[i], body[j]);
        std::swap(steps[i], steps[j]);
        break;
      default:
        body.erase(i);
        if (random() % 4 != 0) steps.erase(i);
    }
  }

  static void changeSlot(Json& item, std::mt19937& random) {
    for (const char* key : {"inputs", "outputs", "microbatch", "buffer"}) {
      if (!item.contains(key) || random() % 2 != 0) continue;
      Json& slot = item[key].is_array() ? item[key][random() % item[key].size()] : item[key];
      slot = slot.get<int64_t>() + (random() % 2 == 0 ? 1 : -1);
      return;
    }
  }

  std::vector<Json> documents_;
};

TEST(EmittedLoops, AChangedLoopIsRefusedExactlyWhereTheListInFullIs) {
  std::mt19937 random(20);
  int refused = 0, passed = 0;
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved:v=2", "zb-h1"}) {
    const MutatedLoops untouched(emit(schedule, 3, 12));
    for (int run = 0; run < 500; ++run) {
      MutatedLoops mutated = untouched;
      mutated.mutate(random);
      const auto read = mutated.accepted([](const Json& document) { return document.dump(); });
      const auto in_full = mutated.accepted([](const Json& document) { return UnrolledJson::of(document); });
      ASSERT_EQ(read.has_value(), in_full.has_value()) << schedule << ", run " << run;
      if (read) {
        ASSERT_EQ(*read, *in_full) << schedule << ", run " << run;
      }
      ++(read ? passed : refused);
    }
  }
  EXPECT_GT(refused, 1200);
  EXPECT_GT(passed, 50);
}

}  // namespace
}  // namespace pipeshard
