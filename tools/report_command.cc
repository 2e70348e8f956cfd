// `report`: the page of a plan directory, and its pictures.
#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "planning/directory/plan_directory.h"
#include "tools/commands.h"
#include "tools/options/option_checks.h"
#include "tools/refresh.h"
#include "tools/report/report_files.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

struct ReportCommand {
  ReportRequest request;
  std::string output;
  std::string pictures;
  std::string ranks;

  int run() const {
    const std::string page = output.empty() ? (fs::path(request.directory) / "report.html").string() : output;
    if (hasPrograms(request.directory)) refreshEdited(request.directory, [](const std::string&) {});
    ReportRequest asked = request;
    asked.pictures = !pictures.empty();
    asked.shown = parseRanks("--ranks", ranks);
    const RenderedReport rendered = renderDirectory(asked);
    writeTextFile(page, rendered.page);
    fmt::print("{}{}\n", page,
               rendered.measured.empty() ? "" : fmt::format(" (measured: {})", rendered.measured));
    if (pictures.empty()) return 0;
    std::error_code error;
    fs::create_directories(pictures, error);
    if (error) fail(ErrorCode::kDiskFull, "folder {} cannot be made: {}", pictures, error.message());
    for (const auto& [name, svg] : rendered.pictures) {
      const std::string path = (fs::path(pictures) / name).string();
      writeTextFile(path, svg);
      fmt::print("{}\n", path);
    }
    return 0;
  }
};

constexpr const char* kReportFooter = R"(
The page is one file without scripts or outside references (docs/report.md). `plan` and `validate` write it, too; this
command makes it anew, with what was measured since:

  pipeshard run gpt2.plan --steps 10 --trace step.json && pipeshard report gpt2.plan --trace step.json --svg pictures)";

}  // namespace

CommandFunction addReportCommand(CLI::App& app) {
  auto command = std::make_shared<ReportCommand>();
  CLI::App* sub = app.add_subcommand(
      "report", "The page that shows a plan: cluster, stages, schedule, memory, predicted and measured");
  sub->add_option("DIR", command->request.directory, "A plan directory, as `pipeshard plan` writes it")
      ->required();
  sub->add_option("-o,--output", command->output, "Write the page here (default: DIR/report.html)")
      ->type_name("FILE");
  sub->add_option("--trace", command->request.trace,
                  "Show what `run --trace` recorded (default: what `validate` did, if it has run)")
      ->type_name("FILE");
  sub->add_option("--measured", command->request.durations,
                  "Predict with the durations of this trace, as `simulate --measured` does\n(default: by the "
                  "cost model)")
      ->type_name("TRACE");
  sub->add_option("--step", command->request.step, "The step of the trace that is shown (default: its last)")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  sub->add_option("--ranks", command->ranks,
                  "Of more than 16 ranks some are shown that stand for all; these, too, and those that they "
                  "send to:\n17,500-503")
      ->type_name("LIST");
  sub->add_option(
         "--log", command->request.log,
         "Show how a run went: the loss, held-out data, speed and learning rate that `run --log` wrote")
      ->type_name("DIR");
  sub->add_option(
         "--svg", command->pictures,
         "Also write the pictures to this folder: cluster.svg, schedule.svg, memory.svg, and with --log\n"
         "training.svg")
      ->type_name("DIR");
  sub->footer(kReportFooter);
  return [command] { return command->run(); };
}

}  // namespace pipeshard
