#include "runtime/evaluation/outputs.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "runtime/execute/dump.h"
#include "runtime/execute/rank_image.h"
#include "runtime/files/npz.h"

namespace pipeshard {
namespace {

// Parts of one array, in order.
struct Parts {
  int axis = -1;
  std::vector<StepDump::Tensor> tensors;
};

NpzArray joined(const Parts& parts) {
  NpzArray array{parts.tensors.front().data_type, parts.tensors.front().shape, {}};
  if (parts.axis < 0) {
    array.bytes = parts.tensors.front().bytes;
    return array;
  }
  array.shape[parts.axis] = 0;
  for (const StepDump::Tensor& tensor : parts.tensors) array.shape[parts.axis] += tensor.shape[parts.axis];
  const size_t element = dataTypeSize(array.data_type);
  const size_t inner = rowMajorStrides(array.shape)[parts.axis] * element;
  size_t blocks = 1;
  for (int axis = 0; axis < parts.axis; ++axis) blocks *= array.shape[axis];
  array.bytes.reserve(byteCount(array.data_type, array.shape));
  for (size_t block = 0; block < blocks; ++block) {
    for (const StepDump::Tensor& tensor : parts.tensors) {
      const size_t run = tensor.shape[parts.axis] * inner;
      const auto from = tensor.bytes.begin() + block * run;
      array.bytes.insert(array.bytes.end(), from, from + run);
    }
  }
  return array;
}

}  // namespace

std::vector<Result> listedOutputs(const std::string& plan_directory) {
  std::vector<Result> results = loadProgram(plan_directory + "/reference", RankId(0)).results;
  std::erase_if(results, [](const Result& result) { return result.kind != Result::Kind::kOutput; });
  return results;
}

void writeOutputs(const std::vector<Result>& outputs, const std::string& dump_directory, int64_t steps,
                  int ranks, const std::string& path) {
  std::map<std::string, Parts> parts;
  for (int64_t step = 1; step <= steps; ++step) {
    const StepDump dump = StepDump::open(dump_directory, step, ranks);
    for (const Result& output : outputs) {
      const std::string name = dumpTensorName(output);
      if (!dump.has(name)) continue;  // a shorter last batch has fewer microbatches
      Parts& of = parts[output.name];
      of.axis = output.axis;
      StepDump::Tensor tensor = dump.read(name);
      if (of.axis >= 0 || of.tensors.empty()) {
        of.tensors.push_back(std::move(tensor));
      } else if (tensor.bytes != of.tensors.front().bytes) {
        fail(ErrorCode::kConfiguration,
             "{}: the output '{}' has no axis of rows, but another content in step {} than in the first; run "
             "one "
             "step at a time",
             path, output.name, step);
      }
    }
  }
  std::map<std::string, NpzArray> arrays;
  for (const auto& [name, of] : parts) arrays.emplace(name, joined(of));
  writeNpz(path, arrays);
}

}  // namespace pipeshard
