#include "onnx_import/format/rehearsal.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>

#include <gtest/gtest.h>

#include "onnx_import/prepare/inference.h"
#include "tests/onnx_import/model_files.h"
#include "tests/sanitizers.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

using testing::graphFromText;

Graph model(const std::string& rest) {
  return graphFromText(fmt::format(R"(<ir_version: 8, opset_import: ["" : 13]> g {})", rest));
}

// What ended the whole process before: sizes of 0 divide.
TEST(AttributeLimits, RefuseWhatMeansNothingWithTheNode) {
  for (const std::string op :
       {"MaxPool <kernel_shape = [2, 2], strides = [0, 0]> (x)", "MaxPool <kernel_shape = [2, -1]> (x)",
        "AveragePool <kernel_shape = [2, 2], pads = [2147483648, 0, 0, 0]> (x)",
        "Conv <strides = [0, 0]> (x, w)", "ReduceMax <axes = [0], keepdims = 2> (x)",
        "ReduceMax <axes = [1, -3]> (x)", "Conv <dilations = [0, 1]> (x, w)",
        "ArgMax <axis = 4611686018427387904> (x)"}) {
    Graph graph =
        model(fmt::format("(float[2,3,8,8] x, float[4,3,3,3] w) => (float[N,M,K,L] y) {{ y = {} }}", op));
    EXPECT_ERROR(inferShapes(graph), ErrorCode::kBadModel, op.substr(0, op.find(' ')));
  }
}

TEST(AttributeLimits, RefuseAReshapeOfMoreElementsThanThereAre) {
  Graph graph =
      model("(float[2,3] x) => (float[N,M] y) { s = Constant <value_ints = [4, 1]> () y = Reshape (x, s) }");
  EXPECT_ERROR(inferShapes(graph), ErrorCode::kBadModel,
               "6 elements of shape [2,3] are asked to have shape [4,1]");
}

// ONNX took 12 GB and a minute for it.
TEST(AttributeLimits, RefuseShapesOfABillionAxes) {
  Graph graph = model("(float[2,3] x, int64[1000000007] s) => (float[N,M] y) { y = Reshape (x, s) }");
  EXPECT_ERROR(inferShapes(graph), ErrorCode::kBadModel, "its input 1 has 1000000007 elements");
}

TEST(Rehearsal, OfASoundModelChangesNothing) {
  const std::string text =
      "(float[2,3,8,8] x) => (float[2,3,N,M] y) { y = MaxPool <kernel_shape = [2, 2]> (x) }";
  Graph alone = model(text), rehearsed = model(text);
  inferShapes(alone);
  const Rehearsals rehearsals(Rehearsing::kAlways);
  inferShapes(rehearsed);
  EXPECT_EQ(*rehearsed.value(rehearsed.outputs[0]).shape, (Shape{2, 3, 7, 7}));
  EXPECT_EQ(*rehearsed.value(rehearsed.outputs[0]).shape, *alone.value(alone.outputs[0]).shape);
}

TEST(Rehearsal, EndsWhatNeedsTooMuch) {
  const auto hoard = [](const RehearsalNote& note) {
    note("node 'large'");
    const std::vector<char> large(size_t{8} << 30);
    note(std::string(1, large[0]));
  };
  // A sanitizer ends what gets no memory, without an exception.
  const std::string how =
      kSanitizers == nullptr ? "needs more than 4 GiB" : "ended its process with exit code ";
  EXPECT_ERROR(rehearse(hoard), ErrorCode::kBadModel,
               "node 'large': ONNX's inference of types and shapes " + how);
}

TEST(Rehearsal, EndsWhatCrashesAndPassesOnNothing) {
  const auto crash = [](const RehearsalNote& note) {
    note("node 'odd'");
    ::raise(SIGSEGV);
  };
  EXPECT_ERROR(rehearse(crash), ErrorCode::kBadModel,
               "node 'odd': ONNX's inference of types and shapes crashed (SIGSEGV)");
  int here = 0;
  EXPECT_NO_THROW(rehearse([&](const RehearsalNote&) {
    here = 1;
    throw std::runtime_error("the parent comes to the same");
  }));
  EXPECT_EQ(here, 0);
  EXPECT_FALSE(Rehearsals::areWantedFor(Graph()));
}

// Who starts a command with SIGCHLD ignored lets no process see how its children end.
TEST(Rehearsal, RefusesAModelWhoseEndItCannotSee) {
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  EXPECT_ERROR(rehearse([](const RehearsalNote&) { ::raise(SIGSEGV); }), ErrorCode::kOutOfMemory,
               "cannot be looked at in a process of its own first");
  ::signal(SIGCHLD, before);
}

// A library that exits would end the whole command without a word; a sanitizer does so where memory ends.
TEST(Rehearsal, SaysThatALibraryHasExited) {
  const auto exit = [](const RehearsalNote& note) {
    note("node 'odd'");
    ::_exit(1);
  };
  EXPECT_ERROR(rehearse(exit), ErrorCode::kBadModel,
               "node 'odd': ONNX's inference of types and shapes ended its process with exit code 1");
}

TEST(Rehearsal, OfOnesOwnModelsIsForNumbersThatNobodyWrites) {
  const auto isOdd = [](const std::string& attributes) {
    return hasOddNumbers(
        model(fmt::format("(float[2,3] x) => (float[2,3] y) {{ y = Op <{}> (x) }}", attributes)));
  };
  for (const std::string usual :
       {"axis = -1", "axes = [-2, 0]", "keepdims = 0", "pads = [0, 0, 1, 1]", "strides = [2, 1]",
        "value_ints = [-9223372036854775808]", "perm = [0, 1]", "group = 1"})
    EXPECT_FALSE(isOdd(usual)) << usual;
  for (const std::string odd :
       {"strides = [1, 0]", "group = 0", "pads = [0, -1, 0, 0]", "batch_dims = -1", "perm = [0, -1]",
        "axis = 4611686018427387904", "axis = -4611686018427387904", "blocksize = 0"})
    EXPECT_TRUE(isOdd(odd)) << odd;
}

TEST(Rehearsal, IsForFilesOfStrangers) {
  const TemporaryFolder folder;
  const std::string file = folder.write("model.onnx", "");
  EXPECT_FALSE(isOfStrangers(file));
  EXPECT_FALSE(isOfStrangers(folder.file("none")));
  std::filesystem::permissions(folder.path(), std::filesystem::perms::all);
  EXPECT_TRUE(isOfStrangers(file));
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
  if (::geteuid() != 0) return;
  ASSERT_EQ(::chown(file.c_str(), 65534, 65534), 0);
  EXPECT_TRUE(isOfStrangers(file));
}

}  // namespace
}  // namespace pipeshard
