#include "tools/run_log.h"

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/text_file.h"
#include "runtime/files/durable_folder.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSteps = "steps.jsonl";
constexpr const char* kTable = "steps.csv";
constexpr const char* kEvents = "events.jsonl";
constexpr const char* kHeading = "step,loss,seconds,examples_per_second,time\n";

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The step of a line of either file; nothing for a heading, or a line that was cut off.
std::optional<int64_t> stepOfLine(const std::string& line) {
  constexpr std::string_view kStart = R"({"step":)";
  const size_t at = line.starts_with(kStart) ? kStart.size() : 0;
  int64_t step = 0;
  const auto [end, error] = std::from_chars(line.data() + at, line.data() + line.size(), step);
  if (error != std::errc() || end == line.data() + line.size() || *end != ',') return std::nullopt;
  return step;
}

const char* eventName(JobProgress::Kind kind) {
  switch (kind) {
    case JobProgress::Kind::kResumed: return "resumed";
    case JobProgress::Kind::kCheckpoint: return "checkpoint";
    case JobProgress::Kind::kNotice: return "notice";
    default: return nullptr;
  }
}

}  // namespace

RunLog::RunLog(const std::string& directory, int64_t examples) : directory_(directory), examples_(examples) {
  if (directory_.empty()) return;
  makeFolder(directory_);
  events_ = open(kEvents, "");
}

RunLog::File RunLog::open(const std::string& name, const std::string& heading) const {
  const std::string path = (fs::path(directory_) / name).string();
  File file(std::fopen(path.c_str(), "ae"));
  if (!file) failToWrite(path, errno);
  if (std::fseek(file.get(), 0, SEEK_END) == 0 && std::ftell(file.get()) == 0)
    std::fputs(heading.c_str(), file.get());
  return file;
}

void RunLog::dropStepsBehind(int64_t step) {
  steps_.reset();
  table_.reset();
  for (const char* name : {kSteps, kTable}) {
    const std::string path = (fs::path(directory_) / name).string();
    const std::optional<std::string> text = readTextFile(path);
    if (!text) continue;
    std::string kept;
    std::istringstream lines(*text);
    for (std::string line; std::getline(lines, line);) {
      const std::optional<int64_t> of_line = stepOfLine(line);
      if (of_line ? *of_line <= step : line + "\n" == kHeading) kept += line + "\n";
    }
    if (kept != *text) writeTextFile(path, kept);
  }
}

void RunLog::write(File& file, const std::string& line, const std::string& name) {
  if (std::fputs(line.c_str(), file.get()) < 0 || std::fflush(file.get()) != 0)
    failToWrite((fs::path(directory_) / name).string(), errno);
}

void RunLog::take(const JobProgress& event) {
  if (directory_.empty()) return;
  if (const char* name = eventName(event.kind); name != nullptr) {
    nlohmann::ordered_json line = {{"time", now()}, {"event", name}};
    if (event.step > 0) line["step"] = event.step;
    line["text"] = event.text;
    write(events_, line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n",
          kEvents);
  }
  if (event.kind != JobProgress::Kind::kStep) return;
  if (!steps_ || event.step <= last_step_) {
    dropStepsBehind(event.step - 1);
    steps_ = open(kSteps, "");
    table_ = open(kTable, kHeading);
  }
  last_step_ = event.step;
  const bool has_loss = event.loss && std::isfinite(*event.loss);
  const double rate = event.seconds > 0 ? static_cast<double>(examples_) / event.seconds : 0;
  const std::string loss = has_loss ? fmt::format("{:.9g}", *event.loss) : "";
  write(steps_,
        fmt::format(
            "{{\"step\":{},\"loss\":{},\"seconds\":{:.6g},\"examples_per_second\":{:.6g},\"time\":{:.3f}}}\n",
            event.step, has_loss ? loss : "null", event.seconds, rate, now()),
        kSteps);
  write(table_, fmt::format("{},{},{:.6g},{:.6g},{:.3f}\n", event.step, loss, event.seconds, rate, now()),
        kTable);
}

}  // namespace pipeshard
