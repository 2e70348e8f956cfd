#include "runtime/job/worker_arguments.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <functional>
#include <optional>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "transport/control/job_keys.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard {
namespace {

template <typename T>
T parseNumber(std::string_view option, const std::string& text) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    fail(ErrorCode::kUsage, "worker: {} {}: not a number", option, text);
  return number;
}

DeviceBackend parseDevice(const std::string& text) {
  if (const std::optional<DeviceBackend> backend = deviceBackendOf(text)) return *backend;
  fail(ErrorCode::kUsage, "--device {}: no such device", text);
}

DeviceTransport parseTransport(const std::string& text) {
  if (const std::optional<DeviceTransport> transport = deviceTransportOf(text)) return *transport;
  fail(ErrorCode::kUsage, "--transport {}: no such transport", text);
}

IdVector<RankId, int> parseNumbers(std::string_view option, const std::string& text) {
  IdVector<RankId, int> numbers;
  std::istringstream list(text);
  for (std::string part; std::getline(list, part, ',');) numbers.push_back(parseNumber<int>(option, part));
  return numbers;
}

// An option, as it is written and read.
struct WorkerArgument {
  std::string_view name;
  bool has_value = true;
  // Its values, one for each time that it is written ("" of one that has none); none: it is left out.
  std::function<std::vector<std::string>(const WorkerOptions&)> write;
  std::function<void(WorkerOptions&, const std::string& value)> read;
};

using W = WorkerOptions;
using D = DataDescription;
using E = EvaluationSpec;

// The field that a path of members leads to.
template <typename Options, typename... Path>
auto& fieldAt(Options& options, Path... path) {
  return (options.*....*path);
}

// "" is left out.
template <typename... Path>
WorkerArgument textArgument(std::string_view name, Path... path) {
  return {name, true,
          [=](const W& options) {
            const std::string& text = fieldAt(options, path...);
            return text.empty() ? std::vector<std::string>() : std::vector{text};
          },
          [=](W& options, const std::string& value) { fieldAt(options, path...) = value; }};
}

// Nothing is left out where `none` is not given.
template <typename... Path>
WorkerArgument numberArgument(std::string_view name, std::optional<int> none, Path... path) {
  return {name, true,
          [=](const W& options) {
            const auto number = fieldAt(options, path...);
            const bool is_none = none && std::cmp_equal(number, *none);
            return is_none ? std::vector<std::string>() : std::vector{std::to_string(number)};
          },
          [=](W& options, const std::string& value) {
            auto& number = fieldAt(options, path...);
            number = parseNumber<std::remove_reference_t<decltype(number)>>(name, value);
          }};
}

// Written where the field is `when`, which it is when that is read.
template <typename... Path>
WorkerArgument flagArgument(std::string_view name, bool when, Path... path) {
  return {name, false,
          [=](const W& options) {
            return fieldAt(options, path...) == when ? std::vector<std::string>{""}
                                                     : std::vector<std::string>();
          },
          [=](W& options, const std::string&) { fieldAt(options, path...) = when; }};
}

constexpr std::nullopt_t kAlways = std::nullopt;

WorkerArgument rankArgument() {
  return {
      "--rank", true, [](const W& options) { return std::vector{std::to_string(options.rank.index())}; },
      [](W& options, const std::string& value) { options.rank = RankId(parseNumber<int>("--rank", value)); }};
}

WorkerArgument nodesArgument() {
  return {
      "--nodes", true,
      [](const W& options) {
        return options.node_of_rank.empty()
                   ? std::vector<std::string>()
                   : std::vector{fmt::format("{}", fmt::join(options.node_of_rank, ","))};
      },
      [](W& options, const std::string& value) { options.node_of_rank = parseNumbers("--nodes", value); }};
}

WorkerArgument wiresArgument() {
  return {"--wires", true,
          [](const W& options) {
            return options.wires[0] < 0 ? std::vector<std::string>()
                                        : std::vector{fmt::format("{}", fmt::join(options.wires, ","))};
          },
          [](W& options, const std::string& value) {
            const IdVector<RankId, int> descriptors = parseNumbers("--wires", value);
            if (descriptors.size() != options.wires.size()) {
              fail(ErrorCode::kUsage, "worker: --wires {}: expected {} descriptors", value,
                   options.wires.size());
            }
            std::copy(descriptors.begin(), descriptors.end(), options.wires.begin());
          }};
}

WorkerArgument deviceArgument() {
  return {"--device", true,
          [](const W& options) {
            return options.device.backend == DeviceBackend::kCpu
                       ? std::vector<std::string>()
                       : std::vector{std::string(nameOf(options.device.backend))};
          },
          [](W& options, const std::string& value) { options.device.backend = parseDevice(value); }};
}

