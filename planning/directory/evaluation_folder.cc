#include "planning/directory/evaluation_folder.h"

#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/json_reader.h"
#include "ir/base/text_file.h"
#include "planning/directory/plan_directory.h"
#include "planning/directory/program_files.h"
#include "planning/directory/refresh_programs.h"
#include "planning/directory/replay.h"
#include "planning/programs/evaluation_programs.h"
#include "planning/programs/kept_tensors.h"
#include "runtime/evaluation/rank_evaluation.h"
#include "runtime/execute/rank_image.h"
#include "runtime/execute/step_runner.h"
#include "runtime/files/durable_folder.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRecordName = "evaluation.json";
constexpr int kRecordVersion = 4;

// What the programs in the folder were made for.
struct Record {
  std::string made_from;
  int64_t rows = 0;
  int64_t batch = 1;
  int64_t last_batch = 0;
  int64_t left_out = 0;
  std::string divisor;
  bool adds = false;
  bool exact = true;
  int64_t drawn = 0;
};

std::string toJson(const Record& record) {
  Json json = {{"version", kRecordVersion},
               {"made_from", record.made_from},
               {"rows", record.rows},
               {"batch", record.batch},
               {"last_batch", record.last_batch},
               {"left_out", record.left_out},
               {"divisor", record.divisor},
               {"adds", record.adds},
               {"exact", record.exact},
               {"drawn", record.drawn}};
  return dumpJson(json);
}

// Nothing where it cannot be used: it is made again.
std::optional<Record> readRecord(const fs::path& folder) {
  const std::optional<std::string> text = readTextFile((folder / kRecordName).string());
  if (!text) return std::nullopt;
  try {
    const Json json = parseJson(*text, kRecordName);
    checkJsonVersion(json, kRecordName, kRecordVersion);
    const JsonReader reader(json, kRecordName);
    reader.expectObject({"version", "made_from", "rows", "batch", "last_batch", "left_out", "divisor", "adds",
                         "exact", "drawn"});
    const auto count = [&](const char* key) { return reader.at(key).integer(0, INT64_MAX); };
    return Record{reader.at("made_from").string(),
                  count("rows"),
                  count("batch"),
                  count("last_batch"),
                  count("left_out"),
                  reader.at("divisor").string(),
                  reader.at("adds").boolean(),
                  reader.at("exact").boolean(),
                  count("drawn")};
  } catch (const Error&) {
    return std::nullopt;
  }
}

struct HeldOut {
  int64_t rows = 0;  // examples, whatever the batch; 1 where no input has rows
  std::string decisions;
};

HeldOut heldOutOf(const DataDescription& data, std::vector<ProgramInput> inputs, ShorterInputs shorter) {
  const auto takeOneRow = [](std::vector<ProgramInput>& all) {
    for (ProgramInput& input : all) {
      if (input.axis >= 0) input.shape.at(input.axis) = 1;
    }
  };
  takeOneRow(inputs);
  for (std::vector<ProgramInput>& all : shorter) takeOneRow(all);
  const auto source = openData(data, inputs, std::vector<bool>(inputs.size(), false), shorter);
  return {source->stepsPerEpoch(), source->decisions()};
}

// An evaluation reads what training keeps, where training keeps it.
void requireSameTensors(const EmittedPrograms& programs, const ProgramSet& trains) {
  for (const RankId rank : programs.set.ranks.ids()) {
    const auto kept = keptTensors(trains, rank);
    for (const auto& [name, place] : keptTensors(programs.set, rank)) {
      const auto found = kept.find(name);
      if (found != kept.end() && found->second == place) continue;
      fail(ErrorCode::kConfiguration,
           "--eval: rank {} would need '{}' {} in evaluation, which it {} while it trains; this plan cannot "
           "be evaluated beside its training",
           rank, name, shapeToString(std::get<3>(place)),
           found == kept.end() ? "does not have" : "keeps in another sharding");
    }
  }
}

