// Buffers that hold a part of a tensor: batch inputs, and dumps that are put together again.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "ir/base/tensor_box.h"
#include "ir/program/program_verify.h"
#include "runtime/execute/dump.h"
#include "runtime/execute/local_program.h"
#include "tests/expect_error.h"
#include "tests/ir/program/program_writer.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

TEST(LoadInput, OfAPartIsItsBoxOfTheMicrobatch) {
  std::mt19937_64 generator(13);
  const auto below = [&](int64_t limit) {
    return static_cast<int64_t>(generator() % static_cast<uint64_t>(limit));
  };
  for (int round = 0; round < 100; ++round) {
    Shape batch;
    for (int64_t rank = 1 + below(4); rank > 0; --rank) batch.push_back(1 + below(5));
    const size_t axis = below(std::ssize(batch));
    Shape rows = batch;
    const int64_t offset = below(batch[axis]);
    rows[axis] = 1 + below(batch[axis] - offset);
    Shard box;
    for (const int64_t size : rows) {
      box.start.push_back(below(size));
      box.size.push_back(1 + below(size - box.start.back()));
    }
    ProgramWriter writer(0, 1, 1);
    writer.input("x", batch, axis);
    const BufferId id = writer.buffer("x@0", BufferKind::kInput, box.size);
    writer.program().buffers[id.index()].part = BufferPart{rows, box.start};
    writer.load("x@0", 0, offset);
    writer.accumulate("x@0", "kept", true, 0);
    const BufferId kept = writer.buffer("kept");
    writer.program().buffers[kept.index()].shape = box.size;
    writer.release("x@0");
    writer.result(Result::Kind::kGradient, "kept", "kept");
    verifyPrograms({writer.program()});
    LocalProgram local({writer.program(), {}, ""}, {"", 7});
    local.runStep(2);
    std::vector<float> whole(elementCount(batch)), expected;
    makeDataSource({"", 7}, writer.program())->fill(0, 2, 0, std::as_writable_bytes(std::span(whole)));
    const Shape strides = rowMajorStrides(batch);
    for (int64_t element = 0; element < elementCount(batch); ++element) {
      bool inside = true;
      for (size_t a = 0; a < batch.size(); ++a) {
        const int64_t at = element / strides[a] % batch[a] - box.start[a] - (a == axis ? offset : 0);
        inside = inside && at >= 0 && at < box.size[a];
      }
      if (inside) expected.push_back(whole[element]);
    }
    std::vector<float> loaded(expected.size());
    ASSERT_EQ(local.executor().content(kept).size(), expected.size() * sizeof(float));
    std::memcpy(loaded.data(), local.executor().content(kept).data(), expected.size() * sizeof(float));
    EXPECT_EQ(loaded, expected);
  }
}

TEST(LoadInput, RefusesAPartOutsideOfTheBatchWhenLoading) {
  ProgramWriter writer(0, 1, 1);
  writer.input("x", {4, 3}, 0);
  writer.program().buffers[writer.buffer("x@0", BufferKind::kInput, {2, 2}).index()].part =
      BufferPart{{2, 3}, {0, 1}};
  writer.load("x@0", 0, 2);
  LocalProgram({writer.program(), {}, ""}, {"", 7}).runStep(1);
  writer.program().instructions[0].offset = 3;
  EXPECT_ERROR(LocalProgram({writer.program(), {}, ""}, {"", 7}), ErrorCode::kConfiguration,
               "\"x@0\" (float32[2,2]) (part of [2,3] from [0,1] on) from 3 on is no part of float32[4,3]");
}

const Shape kWhole{5, 7};

double numberAt(int64_t element) { return 0.5 * static_cast<double>(element); }

// Writes the parts of "parameter/w" that `spec` gives to the devices of `mesh` as dumps of one rank each;
// those of the left out ranks lack it.
void writeParts(const std::string& folder, const ShardingSpec& spec, const LogicalMesh& mesh,
                const std::vector<int>& left_out = {}) {
  for (int rank = 0; rank < mesh.deviceCount(); ++rank) {
    const Shard box = shardOf(spec, kWhole, mesh, DeviceId(rank));
    std::vector<double> numbers;
    forEachRun(kWhole, box, [&](int64_t first, int64_t count) {
      for (int64_t i = 0; i < count; ++i) numbers.push_back(numberAt(first + i));
    });
    std::vector<TensorView> tensors;
    if (std::find(left_out.begin(), left_out.end(), rank) == left_out.end())
      tensors.push_back({"parameter/w", DataType::kFloat64, box.size, numbers.data()});
    writeTensorFile(folder + "/" + dumpFileName(1, RankId(rank)), tensors,
                    {{"part/parameter/w", shapeToString(kWhole) + " from " + shapeToString(box.start)}});
  }
}

