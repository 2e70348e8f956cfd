#include "runtime/checkpoint/rank_state.h"

#include "ir/base/error.h"

namespace pipeshard {

std::string stateTensorName(const Buffer& buffer) {
  switch (buffer.kind) {
    case BufferKind::kParameter: return "parameter/" + buffer.value;
    case BufferKind::kOptimizerState: return "state/" + buffer.value;
    case BufferKind::kForwardState: return "forward_state/" + buffer.value;
    default: return "";
  }
}

void adoptState(Executor& executor, const JoinedTensors& tensors) {
  const std::vector<Buffer>& buffers = executor.program().buffers;
  for (size_t b = 0; b < buffers.size(); ++b) {
    const Buffer& buffer = buffers[b];
    const std::string name = stateTensorName(buffer);
    if (name.empty()) continue;
    const auto fits = [&] {
      if (!tensors.has(name)) return false;
      const JoinedTensors::Pieces& found = tensors.find(name);
      return found.data_type == buffer.data_type && found.whole == wholeShape(buffer);
    };
    if (!fits()) {
      fail(ErrorCode::kConfiguration,
           "the {} has no '{}' of {}{}: it was made of another model, or with another optimizer or "
           "--precision",
           tensors.description(), name, dataTypeName(buffer.data_type), shapeToString(wholeShape(buffer)));
    }
    executor.write(BufferId(b), [&](std::span<std::byte> out) { tensors.readBox(name, boxOf(buffer), out); });
  }
}

}  // namespace pipeshard
