#include "runtime/job/worker_arguments.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <functional>
#include <map>
#include <sstream>
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
T parseNumber(const std::string& option, const std::string& text) {
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

IdVector<RankId, int> parseNumbers(const std::string& option, const std::string& text) {
  IdVector<RankId, int> numbers;
  std::istringstream list(text);
  for (std::string part; std::getline(list, part, ',');) numbers.push_back(parseNumber<int>(option, part));
  return numbers;
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
  std::vector<std::string> arguments{"--connect",
                                     options.endpoint,
                                     "--job",
                                     options.job,
                                     "--generation",
                                     std::to_string(options.generation),
                                     "--directory",
                                     options.directory,
                                     "--rank",
                                     std::to_string(options.rank.index()),
                                     "--parent",
                                     std::to_string(options.parent),
                                     "--seed",
                                     std::to_string(options.data.seed),
                                     "--transfer-timeout",
                                     std::to_string(options.transfer_timeout_ms)};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) arguments.insert(arguments.end(), {option, value});
  };
  add("--segments", options.segments);
  add("--nodes", fmt::format("{}", fmt::join(options.node_of_rank, ",")));
  add("--host", options.host);
  if (options.device.backend != DeviceBackend::kCpu)
    add("--device", std::string(nameOf(options.device.backend)));
  if (options.device.shared) arguments.emplace_back("--share-devices");
  if (options.device.transport != DeviceTransport::kAuto)
    add("--transport", std::string(nameOf(options.device.transport)));
  add("--data-plane", std::string(dataPlaneName(options.data_plane)));
  if (options.wires[0] >= 0) add("--wires", fmt::format("{}", fmt::join(options.wires, ",")));
  add("--data", options.data.path);
  if (options.data.unpacked_descriptor >= 0)
    add("--unpacked-descriptor", std::to_string(options.data.unpacked_descriptor));
  if (options.data.ring_descriptor >= 0)
    add("--ring-descriptor", std::to_string(options.data.ring_descriptor));
  add("--dump", options.dump_directory);
  add("--dump-probe", options.dump_probe);
  add("--log", options.log_directory);
  add("--adopt", options.adopt_directory);
  add("--resume", options.resume);
  add("--eval", options.evaluation.data.path);
  if (options.evaluation.rows > 0) add("--eval-rows", std::to_string(options.evaluation.rows));
  add("--eval-divisor", options.evaluation.divisor);
  if (options.evaluation.adds) arguments.emplace_back("--eval-adds");
  if (options.evaluation.data.shift_labels) arguments.emplace_back("--eval-shift-labels");
  if (options.evaluation.data.end_of_text >= 0)
    add("--eval-end-of-text", std::to_string(options.evaluation.data.end_of_text));
  if (options.evaluation.data.end.drop_last) arguments.emplace_back("--eval-drop-last");
  if (options.attempts_descriptor >= 0) add("--attempts", std::to_string(options.attempts_descriptor));
  if (options.keys_descriptor >= 0) add("--keys", std::to_string(options.keys_descriptor));
  if (options.attempt > 0) add("--attempt", std::to_string(options.attempt));
  if (options.trace_steps > 0) add("--trace-steps", std::to_string(options.trace_steps));
  if (options.trace_descriptor >= 0) add("--trace-descriptor", std::to_string(options.trace_descriptor));
  if (options.adopt_ranks > 0) add("--adopt-ranks", std::to_string(options.adopt_ranks));
  if (options.dump.gradients) arguments.emplace_back("--dump-gradients");
  if (options.dump.parameters) arguments.emplace_back("--dump-parameters");
  if (options.dump.states) arguments.emplace_back("--dump-states");
  if (options.dump.outputs) arguments.emplace_back("--dump-outputs");
  if (options.data.end.drop_last) arguments.emplace_back("--drop-last");
  add("--whole-only", options.data.end.whole_only);
  if (options.data.shuffle) arguments.emplace_back("--shuffle");
  if (options.data.shift_labels) arguments.emplace_back("--shift-labels");
  if (options.data.end_of_text >= 0) add("--end-of-text", std::to_string(options.data.end_of_text));
  if (options.data.truncate) arguments.emplace_back("--truncate");
  for (const auto& [input, number] : options.data.padding) add("--pad", fmt::format("{}={}", input, number));
  if (!options.check_finite) arguments.emplace_back("--allow-not-finite");
  if (options.find_nan) arguments.emplace_back("--find-nan");
  if (options.operators) arguments.emplace_back("--operators");
  return arguments;
}

