#include "tools/observe/progress_line.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "ir/base/amounts.h"
#include "tools/output/standard_streams.h"

namespace pipeshard {
namespace {

constexpr int kUsualWidth = 80;

struct Field {
  int importance;  // the largest number goes first
  std::string text;
};

std::vector<Field> fieldsOf(const RunFigures& figures) {
  std::vector<Field> fields{{0, fmt::format("step {}/{}", figures.step, figures.steps)}};
  if (figures.loss) fields.push_back({1, fmt::format("loss {:.6g}", *figures.loss)});
  if (figures.evaluation_loss)
    fields.push_back(
        {4, fmt::format("held-out {}{:.6g}", figures.evaluation_exact ? "" : "~", *figures.evaluation_loss)});
  fields.push_back({3, fmt::format("{} steps/s", formatRate(figures.steps_per_second))});
  if (figures.tokens_per_second > 0) {
    fields.push_back({5, fmt::format("{} tokens/s", formatRate(figures.tokens_per_second))});
  } else if (figures.examples_per_second > 0) {
    fields.push_back({5, fmt::format("{} examples/s", formatRate(figures.examples_per_second))});
  }
  if (figures.learning_rate) fields.push_back({6, fmt::format("lr {:.3g}", *figures.learning_rate)});
  if (figures.gradient_norm) fields.push_back({7, fmt::format("norm {:.3g}", *figures.gradient_norm)});
  if (figures.loss_scale) fields.push_back({7, fmt::format("scale {:g}", *figures.loss_scale)});
  if (figures.resident_bytes > 0) fields.push_back({8, formatBytes(figures.resident_bytes)});
  fields.push_back({2, formatDuration(figures.seconds_left) + " left"});
  return fields;
}

int columnsOf(const char* text) {
  int columns = 0;
  if (text == nullptr || std::from_chars(text, text + std::strlen(text), columns).ec != std::errc()) return 0;
  return std::max(columns, 0);
}

}  // namespace

std::string progressText(const RunFigures& figures, int width) {
  std::vector<Field> fields = fieldsOf(figures);
  const auto join = [&] {
    std::string text;
    for (const Field& field : fields) text += (text.empty() ? "" : "  ") + field.text;
    return text;
  };
  std::string text = join();
  while (width > 0 && std::ssize(text) > width && fields.size() > 1) {
    fields.erase(std::max_element(fields.begin(), fields.end(), [](const Field& a, const Field& b) {
      return a.importance < b.importance;
    }));
    text = join();
  }
  if (width == 0 || std::ssize(text) <= width) return text;
  // A number that is cut off would be another number.
  for (const std::string& shorter :
       {fmt::format("{}/{}", figures.step, figures.steps), fmt::format("{}", figures.step)}) {
    if (std::ssize(shorter) <= width) return shorter;
  }
  return "";
}

ProgressOutput progressOutput() {
  if (::isatty(STDOUT_FILENO) != 1) return {};
  ProgressOutput output;
  const char* kind = std::getenv("TERM");
  output.rewrites = kind != nullptr && *kind != '\0' && std::string_view(kind) != "dumb";
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) output.width = size.ws_col;
  if (output.width == 0) output.width = columnsOf(std::getenv("COLUMNS"));
  if (output.width == 0) output.width = kUsualWidth;
  // The last column stays free: terminals go to the next line when it is written.
  output.width = std::max(1, output.width - 1);
  return output;
}

void ProgressLine::print(const std::string& text) {
  if (is_open_) printControl(stdout, kEraseLine);
  is_open_ = false;
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

void ProgressLine::endLine() {
  if (is_open_) fmt::print("\n");
  is_open_ = false;
  std::fflush(stdout);
}

void ProgressLine::show(const JobProgress& event, const RunFigures& figures) {
  using Kind = JobProgress::Kind;
  if (event.kind == Kind::kResumed) print(fmt::format("going on after step {} ({})", event.step, event.text));
  if (event.kind == Kind::kCheckpoint) print("checkpoint: " + event.text);
  if (event.kind == Kind::kEvaluated) showEvaluation(event);
  if (event.kind == Kind::kStep) showStep(event, figures);
}

// Where lines stay, the step's own comes before it.
void ProgressLine::showEvaluation(const JobProgress& event) {
  const ProgressOutput output = progressOutput();
  if (unshown_ && unshown_->step == event.step && !output.rewrites) {
    shown_ = std::chrono::steady_clock::now();
    print(progressText(*unshown_, output.width));
    unshown_.reset();
  }
  print(fmt::format(
      "step {}: held-out loss {:.6g} ({}{})", event.step, event.loss.value_or(NAN),
      event.exact ? "" : "approximate; ",
      event.seconds < 9.95 ? fmt::format("{:.1f}s", event.seconds) : formatDuration(event.seconds)));
}

void ProgressLine::showStep(const JobProgress& event, const RunFigures& figures) {
  const auto now = std::chrono::steady_clock::now();
  const bool is_first = last_step_ < 0 || event.step <= last_step_;
  const bool is_last = event.step == figures.steps;
  last_step_ = event.step;
  unshown_ = figures;
  if (!is_first && !is_last && now - shown_ < std::chrono::seconds(1)) return;
  unshown_.reset();
  shown_ = now;
  const ProgressOutput output = progressOutput();
  const std::string text = progressText(figures, output.width);
  if (!output.rewrites) return print(text);
  printControl(stdout, kEraseLine);
  fmt::print("{}{}", text, is_last ? "\n" : "");
  std::fflush(stdout);
  is_open_ = !is_last;
}

}  // namespace pipeshard
