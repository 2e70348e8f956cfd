#include "tools/observe/run_log.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "runtime/files/durable_folder.h"
#include "tools/output/log_lines.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSteps = "steps.jsonl";
constexpr const char* kTable = "steps.csv";
constexpr const char* kEvaluations = "evaluations.jsonl";
constexpr const char* kEvents = "events.jsonl";
constexpr const char* kHeading =
    "step,loss,seconds,examples_per_second,time,learning_rate,gradient_norm,tokens_per_second,resident_"
    "bytes\n";
constexpr std::chrono::milliseconds kFlushEvery{50};
constexpr size_t kMostShown = 4096;  // of a table's first line

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

const char* eventName(JobProgress::Kind kind) {
  switch (kind) {
    case JobProgress::Kind::kResumed: return "resumed";
    case JobProgress::Kind::kCheckpoint: return "checkpoint";
    case JobProgress::Kind::kEvaluated: return "evaluation";
    case JobProgress::Kind::kRestarted: return "restart";
    case JobProgress::Kind::kNotice: return "notice";
    default: return nullptr;
  }
}

// "" for what there is no number for.
std::string textOf(const std::optional<double>& number, const char* format = "{:.9g}") {
  return number && std::isfinite(*number) ? fmt::format(fmt::runtime(format), *number) : "";
}

using Columns = std::vector<std::pair<std::string_view, std::string>>;

std::string jsonLine(const Columns& columns) {
  std::string line;
  for (const auto& [name, number] : columns)
    line += fmt::format("{}\"{}\":{}", line.empty() ? "{" : ",", name, number.empty() ? "null" : number);
  return line + "}\n";
}

std::string tableLine(const Columns& columns) {
  std::string line;
  for (const auto& column : columns) line += (line.empty() ? "" : ",") + column.second;
  return line + "\n";
}

}  // namespace

RunLog::RunLog(const std::string& directory, const std::function<void(const std::string&)>& notice,
               std::chrono::milliseconds patience)
    : directory_(directory), notice_(notice), files_(notice) {
  if (directory_.empty()) return;
  makeFolder(directory_);
  for (const char* name : {kSteps, kTable, kEvaluations, kEvents}) requireWritable(pathOf(name));
  lock_ = FolderLock(pathOf("lock"), directory_, "another job writes its log into", patience);
  const std::string table = pathOf(kTable);
  const std::optional<std::string> found = firstLineOf(table, kMostShown);
  if (found && *found + "\n" != kHeading) {
    fail(ErrorCode::kConfiguration,
         "--log {}: {} has other columns than this pipeshard writes; found {}; "
         "choose another folder",
         directory_, table, *found);
  }
  events_ = open(kEvents, "");
  event_file_.emplace(directory_);
}

std::string RunLog::pathOf(const std::string& name) const { return (fs::path(directory_) / name).string(); }

RunLog::File RunLog::open(const std::string& name, const std::string& heading) const {
  const std::string path = pathOf(name);
  File file(std::fopen(path.c_str(), "ae"));
  if (!file) failToWrite(path, errno);
  if (std::fseek(file.get(), 0, SEEK_END) == 0 && std::ftell(file.get()) == 0)
    std::fputs(heading.c_str(), file.get());
  return file;
}

std::optional<int64_t> RunLog::dropStepsBehind(int64_t step) {
  steps_.reset();
  table_.reset();
  evaluations_.reset();
  std::optional<int64_t> last;
  for (const auto& [name, heading] : {std::pair{kSteps, ""}, {kTable, kHeading}, {kEvaluations, ""}})
    last = std::max(last, cutLogBehind(pathOf(name), step, heading));
  return last;
}

void RunLog::write(File& file, const std::string& line, const std::string& name) {
  if (std::fputs(line.c_str(), file.get()) < 0) failToWrite(pathOf(name), errno);
}

void RunLog::flush() {
  flushed_ = std::chrono::steady_clock::now();
  for (const auto& [file, name] :
       {std::pair{&steps_, kSteps}, {&table_, kTable}, {&evaluations_, kEvaluations}, {&events_, kEvents}}) {
    if (*file && std::fflush(file->get()) != 0) failToWrite(pathOf(name), errno);
  }
  event_file_->flush();
}

void RunLog::take(const JobProgress& event, const RunFigures& figures) {
  if (!directory_.empty()) files_.attempt([&] { record(event, figures); });
}

