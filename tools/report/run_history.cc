#include "tools/report/run_history.h"

#include <filesystem>
#include <functional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/json_reader.h"
#include "ir/base/text_lines.h"

namespace pipeshard {
namespace {

// A line is a step or an event.
constexpr TextLines::Limits kLogLimits{.most_line_bytes = uint64_t{1} << 20};

// A line of a log, whose fields are checked when they are asked for.
class LogLine {
 public:
  LogLine(const std::string& text, std::string what) : json_(parseJson(text, what)), what_(std::move(what)) {
    if (!json_.is_object()) fail(ErrorCode::kConfiguration, "{}: found no object", what_);
  }

  int64_t step(const char* key = "step") const {
    const auto found = json_.find(key);
    if (found != json_.end() && found->is_number_unsigned() && found->get<uint64_t>() <= INT64_MAX)
      return found->get<int64_t>();
    fail(ErrorCode::kConfiguration, "{}: expected a \"{}\" that is a whole number", what_, key);
  }
  std::string text(const char* key) const {
    const auto found = json_.find(key);
    if (found != json_.end() && found->is_string()) return found->get<std::string>();
    fail(ErrorCode::kConfiguration, "{}: expected a text as \"{}\"", what_, key);
  }
  // Nothing where it is missing, or null.
  std::optional<double> number(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return std::nullopt;
    if (found->is_number()) return found->get<double>();
    fail(ErrorCode::kConfiguration, "{}: expected a number as \"{}\"", what_, key);
  }
  bool isEvent(const char* name) const {
    const auto found = json_.find("event");
    return found != json_.end() && *found == name && json_.contains("step");
  }

 private:
  Json json_;
  std::string what_;
};

// Calls `take` with every whole line. False where there is no such file.
bool forEachLine(const std::filesystem::path& path, const std::function<void(const LogLine&)>& take) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return false;
  TextLines lines(path.string(), "a log", kLogLimits);
  for (std::string line; lines.next(line) && lines.isWhole();)
    take(LogLine(line, fmt::format("{}, line {}", path.string(), lines.number())));
  return true;
}

}  // namespace

RunHistory readRunHistory(const std::string& directory) {
  const std::filesystem::path folder(directory);
  RunHistory history;
  const bool there = forEachLine(folder / "steps.jsonl", [&](const LogLine& line) {
    history.steps.push_back({line.step(), line.number("loss"), line.number("seconds").value_or(0),
                             line.number("examples_per_second"), line.number("tokens_per_second"),
                             line.number("learning_rate"), line.number("gradient_norm")});
  });
  if (!there) {
    fail(ErrorCode::kMissingInput,
         "--log {}: there is no steps.jsonl; `pipeshard run --log {}` writes one while it trains", directory,
         directory);
  }
  forEachLine(folder / "evaluations.jsonl", [&](const LogLine& line) {
    history.evaluations.push_back({line.step(), line.number("loss"), line.number("seconds").value_or(0)});
  });
  forEachLine(folder / "events.jsonl", [&](const LogLine& line) {
    if (line.isEvent("resumed")) history.resumed.push_back(line.step());
    if (!line.isEvent("restart")) return;
    history.restarts.push_back(
        {line.step(), line.step("from"), line.number("seconds").value_or(0), line.text("text")});
  });
  return history;
}

}  // namespace pipeshard
