// The `pipeshard` command.

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "ir/base/error.h"
#include "runtime/identity/build_identity.h"
#include "runtime/job/job.h"
#include "runtime/machine/limits.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/options/option_checks.h"
#include "tools/output/standard_streams.h"

namespace {

#ifdef PIPESHARD_JEMALLOC
// jemalloc cannot begin with less than some 12 MiB, and ends by a signal: so this is asked before any library
// is initialised, and allocates nothing.
void requireMemoryToBegin(int, char**, char**) {
  constexpr char kText[] =
      "pipeshard: out of memory: less than 16 MiB of data are allowed to a process (`ulimit -d 65536` allows "
      "64 MiB)\n";
  rlimit data{};
  if (::getrlimit(RLIMIT_DATA, &data) != 0 || data.rlim_cur >= rlim_t{16} << 20) return;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText, sizeof(kText) - 1);
  ::_exit(static_cast<int>(pipeshard::ErrorCode::kOutOfMemory));
}
__attribute__((section(".preinit_array"),
               used)) void (*const kRequireMemoryToBegin)(int, char**, char**) = requireMemoryToBegin;
#endif

constexpr const char* kFooter = R"(
Examples:
  pipeshard inspect examples/gpt2.onnx
  pipeshard plan examples/gpt2.onnx --cluster 1x4 --stages uniform:4 -o gpt2.plan
  pipeshard plan examples/gpt2.onnx --cluster 1x4 --stages uniform:1 --method auto -o gpt2.plan && pipeshard explain gpt2.plan
  pipeshard simulate gpt2.plan
  pipeshard simulate --schedule zb-h1 --p 4 --m 8 --times F=1,I=1,W=1 --comm 0.5
  pipeshard validate gpt2.plan
  pipeshard run gpt2.plan --steps 100 --checkpoint saved
  pipeshard tokens book.txt -o book.u16 && pipeshard run gpt2.plan --data book.u16 --shuffle --epochs 2
  pipeshard export saved -o trained.onnx
  pipeshard run gpt2.plan --steps 100 --listen tcp://10.0.0.1:7000 --key-file job.key      and on every host:
  pipeshard node --join tcp://10.0.0.1:7000 --key-file job.key
  pipeshard validate examples/mlp.onnx --cluster 1x4 --schedule gpipe --microbatches 8 --optimizer adamw:lr=1e-3 --steps 3

Exit codes: 0 success, 1 validation failed, 64 usage, 65 bad model or data, 66 missing input, 69 worker or node lost, 70 bug,
73 cannot write, 75 stopped, with a checkpoint to go on from, 76 version mismatch, 77 key refused, 78 configuration,
80 no progress after restarts, 81 hang, 82 not a number, 83 out of memory, 84 address or folder in use, 85 no good
checkpoint, 86 replicas differ, 128+N stopped by signal N.)";

// What of the command line is not understood; --help and --version come here, too. The exit code.
int reportParseError(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  using pipeshard::ErrorCode;
  const bool is_harmless = error.get_exit_code() == 0;
  const std::string first = argc > 1 ? argv[1] : "";
  if (!is_harmless && app.get_subcommands().empty() && !first.empty() && first.front() != '-') {
    return pipeshard::reportError(pipeshard::Error(
        ErrorCode::kUsage, fmt::format("\"{}\" is no subcommand; `pipeshard --help` lists them", first)));
  }
  std::ostringstream output, errors;  // by our own streams, which show no control characters
  app.exit(error, output, errors);
  fmt::print("{}", output.str());
  fmt::print(stderr, "{}", errors.str());
  return is_harmless ? 0 : static_cast<int>(ErrorCode::kUsage);
}

int runCommand(int argc, char** argv) {
  using namespace pipeshard;
  CLI::App app(
      "pipeshard partitions an ONNX model's training step over a cluster, runs it, and proves that it equals "
      "one device.",
      "pipeshard");
  app.require_subcommand(1);
  app.set_version_flag("--version", [] { return "pipeshard " + describeBuild(thisBuild()); });
  app.footer(kFooter);
  std::vector<std::pair<CLI::App*, CommandFunction>> commands;
  for (auto* add :
       {addInspectCommand, addPlanCommand, addExplainCommand, addSimulateCommand, addReportCommand,
        addValidateCommand, addRunCommand, addCheckpointCommand, addExportCommand, addClusterCommand,
        addProfileCommand, addPipeDreamCommand, addTokensCommand, addNodeCommand, addWorkerCommand}) {
    CommandFunction run = add(app);
    commands.emplace_back(app.get_subcommands([](CLI::App*) { return true; }).back(), std::move(run));
  }
  refuseBlankValues(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return reportParseError(app, error, argc, argv);
  } catch (const Error& error) {  // of an option whose text is read as it is parsed
    return reportError(error);
  }
  try {
    requireFiles();
    requireStack();
    for (auto& [command, run] : commands) {
      if (command->parsed()) return run();
    }
    return static_cast<int>(ErrorCode::kUsage);
  } catch (const JobInterrupted& error) {
    if (error.goesOn()) return reportError(error);
    fmt::print(stderr, "pipeshard: {}\n", error.message());
    return error.exitCode();
  } catch (const Error& error) {
    return reportError(error);
  } catch (const std::filesystem::filesystem_error& error) {
    const std::string path = error.path1().empty() ? "a path without a name" : error.path1().string();
    return reportError(
        Error(ErrorCode::kConfiguration,
              fmt::format("{} cannot be used: {}; give another path", path, error.code().message())));
  } catch (const std::bad_alloc&) {
    return reportError(
        Error(ErrorCode::kOutOfMemory, "this process ran out of memory" + describeMemoryLimits()));
  } catch (const std::system_error& error) {
    return reportError(errorOfSystem(error));
  } catch (const std::exception& error) {
    return reportError(Error(ErrorCode::kInternal,
                             fmt::format("{}; this is a bug in pipeshard, please report it", error.what())));
  }
}

}  // namespace

int main(int argc, char** argv) {
  pipeshard::guardStandardStreams();
  pipeshard::ignoreFileSizeSignal();
  pipeshard::seeChildrenEnd();
  const int code = runCommand(argc, argv);
  const int error = pipeshard::finishStandardStreams();
  if (error == 0 || code != 0) return code;
  return pipeshard::reportError(
      pipeshard::Error(pipeshard::ErrorCode::kDiskFull,
                       fmt::format("standard output cannot be written: {}", std::strerror(error))));
}
