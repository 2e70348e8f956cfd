#include "runtime/execute/local_program.h"

#include <utility>

#include "ir/base/convert.h"
#include "ir/base/error.h"

namespace pipeshard {

LocalProgram::LocalProgram(RankImage image, const DataDescription& data, const ExecutorOptions& options)
    : executor_(std::move(image), options) {
  const Program& program = executor_.program();
  if (program.world_size != 1) {
    fail(ErrorCode::kConfiguration,
         "the program is for {} ranks; only a program of one rank runs in one process", program.world_size);
  }
  arena_ = executor_.device().allocate(executor_.memory().total_bytes);
  data_ = makeDataSource(data, program);
  executor_.attach(arena_.bytes, nullptr, data_.get());
}

const Result* LocalProgram::findResult(Result::Kind kind, std::string_view name,
                                       std::string_view state) const {
  for (const Result& result : executor_.program().results) {
    if (result.kind == kind && result.state == state && (kind == Result::Kind::kLoss || result.name == name))
      return &result;
  }
  return nullptr;
}

std::vector<double> LocalProgram::elements(const Result& result) const {
  const Buffer& buffer = executor_.program().buffer(result.buffer);
  std::vector<double> numbers(elementCount(buffer.shape));
  convertElements(buffer.data_type, executor_.view(result.buffer).data(), DataType::kFloat64, numbers.data(),
                  numbers.size());
  return numbers;
}

}  // namespace pipeshard
