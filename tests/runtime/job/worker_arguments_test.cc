#include "runtime/job/worker_arguments.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <tuple>
#include <utility>
#include <vector>

#include "runtime/job/worker.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

// All that travels set to something else than what it is where nothing is said.
WorkerOptions withAllSet() {
  WorkerOptions options;
  options.endpoint = "tcp://127.0.0.1:4000";
  options.job = "ab";
  options.generation = 2;
  options.attempt = 4;
  options.keys_descriptor = 13;
  options.rank = RankId(3);
  options.segments = "control=5,arenas=6:7";
  options.directory = "/plan";
  options.parent = 77;
  options.node_of_rank = {0, 0, 1, 1};
  options.data_plane = DataPlane::kPrivate;
  options.wires = {11, 12};
  options.host = "10.0.0.2";
  options.device = {DeviceBackend::kCuda, true, DeviceTransport::kStaged};
  options.data.path = "data file.npz";
  options.data.seed = 18446744073709551615ull;
  options.data.end.drop_last = true;
  options.data.end.whole_only = "a step takes whole windows";
  options.data.shuffle = true;
  options.data.shift_labels = true;
  options.data.end_of_text = 0;
  options.data.truncate = true;
  options.data.padding = {{"input=ids", 50256}, {"weights", -0.1}};
  options.data.unpacked_descriptor = 14;
  options.data.ring_descriptor = 15;
  options.check_finite = false;
  options.find_nan = true;
  options.operators = true;
  options.log_directory = "logs";
  options.dump_directory = "dump";
  options.dump_probe = ".probe-1";
  options.dump = {true, true, true, true};
  options.adopt_directory = "other";
  options.adopt_ranks = 8;
  options.evaluation.data.path = "held.npz";
  options.evaluation.data.end.drop_last = true;
  options.evaluation.data.shift_labels = true;
  options.evaluation.data.end_of_text = 7;
  options.evaluation.data.truncate = true;
  options.evaluation.data.padding = options.data.padding;
  options.evaluation.rows = 61;
  options.evaluation.divisor = "label_count";
  options.evaluation.adds = true;
  options.resume = "checkpoint";
  options.transfer_timeout_ms = 1234;
  options.trace_steps = 20;
  options.trace_descriptor = 9;
  options.attempts_descriptor = 16;
  return options;
}

template <typename... Fields>
auto tied(const Fields&... fields) {
  return std::tie(fields...);
}

// A field more, and this does not compile: it needs a line in the table of worker_arguments.cc, and one
// above.
auto fieldsOf(const WorkerOptions& options) {
  const auto& [endpoint, job, generation, attempt, keys, keys_descriptor, rank, segments, directory, parent,
               nodes, data_plane, wires, host, device, data, check_finite, find_nan, operators, log, dumps,
               probe, dump, adopted, adopt_ranks, evaluation, resume, transfer_timeout, trace_steps, trace,
               attempts] = options;
  EXPECT_FALSE(keys.has_value());  // they come through a pipe
  return tied(endpoint, job, generation, attempt, keys_descriptor, rank, segments, directory, parent, nodes,
              data_plane, wires, host, device, data, check_finite, find_nan, operators, log, dumps, probe,
              dump, adopted, adopt_ranks, evaluation, resume, transfer_timeout, trace_steps, trace, attempts);
}

template <typename Fields, size_t... kAt>
std::vector<size_t> alikeAt(const Fields& left, const Fields& right, std::index_sequence<kAt...>) {
  std::vector<size_t> alike;
  ((std::get<kAt>(left) == std::get<kAt>(right) ? alike.push_back(kAt) : void()), ...);
  return alike;
}

TEST(WorkerArguments, ComeBackAsTheyWere) {
  const WorkerOptions options = withAllSet(), none;
  const auto fields = fieldsOf(options);
  const auto defaults = fieldsOf(none);
  constexpr auto kAll = std::make_index_sequence<std::tuple_size_v<decltype(fields)>>();
  EXPECT_EQ(alikeAt(fields, defaults, kAll), std::vector<size_t>());  // all are set
  const WorkerOptions got = parseWorkerArguments(workerArguments(options));
  EXPECT_EQ(alikeAt(fields, fieldsOf(got), kAll).size(), kAll.size());
  EXPECT_TRUE(got == options);
  EXPECT_TRUE(parseWorkerArguments(workerArguments(none)) == none);
  EXPECT_TRUE(parseWorkerArguments({}) == none);
}

TEST(WorkerArguments, WhatIsNoneIsRefused) {
  EXPECT_ERROR(parseWorkerArguments({"--rank", "x"}), ErrorCode::kUsage, "--rank x");
  EXPECT_ERROR(parseWorkerArguments({"--rank"}), ErrorCode::kUsage, "needs a value");
  EXPECT_ERROR(parseWorkerArguments({"--what"}), ErrorCode::kUsage, "'--what'");
  EXPECT_ERROR(parseWorkerArguments({"--data-plane", "open"}), ErrorCode::kUsage, "expected curve");
  EXPECT_ERROR(parseWorkerArguments({"--wires", "7"}), ErrorCode::kUsage, "expected 2 descriptors");
}

TEST(WorkerArguments, KeysComeThroughAPipe) {
  WorkerOptions options;
  EXPECT_FALSE(giveKeys(options).valid());  // there are none
  options.keys = makeJobKeys().clientKeys();
  Descriptor pipe = giveKeys(options);
  const std::vector<std::string> arguments = workerArguments(options);
  for (const std::string& argument : arguments)
    EXPECT_EQ(argument.find(options.keys->client_secret), std::string::npos);
  WorkerOptions got = parseWorkerArguments(arguments);
  EXPECT_EQ(got.keys_descriptor, pipe.release());
  takeKeys(got);
  EXPECT_EQ(clientKeysText(got.keys.value()), clientKeysText(*options.keys));
  WorkerOptions none;
  none.keys_descriptor = ::open("/dev/null", O_RDONLY);
  EXPECT_ERROR(takeKeys(none), ErrorCode::kAuthentication, "three keys");
}

}  // namespace
}  // namespace pipeshard