void RunLog::record(const JobProgress& event, const RunFigures& figures) {
  if (const char* name = eventName(event.kind); name != nullptr) takeEvent(name, event);
  if (event.kind == JobProgress::Kind::kStep) takeStep(event, figures);
  if (event.kind == JobProgress::Kind::kEvaluated) takeEvaluation(event);
}

void RunLog::takeEvent(const char* name, const JobProgress& event) {
  nlohmann::ordered_json line = {{"time", now()}, {"event", name}};
  const bool is_restart = event.kind == JobProgress::Kind::kRestarted;
  if (event.step > 0 || is_restart || event.kind == JobProgress::Kind::kEvaluated) line["step"] = event.step;
  if (is_restart) line.update({{"from", event.from}, {"seconds", std::round(event.seconds * 1e3) / 1e3}});
  line["text"] = event.kind != JobProgress::Kind::kEvaluated
                     ? event.text
                     : "held-out loss " + textOf(event.loss) + (event.exact ? "" : " (approximate)");
  write(events_, line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n", kEvents);
  flush();
}

void RunLog::beginAt(int64_t step) {
  const std::optional<int64_t> dropped = dropStepsBehind(step - 1);
  if (dropped && last_step_ == 0) {  // else a restart, which is said
    const std::string text = fmt::format(
        "--log {}: what an earlier run has left of steps {} to {} is taken out; they are done again",
        directory_, step, *dropped);
    if (notice_) notice_(text);
    takeEvent("notice", {.kind = JobProgress::Kind::kNotice, .text = text});
  }
  steps_ = open(kSteps, "");
  table_ = open(kTable, kHeading);
  event_file_->beginAgainAt(now(), step);
}

void RunLog::takeStep(const JobProgress& event, const RunFigures& figures) {
  if (!steps_ || event.step <= last_step_) beginAt(event.step);
  last_step_ = event.step;
  const double time = now();
  const auto rateOf = [&](int64_t count) -> std::optional<double> {
    if (count == 0 || event.seconds <= 0) return std::nullopt;
    return static_cast<double>(count) / event.seconds;
  };
  const Columns columns = {{"step", std::to_string(event.step)},
                           {"loss", textOf(event.loss)},
                           {"seconds", fmt::format("{:.6g}", event.seconds)},
                           {"examples_per_second", textOf(rateOf(figures.examples), "{:.6g}")},
                           {"time", fmt::format("{:.3f}", time)},
                           {"learning_rate", textOf(figures.learning_rate)},
                           {"gradient_norm", textOf(figures.gradient_norm)},
                           {"tokens_per_second", textOf(rateOf(figures.tokens), "{:.6g}")},
                           {"resident_bytes", std::to_string(figures.resident_bytes)}};
  Columns line = columns;
  if (figures.loss_scale) line.emplace_back("loss_scale", textOf(figures.loss_scale));
  write(steps_, jsonLine(line), kSteps);
  write(table_, tableLine(columns), kTable);
  EventFile::Scalars scalars{{"throughput/step_seconds", event.seconds}};
  const auto add = [&](std::string_view tag, const std::optional<double>& number) {
    if (number) scalars.emplace_back(tag, *number);
  };
  add("train/loss", event.loss);
  add("train/learning_rate", figures.learning_rate);
  add("train/gradient_norm", figures.gradient_norm);
  add("train/loss_scale", figures.loss_scale);
  add("throughput/examples_per_second", rateOf(figures.examples));
  add("throughput/tokens_per_second", rateOf(figures.tokens));
  if (figures.resident_bytes > 0)
    add("memory/largest_worker_bytes", static_cast<double>(figures.resident_bytes));
  event_file_->write(time, event.step, scalars);
  if (std::chrono::steady_clock::now() - flushed_ >= kFlushEvery) flush();
}

void RunLog::takeEvaluation(const JobProgress& event) {
  if (!evaluations_ || event.step < last_step_) {  // the first one, or the job went back
    evaluations_.reset();
    cutLogBehind(pathOf(kEvaluations), event.step - 1);
    evaluations_ = open(kEvaluations, "");
  }
  const double time = now();
  write(evaluations_,
        jsonLine({{"step", std::to_string(event.step)},
                  {"loss", textOf(event.loss)},
                  {"seconds", fmt::format("{:.6g}", event.seconds)},
                  {"time", fmt::format("{:.3f}", time)},
                  {"exact", event.exact ? "true" : "false"}}),
        kEvaluations);
  if (event.loss) event_file_->write(time, event.step, {{"evaluation/loss", *event.loss}});
  flush();
}

}  // namespace pipeshard
