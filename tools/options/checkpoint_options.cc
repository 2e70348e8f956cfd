#include "tools/options/checkpoint_options.h"

#include <charconv>
#include <optional>

#include <fmt/format.h>

namespace pipeshard {
namespace {

constexpr std::chrono::minutes kEvery{10};

struct Interval {
  int64_t steps = 0;
  std::chrono::milliseconds time{};
};

// "500" is steps; "30s", "10m", "2h" are times. Nothing for any other text.
std::optional<Interval> parseInterval(const std::string& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  if (error != std::errc() || number < 1 || number > INT32_MAX) return std::nullopt;
  if (unit.empty()) return Interval{number, {}};
  if (unit == "s") return Interval{0, std::chrono::seconds(number)};
  if (unit == "m") return Interval{0, std::chrono::minutes(number)};
  if (unit == "h") return Interval{0, std::chrono::hours(number)};
  return std::nullopt;
}

std::string checkInterval(const std::string& text) {
  if (parseInterval(text)) return "";
  return fmt::format("expected a number of steps (500) or a time (30s, 10m, 2h), found {}", text);
}

}  // namespace

void CheckpointOptions::add(CLI::App& command) {
  CLI::Option* where =
      command
          .add_option(
              "--checkpoint", directory,
              "Save weights and optimizer state into this folder: while running, at the end, and when asked "
              "to end (Ctrl-C, SIGTERM, SIGUSR1: the exit code is then 75, and 128+N before there is one).\n"
              "If the folder has a checkpoint, of this or another plan of the model, the run goes on from it")
          ->type_name("DIR");
  command.add_option("--every", every, "How often: steps (500) or time (30s, 10m, 2h; default: 10m)")
      ->type_name("N|TIME")
      ->check(CLI::Validator(checkInterval, ""))
      ->needs(where);
  command.add_option("--keep", keep, "How many checkpoints stay")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str()
      ->needs(where);
  command
      .add_option("--restarts", restarts,
                  "How many times the run may start again from its newest checkpoint when a worker or a node "
                  "is lost, hangs or is out of memory\n(there, only if it had done steps that were new: else "
                  "the same "
                  "plan would need the same memory)")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str()
      ->needs(where);
  command
      .add_option(
          "--check-replicas", check_replicas,
          "Every so many steps, ranks that hold copies of parameters or states compare them: a bit that "
          "memory or a device has changed in silence ends the run (exit code 86; 0: never)")
      ->type_name("STEPS")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000'000}))
      ->capture_default_str();
}

CheckpointSpec CheckpointOptions::spec() const {
  CheckpointSpec spec;
  if (directory.empty()) return spec;
  const Interval interval = every.empty() ? Interval{0, kEvery} : *parseInterval(every);
  spec.directory = directory;
  spec.every_steps = interval.steps;
  spec.every_time = interval.time;
  spec.keep = keep;
  return spec;
}

}  // namespace pipeshard