Record makePrograms(const Plan& plan, const fs::path& plan_directory, const HeldOutRows& rows_of,
                    const ProgressCallback& progress) {
  std::optional<PartialFolder> built;  // first: where it cannot be made is said at once
  try {
    built.emplace(plan_directory / kEvaluationFolder);
  } catch (const Error& error) {
    fail(error.code(), "{}: programs that evaluate are kept in the plan; copy it to where you may write",
         error.message());
  }
  const ReplayedModel replayed = replayModel(plan, progress);
  progress("writing the programs of the evaluation");
  Record record;
  EvaluationPrograms programs =
      emitEvaluationPrograms(replayed.model, replayed.training, replayed.batch, plan,
                             [&](const Program& program, const ShorterInputs& shorter) {
                               return record.rows = rows_of(program, shorter);
                             });
  record.made_from = madeFrom(plan);
  record.batch = programs.batch;
  record.last_batch = programs.last_batch;
  record.left_out = programs.left_out;
  record.divisor = programs.divisor;
  record.adds = programs.adds;
  record.exact = programs.exact;
  record.drawn = programs.drawn;
  const ProgramSet trains = ProgramFolder(plan_directory.string()).takeSet();
  requireSameTensors(programs.whole, trains);
  if (programs.last) requireSameTensors(*programs.last, trains);
  for (const EmittedPrograms& shorter : programs.shorter) requireSameTensors(shorter, trains);
  ProgramsBySize sizes;
  sizes[StepSize::kWholeBatch] = std::move(programs.whole);
  if (programs.last) sizes[StepSize::kLastBatch] = std::move(*programs.last);
  for (size_t k = 0; k < programs.shorter.size(); ++k) sizes[{false, k + 1}] = std::move(programs.shorter[k]);
  writePrograms(std::move(sizes), built->path().string());
  writeTextFile((built->path() / kRecordName).string(), toJson(record));
  built->publish();
  return record;
}

std::string describe(const Record& record, const std::string& data, const EvaluationFolder& made) {
  const std::string together = record.adds              ? "added up: the loss is a sum over all their rows"
                               : record.divisor.empty() ? "weighted by their rows"
                                                        : "weighted by what their loss is divided by";
  const char* approximate =
      record.adds
          ? "; the loss is approximate: it has a term that is no sum over rows, which every batch adds"
          : "; the loss is approximate: the model does not tell what it is a mean of";
  const bool together_exact = record.exact || made.batches == 1;
  std::string text =
      fmt::format("{}; {} in {} batch{}, {}{}", data, counted(record.rows, "example"), made.batches,
                  made.batches == 1 ? "" : "es", together, together_exact ? "" : approximate);
  if (record.left_out > 0) {
    const bool one = record.left_out == 1;
    text += fmt::format(
        "; the last {} that the plan's devices cannot share {} left out, so the loss is "
        "approximate: it is that of the others",
        one ? "example" : counted(record.left_out, "example"), one ? "is" : "are");
  }
  if (record.drawn > 0) text += "; the model draws random numbers in evaluation, too";
  return text;
}

}  // namespace

EvaluationFolder prepareEvaluation(const std::string& plan_directory, const DataDescription& data,
                                   const ProgressCallback& progress) {
  const Plan plan = readPlanDirectory(plan_directory);
  if (plan.given.optimizer.kind == OptimizerSpec::Kind::kNone) {
    fail(ErrorCode::kUsage, "--eval {}: the plan {} is an evaluation itself; give these data as --data",
         data.path, plan_directory);
  }
  if (isPipe(data)) {
    fail(ErrorCode::kUsage,
         "--eval {}: held-out data are read anew in every evaluation; give a file or folder, not a pipe",
         data.path);
  }
  const fs::path folder = fs::path(plan_directory) / kEvaluationFolder;
  std::optional<Record> record = readRecord(folder);
  HeldOut held_out;
  try {
    if (record && record->made_from == madeFrom(plan)) {
      ProgramFolder programs(folder.string());
      const std::vector<ProgramInput> inputs = programs.program(RankId(0)).inputs;
      held_out = heldOutOf(data, inputs, shorterInputs(programs, RankId(0)));
      if (held_out.rows != record->rows) record.reset();
    } else {
      record.reset();
    }
    const HeldOutRows rows_of = [&](const Program& program, const ShorterInputs& shorter) {
      held_out = heldOutOf(data, program.inputs, shorter);
      return held_out.rows;
    };
    if (!record) record = makePrograms(plan, plan_directory, rows_of, progress);
  } catch (Error& error) {
    error.addContext(fmt::format("--eval {}", data.path));
    throw;
  }
  EvaluationFolder made;
  made.rows = record->rows;
  made.divisor = record->divisor;
  made.drop_last = record->left_out > 0;
  made.batches = std::max<int64_t>(1, record->rows / record->batch) + (record->last_batch > 0 ? 1 : 0);
  made.adds = record->adds;
  made.exact = (record->exact || made.batches == 1) && record->left_out == 0;
  const std::string decisions = held_out.decisions.empty() ? "" : ": " + held_out.decisions;
  made.text = describe(*record, printData(data) + decisions, made);
  return made;
}

void makeEvaluation(const std::string& plan_directory, int64_t rows, const ProgressCallback& progress) {
  const Plan plan = readPlanDirectory(plan_directory);
  const std::optional<Record> record = readRecord(fs::path(plan_directory) / kEvaluationFolder);
  if (record && record->made_from == madeFrom(plan) && record->rows == rows) return;
  makePrograms(
      plan, plan_directory, [&](const Program&, const ShorterInputs&) { return rows; }, progress);
}

}  // namespace pipeshard