WorkerArgument transportArgument() {
  return {"--transport", true,
          [](const W& options) {
            return options.device.transport == DeviceTransport::kAuto
                       ? std::vector<std::string>()
                       : std::vector{std::string(nameOf(options.device.transport))};
          },
          [](W& options, const std::string& value) { options.device.transport = parseTransport(value); }};
}

WorkerArgument dataPlaneArgument() {
  return {"--data-plane", true,
          [](const W& options) { return std::vector{std::string(dataPlaneName(options.data_plane))}; },
          [](W& options, const std::string& value) { options.data_plane = parseDataPlane(value); }};
}

// Held-out data are cut and filled up as those of the steps.
WorkerArgument truncateArgument() {
  WorkerArgument argument = flagArgument("--truncate", true, &W::data, &D::truncate);
  argument.read = [](W& options, const std::string&) {
    options.data.truncate = options.evaluation.data.truncate = true;
  };
  return argument;
}

WorkerArgument padArgument() {
  return {"--pad", true,
          [](const W& options) {
            std::vector<std::string> values;
            for (const auto& entry : options.data.padding)
              values.push_back(fmt::format("{}={}", entry.first, entry.second));
            return values;
          },
          [](W& options, const std::string& value) {
            addPadding(value, options.data);
            options.evaluation.data.padding = options.data.padding;
          }};
}

// Who it is, whom it belongs to, and what it has from its parent.
std::vector<WorkerArgument> argumentsOfProcess() {
  return {textArgument("--connect", &W::endpoint),
          textArgument("--job", &W::job),
          numberArgument("--generation", kAlways, &W::generation),
          textArgument("--directory", &W::directory),
          rankArgument(),  // behind the directory: as people, and tests, find a worker in `ps`
          numberArgument("--parent", kAlways, &W::parent),
          numberArgument("--attempt", 0, &W::attempt),
          numberArgument("--transfer-timeout", kAlways, &W::transfer_timeout_ms),
          textArgument("--segments", &W::segments),
          nodesArgument(),
          textArgument("--host", &W::host),
          deviceArgument(),
          flagArgument("--share-devices", true, &W::device, &DeviceChoice::shared),
          transportArgument(),
          dataPlaneArgument(),
          wiresArgument(),
          numberArgument("--attempts", -1, &W::attempts_descriptor),
          numberArgument("--keys", -1, &W::keys_descriptor)};
}

std::vector<WorkerArgument> argumentsOfData() {
  return {textArgument("--data", &W::data, &D::path),
          numberArgument("--seed", kAlways, &W::data, &D::seed),
          numberArgument("--unpacked-descriptor", -1, &W::data, &D::unpacked_descriptor),
          numberArgument("--ring-descriptor", -1, &W::data, &D::ring_descriptor),
          flagArgument("--drop-last", true, &W::data, &D::end, &EpochEnd::drop_last),
          textArgument("--whole-only", &W::data, &D::end, &EpochEnd::whole_only),
          flagArgument("--shuffle", true, &W::data, &D::shuffle),
          flagArgument("--shift-labels", true, &W::data, &D::shift_labels),
          numberArgument("--end-of-text", -1, &W::data, &D::end_of_text),
          truncateArgument(),
          padArgument(),
          textArgument("--eval", &W::evaluation, &E::data, &D::path),
          numberArgument("--eval-rows", 0, &W::evaluation, &E::rows),
          textArgument("--eval-divisor", &W::evaluation, &E::divisor),
          flagArgument("--eval-adds", true, &W::evaluation, &E::adds),
          flagArgument("--eval-shift-labels", true, &W::evaluation, &E::data, &D::shift_labels),
          numberArgument("--eval-end-of-text", -1, &W::evaluation, &E::data, &D::end_of_text),
          flagArgument("--eval-drop-last", true, &W::evaluation, &E::data, &D::end, &EpochEnd::drop_last)};
}

// What it begins with, what it leaves, and what it looks for.
std::vector<WorkerArgument> argumentsOfWork() {
  return {textArgument("--resume", &W::resume),
          textArgument("--adopt", &W::adopt_directory),
          numberArgument("--adopt-ranks", 0, &W::adopt_ranks),
          textArgument("--log", &W::log_directory),
          textArgument("--dump", &W::dump_directory),
          textArgument("--dump-probe", &W::dump_probe),
          flagArgument("--dump-gradients", true, &W::dump, &DumpSelection::gradients),
          flagArgument("--dump-parameters", true, &W::dump, &DumpSelection::parameters),
          flagArgument("--dump-states", true, &W::dump, &DumpSelection::states),
          flagArgument("--dump-outputs", true, &W::dump, &DumpSelection::outputs),
          numberArgument("--trace-steps", 0, &W::trace_steps),
          numberArgument("--trace-descriptor", -1, &W::trace_descriptor),
          flagArgument("--allow-not-finite", false, &W::check_finite),
          flagArgument("--find-nan", true, &W::find_nan),
          flagArgument("--operators", true, &W::operators)};
}