WorkerOptions parseWorkerArguments(const std::vector<std::string>& arguments) {
  WorkerOptions options;
  const std::map<std::string, std::function<void(const std::string&)>> valued{
      {"--connect", [&](const std::string& text) { options.endpoint = text; }},
      {"--job", [&](const std::string& text) { options.job = text; }},
      {"--rank", [&](const std::string& text) { options.rank = RankId(parseNumber<int>("--rank", text)); }},
      {"--segments", [&](const std::string& text) { options.segments = text; }},
      {"--directory", [&](const std::string& text) { options.directory = text; }},
      {"--generation",
       [&](const std::string& text) { options.generation = parseNumber<uint64_t>("--generation", text); }},
      {"--attempt", [&](const std::string& text) { options.attempt = parseNumber<int>("--attempt", text); }},
      {"--parent", [&](const std::string& text) { options.parent = parseNumber<int>("--parent", text); }},
      {"--nodes", [&](const std::string& text) { options.node_of_rank = parseNumbers("--nodes", text); }},
      {"--host", [&](const std::string& text) { options.host = text; }},
      {"--data-plane", [&](const std::string& text) { options.data_plane = parseDataPlane(text); }},
      {"--wires",
       [&](const std::string& text) {
         const IdVector<RankId, int> descriptors = parseNumbers("--wires", text);
         if (descriptors.size() != options.wires.size())
           fail(ErrorCode::kUsage, "worker: --wires {}: expected {} descriptors", text, options.wires.size());
         std::copy(descriptors.begin(), descriptors.end(), options.wires.begin());
       }},
      {"--seed", [&](const std::string& text) { options.data.seed = parseNumber<uint64_t>("--seed", text); }},
      {"--transfer-timeout",
       [&](const std::string& text) {
         options.transfer_timeout_ms = parseNumber<int64_t>("--transfer-timeout", text);
       }},
      {"--log", [&](const std::string& text) { options.log_directory = text; }},
      {"--device", [&](const std::string& text) { options.device.backend = parseDevice(text); }},
      {"--transport", [&](const std::string& text) { options.device.transport = parseTransport(text); }},
      {"--data", [&](const std::string& text) { options.data.path = text; }},
      {"--unpacked-descriptor",
       [&](const std::string& text) {
         options.data.unpacked_descriptor = parseNumber<int>("--unpacked-descriptor", text);
       }},
      {"--ring-descriptor",
       [&](const std::string& text) {
         options.data.ring_descriptor = parseNumber<int>("--ring-descriptor", text);
       }},
      {"--adopt", [&](const std::string& text) { options.adopt_directory = text; }},
      {"--resume", [&](const std::string& text) { options.resume = text; }},
      {"--pad", [&](const std::string& text) { addPadding(text, options.data); }},
      {"--eval", [&](const std::string& text) { options.evaluation.data.path = text; }},
      {"--end-of-text",
       [&](const std::string& text) {
         options.data.end_of_text = parseNumber<int64_t>("--end-of-text", text);
       }},
      {"--eval-end-of-text",
       [&](const std::string& text) {
         options.evaluation.data.end_of_text = parseNumber<int64_t>("--eval-end-of-text", text);
       }},
      {"--eval-rows",
       [&](const std::string& text) { options.evaluation.rows = parseNumber<int64_t>("--eval-rows", text); }},
      {"--eval-divisor", [&](const std::string& text) { options.evaluation.divisor = text; }},
      {"--adopt-ranks",
       [&](const std::string& text) { options.adopt_ranks = parseNumber<int>("--adopt-ranks", text); }},
      {"--trace-steps",
       [&](const std::string& text) { options.trace_steps = parseNumber<int64_t>("--trace-steps", text); }},
      {"--trace-descriptor",
       [&](const std::string& text) {
         options.trace_descriptor = parseNumber<int>("--trace-descriptor", text);
       }},
      {"--attempts",
       [&](const std::string& text) { options.attempts_descriptor = parseNumber<int>("--attempts", text); }},
      {"--keys",
       [&](const std::string& text) { options.keys_descriptor = parseNumber<int>("--keys", text); }},
      {"--dump", [&](const std::string& text) { options.dump_directory = text; }},
      {"--whole-only", [&](const std::string& text) { options.data.end.whole_only = text; }},
      {"--dump-probe", [&](const std::string& text) { options.dump_probe = text; }}};
  const std::map<std::string, std::function<void()>> flags{
      {"--dump-gradients", [&] { options.dump.gradients = true; }},
      {"--dump-parameters", [&] { options.dump.parameters = true; }},
      {"--dump-states", [&] { options.dump.states = true; }},
      {"--dump-outputs", [&] { options.dump.outputs = true; }},
      {"--share-devices", [&] { options.device.shared = true; }},
      {"--drop-last", [&] { options.data.end.drop_last = true; }},
      {"--truncate", [&] { options.data.truncate = true; }},
      {"--shuffle", [&] { options.data.shuffle = true; }},
      {"--shift-labels", [&] { options.data.shift_labels = true; }},
      {"--eval-shift-labels", [&] { options.evaluation.data.shift_labels = true; }},
      {"--eval-adds", [&] { options.evaluation.adds = true; }},
      {"--eval-drop-last", [&] { options.evaluation.data.end.drop_last = true; }},
      {"--allow-not-finite", [&] { options.check_finite = false; }},
      {"--find-nan", [&] { options.find_nan = true; }},
      {"--operators", [&] { options.operators = true; }}};
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (const auto flag = flags.find(arguments[i]); flag != flags.end()) {
      flag->second();
      continue;
    }
    const auto found = valued.find(arguments[i]);
    if (found == valued.end())
      fail(ErrorCode::kUsage, "worker: unknown argument '{}'; workers are started by the coordinator",
           arguments[i]);
    if (++i == arguments.size()) fail(ErrorCode::kUsage, "worker: {} needs a value", found->first);
    found->second(arguments[i]);
  }
  options.evaluation.data.truncate = options.data.truncate;
  options.evaluation.data.padding = options.data.padding;
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