TEST(StepDump, JoinsParts) {
  std::vector<double> expected;
  for (int64_t element = 0; element < elementCount(kWhole); ++element) expected.push_back(numberAt(element));
  for (const char* text : {"S0,S1", "S1,S0", "S01,R", "R,S10"}) {
    const TemporaryFolder folder;
    writeParts(folder.path(), parseSpec(text), {{2, 2}});
    const StepDump dump = StepDump::open(folder.path(), 1, 4);
    EXPECT_EQ(dump.names(), std::vector<std::string>{"parameter/w"});
    const StepDump::Tensor tensor = dump.read("parameter/w");
    EXPECT_EQ(tensor.shape, kWhole);
    EXPECT_EQ(tensor.elements(), expected) << text;
  }
}

TEST(StepDump, NamesATensorWhosePartsAreNotTheWhole) {
  const TemporaryFolder folder;
  const auto refuse = [&](const char* message) {
    EXPECT_ERROR(StepDump::open(folder.path(), 1, 2), ErrorCode::kBadModel, message);
  };
  writeParts(folder.path(), parseSpec("R,S0"), {{2}}, {1});
  refuse("'parameter/w' cannot be put together: the parts hold 15 of the 35 elements of [5,7]");
  writeParts(folder.path(), parseSpec("R,R"), {{2}});
  refuse("'parameter/w' cannot be put together: [5,7] from [0,0] on and [5,7] from [0,0] on overlap");
  const std::vector<double> numbers(35);
  const auto write = [&](int rank, const Shape& shape, const std::string& part,
                         DataType type = DataType::kFloat64) {
    std::map<std::string, std::string> metadata;
    if (!part.empty()) metadata["part/parameter/w"] = part;
    writeTensorFile(folder.file(dumpFileName(1, RankId(rank))),
                    std::vector<TensorView>{{"parameter/w", type, shape, numbers.data()}}, metadata);
  };
  write(0, {5, 3}, "[5,7] from [0,0]");
  write(1, {5, 4}, "[5,8] from [0,3]");
  refuse(
      "'parameter/w' is a part of float64[5,7] in the file of rank 0, but of float64[5,8] in that of rank 1");
  write(1, {5, 4}, "[5,7] from [0,3]", DataType::kFloat32);
  refuse("but of float32[5,7] in that of rank 1");
  write(1, {5, 4}, "");
  refuse("'parameter/w' is in the files of ranks 0 and 1");
  for (const char* part :
       {"[5,7] from [0,4]", "[5,7]", "[5,7] from [0]", "[5,7] from [0,3] ", "[5,-7] from [0,3]",
        "[5,7 from [0,3]", "[5,7] from [0,99999999999999999999]", "[", "whole", "[,5,7] from [0,3]"}) {
    write(1, {5, 4}, part);
    refuse("expected the whole shape and where [5,4] starts in it");
  }
}

TEST(StepDump, AdoptsItsBoxIntoAPart) {
  const TemporaryFolder folder;
  writeParts(folder.path(), parseSpec("S0,S1"), {{2, 2}});
  const StepDump dump = StepDump::open(folder.path(), 1, 4);
  ProgramWriter writer(0, 1, 1);
  Buffer& w = writer.program().buffers[writer.parameter("w").index()];
  w.data_type = w.source_type = DataType::kFloat64;
  w.shape = {5, 3};
  w.part = BufferPart{kWhole, {0, 2}};
  w.source = Constant{DataType::kFloat64, kWhole, std::vector<std::byte>(35 * sizeof(double))};
  writer.result(Result::Kind::kParameter, "w", "w");
  LocalProgram local({writer.program(), {}, ""}, {});
  adoptStepDump(local.executor(), dump);
  const std::vector<double> got = local.elements(*local.findResult(Result::Kind::kParameter, "w"));
  ASSERT_EQ(got.size(), 15u);
  for (int64_t row = 0; row < 5; ++row) {
    for (int64_t column = 0; column < 3; ++column) {
      EXPECT_EQ(got[row * 3 + column], numberAt(row * 7 + 2 + column));
    }
  }
}

}  // namespace
}  // namespace pipeshard