// All that there are.
const std::vector<WorkerArgument>& argumentTable() {
  static const std::vector<WorkerArgument> table = [] {
    std::vector<WorkerArgument> all = argumentsOfProcess();
    for (const auto& more : {argumentsOfData(), argumentsOfWork()})
      all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return table;
}

// Calls `use` for every descriptor that the options name.
template <typename Use>
void forEachDescriptor(WorkerOptions& options, const Use& use) {
  std::vector<int> segments = SharedSegments::descriptorsIn(options.segments);
  for (int& descriptor : segments) use(descriptor);
  options.segments = SharedSegments::describe(segments);
  for (int* const descriptor : {&options.wires[0], &options.wires[1], &options.data.unpacked_descriptor,
                                &options.data.ring_descriptor, &options.trace_descriptor}) {
    if (*descriptor >= 0) use(*descriptor);
  }
}

}  // namespace

std::vector<std::string> workerArguments(const WorkerOptions& options) {
  std::vector<std::string> arguments;
  for (const WorkerArgument& argument : argumentTable()) {
    for (const std::string& value : argument.write(options)) {
      arguments.emplace_back(argument.name);
      if (argument.has_value) arguments.push_back(value);
    }
  }
  return arguments;
}

WorkerOptions parseWorkerArguments(const std::vector<std::string>& arguments) {
  WorkerOptions options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    const auto found = std::ranges::find(argumentTable(), name, &WorkerArgument::name);
    if (found == argumentTable().end()) {
      fail(ErrorCode::kUsage, "worker: unknown argument '{}'; workers are started by the coordinator", name);
    }
    if (!found->has_value) {
      found->read(options, "");
      continue;
    }
    if (++i == arguments.size()) fail(ErrorCode::kUsage, "worker: {} needs a value", name);
    found->read(options, arguments[i]);
  }
  return options;
}

Descriptor giveKeys(WorkerOptions& options) {
  options.keys_descriptor = -1;
  if (!options.keys) return {};
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    fail(ErrorCode::kOutOfMemory, "cannot make a pipe: {}; check `ulimit -n`", std::strerror(errno));
  Descriptor child(ends[0]);
  const Descriptor parent(ends[1]);
  const std::string text = clientKeysText(*options.keys);  // far less than an empty pipe takes at once
  if (::write(parent.get(), text.data(), text.size()) != std::ssize(text))
    fail(ErrorCode::kOutOfMemory, "cannot write to a pipe: {}", std::strerror(errno));
  ::fcntl(child.get(), F_SETFD, 0);
  options.keys_descriptor = child.get();
  return child;
}

void takeKeys(WorkerOptions& options) {
  if (options.keys_descriptor < 0) return;
  const Descriptor pipe(std::exchange(options.keys_descriptor, -1));
  std::string text;
  std::array<char, 512> piece{};
  while (text.size() < piece.size()) {
    const ssize_t got = ::read(pipe.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(piece.data(), static_cast<size_t>(got));
  }
  options.keys = parseClientKeys(text);
}

AttemptMessage attemptMessage(WorkerOptions options) {
  AttemptMessage message;
  // In their order, as numbers from 0: where they come to be is the receiver's business.
  forEachDescriptor(options, [&](int& descriptor) {
    message.descriptors.push_back(descriptor);
    descriptor = static_cast<int>(message.descriptors.size()) - 1;
  });
  options.attempts_descriptor = options.keys_descriptor = -1;
  message.text = nlohmann::json{{"arguments", workerArguments(options)},
                                {"keys", options.keys ? clientKeysText(*options.keys) : ""}}
                     .dump();
  return message;
}

WorkerOptions parseAttempt(Handover message) try {
  const nlohmann::json body = nlohmann::json::parse(message.text);
  WorkerOptions options = parseWorkerArguments(body.at("arguments").get<std::vector<std::string>>());
  if (const auto keys = body.at("keys").get<std::string>(); !keys.empty())
    options.keys = parseClientKeys(keys);
  forEachDescriptor(options, [&](int& descriptor) {
    descriptor = message.descriptors.at(static_cast<size_t>(descriptor)).release();
  });
  return options;
} catch (const std::out_of_range&) {
  fail(ErrorCode::kUsage, "worker: a further attempt came without its descriptors");
} catch (const nlohmann::json::exception& error) {
  fail(ErrorCode::kUsage, "worker: a further attempt is malformed: {}", error.what());
}

}  // namespace pipeshard
