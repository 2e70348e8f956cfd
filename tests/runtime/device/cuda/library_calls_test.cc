// Calls of NVIDIA's libraries, recorded and replayed (library_calls.h). On a GPU `tools/gpu_check.sh
// --record` makes the file that is replayed here on the stand-ins:
//   PIPESHARD_RECORD_PLANS=A.plan:B.plan PIPESHARD_RECORD_CALLS=FILE cuda_kernels_test --gtest_filter=...
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

#include <fmt/ranges.h>

#include "runtime/files/tensor_file.h"
#include "tests/runtime/device/cuda/cuda_call.h"
#include "tests/runtime/device/cuda/library_calls.h"
#include "tests/temporary_folder.h"

namespace pipeshard::testing {
namespace {

constexpr DataType kFloat = DataType::kFloat32;

// Committed when a GPU has made it.
std::string recordedFile() {
  if (const char* file = std::getenv("PIPESHARD_RECORDED_CALLS")) return file;
  return std::string(PIPESHARD_SOURCE_DIR) + "/tests/standin/recorded_calls.safetensors";
}

// One of each library, larger than what is kept of them.
Graph someProducts() {
  Graph graph;
  graph.opset_imports[""] = 18;
  GraphBuilder builder(graph);
  const ValueId x = builder.addValue("x", kFloat, {8, 64, 96}), w = builder.addValue("w", kFloat, {96, 48});
  const ValueId y = builder.addValue("y", kFloat, {8, 64, 48});
  builder.addNode("", "MatMul", {x, w}, {y});
  const ValueId image = builder.addValue("image", kFloat, {4, 16, 9, 7}),
                filter = builder.addValue("filter", kFloat, {32, 16, 3, 3}),
                features = builder.addValue("features", kFloat, {4, 32, 9, 7});
  builder.addNode("", "Conv", {image, filter}, {features}, {{"pads", std::vector<int64_t>{1, 1, 1, 1}}});
  const ValueId again = builder.addValue("again", kFloat, {4, 64, 48});
  const ValueId other = builder.addValue("other", kFloat, {4, 64, 96});
  builder.addNode("", "MatMul", {other, w}, {again});  // of the same class as the first
  return graph;
}

TEST(LibraryCalls, AreRecordedOncePerClassAndReplayed) {
  const TemporaryFolder folder;
  LibraryCalls calls;
  addCalls(someProducts(), calls);
  ASSERT_EQ(calls.size(), 3u) << "a product, the same added, a convolution";
  const std::string file = folder.file("calls.safetensors");
  recordCalls(calls, {{"device", "this one"}}, file);
  const Replayed replayed = replayCalls(file);
  EXPECT_EQ(replayed.calls, 3u);
  EXPECT_TRUE(replayed.wrong.empty()) << fmt::format("{}", fmt::join(replayed.wrong, "\n"));
  EXPECT_EQ(replayed.about.at("device"), "this one");
}

TEST(LibraryCalls, AnOutputThatWasAlteredIsFound) {
  const TemporaryFolder folder;
  LibraryCalls calls;
  addCalls(someProducts(), calls);
  const std::string file = folder.file("calls.safetensors");
  recordCalls(calls, {}, file);
  const TensorFile right = TensorFile::open(file);
  std::map<std::string, std::vector<std::byte>> contents;
  for (const TensorEntry& entry : right.tensors()) contents[entry.name] = right.read(entry);
  size_t outputs = 0;
  for (const TensorEntry& entry : right.tensors()) {
    if (entry.name.find("out") == std::string::npos) continue;
    ++outputs;
    auto altered = contents;
    std::vector<std::byte>& bytes = altered.at(entry.name);
    float last = 0;
    std::memcpy(&last, bytes.data() + bytes.size() - sizeof last, sizeof last);
    last += 0.01f;
    std::memcpy(bytes.data() + bytes.size() - sizeof last, &last, sizeof last);
    std::vector<TensorView> views;
    for (const TensorEntry& each : right.tensors())
      views.push_back({each.name, each.data_type, each.shape, altered.at(each.name).data()});
    writeTensorFile(folder.file("altered.safetensors"), views, right.metadata());
    const Replayed replayed = replayCalls(folder.file("altered.safetensors"));
    EXPECT_EQ(replayed.wrong.size(), 1u)
        << entry.name << ": " << fmt::format("{}", fmt::join(replayed.wrong, "\n"));
  }
  EXPECT_EQ(outputs, 3u);
}

TEST(LibraryCalls, OfPlansAreRecorded) {
  const char* plans = std::getenv("PIPESHARD_RECORD_PLANS");
  const char* file = std::getenv("PIPESHARD_RECORD_CALLS");
  if (plans == nullptr || file == nullptr) GTEST_SKIP() << "tools/gpu_check.sh --record does it";
  LibraryCalls calls;
  std::stringstream list(plans);
  for (std::string plan; std::getline(list, plan, ':');) {
    ProgramFolder folder(plan);
    addCalls(folder, calls);
  }
  const char* about = std::getenv("PIPESHARD_RECORD_ABOUT");
  recordCalls(calls,
              {{"device", fmt::format("{}, {}", cuda().name(), cuda().libraries())},
               {"about", about == nullptr ? "" : about}},
              file);
  fmt::print("recorded {} calls, {} bytes, {}\n", calls.size(), std::filesystem::file_size(file),
             cuda().libraries());
}

TEST(LibraryCalls, ThatAGpuHasMadeAreReplayed) {
  const std::string file = recordedFile();
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no GPU has recorded them yet: " << file;
  Replayed replayed = replayCalls(file);
  EXPECT_GT(replayed.calls, 0u);
  EXPECT_TRUE(replayed.wrong.empty()) << fmt::format("{}", fmt::join(replayed.wrong, "\n"));
  fmt::print("replayed {} calls of {}, {}\n", replayed.calls, replayed.about["device"],
             replayed.about["about"]);
}

}  // namespace
}  // namespace pipeshard::testing
