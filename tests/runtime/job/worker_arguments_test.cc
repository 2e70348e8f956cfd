#include "runtime/job/worker_arguments.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include "runtime/job/worker.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

TEST(WorkerArguments, ComeBackAsTheyWere) {
  WorkerOptions options;
  options.endpoint = "tcp://127.0.0.1:4000";
  options.job = "ab";
  options.rank = RankId(3);
  options.segments = "control=5,arenas=6:7";
  options.directory = "/plan";
  options.parent = 77;
  options.generation = 2;
  options.node_of_rank = {0, 0, 1, 1};
  options.data_plane = DataPlane::kPrivate;
  options.wires = {11, 12};
  options.host = "10.0.0.2";
  options.data = {"data file.npz", 18446744073709551615ull};
  options.evaluation.data.path = "held.npz";
  options.evaluation.rows = 61;
  options.check_finite = false;
  options.dump_directory = "dump";
  options.dump_probe = ".probe-1";
  options.data.end.whole_only = "a step takes whole windows";
  options.dump = {true, false, true};
  options.transfer_timeout_ms = 1234;
  options.trace_steps = 20;
  options.trace_descriptor = 9;
  const std::vector<std::string> arguments = workerArguments(options);
  EXPECT_EQ(workerArguments(parseWorkerArguments(arguments)), arguments);
  EXPECT_ERROR(parseWorkerArguments({"--rank", "x"}), ErrorCode::kUsage, "--rank x");
  EXPECT_ERROR(parseWorkerArguments({"--rank"}), ErrorCode::kUsage, "needs a value");
  EXPECT_ERROR(parseWorkerArguments({"--what"}), ErrorCode::kUsage, "'--what'");
  EXPECT_EQ(parseWorkerArguments(arguments).node_of_rank, options.node_of_rank);
  EXPECT_EQ(parseWorkerArguments(arguments).evaluation.rows, 61);
  EXPECT_EQ(parseWorkerArguments(arguments).data_plane, DataPlane::kPrivate);
  EXPECT_EQ(parseWorkerArguments(arguments).wires, options.wires);
  EXPECT_EQ(parseWorkerArguments(arguments).dump_probe, options.dump_probe);
  EXPECT_EQ(parseWorkerArguments(arguments).data.end.whole_only, options.data.end.whole_only);
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
