#include "runtime/weights.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include "ir/error.h"
#include "runtime/convert.h"
#include "runtime/posix_file.h"

namespace pipeshard {
namespace {

constexpr size_t kChunkElements = 1 << 18;

void checkLength(const Buffer& buffer, DataType source_type, uint64_t found) {
  const auto expected = static_cast<uint64_t>(byteCount(source_type, buffer.shape));
  if (found != expected) {
    fail(ErrorCode::kConfiguration, "its source has {} bytes, but {}{} needs {}", found, dataTypeName(source_type),
         shapeToString(buffer.shape), expected);
  }
  if (!isConvertible(source_type, buffer.data_type)) {
    fail(ErrorCode::kConfiguration, "its source is {}, which cannot be converted to {}", dataTypeName(source_type),
         dataTypeName(buffer.data_type));
  }
}

void loadFromFile(const Buffer& buffer, const WeightReference& weight, DataType source_type, const std::string& directory,
                  std::span<std::byte> out) {
  checkLength(buffer, source_type, weight.length);
  const std::string path = (std::filesystem::path(directory) / weight.location).string();
  const Descriptor file = openForReading(path);
  if (source_type == buffer.data_type) return readExactly(file, weight.offset, out, path);
  const auto count = static_cast<size_t>(elementCount(buffer.shape));
  const size_t from_bytes = dataTypeSize(source_type);
  const size_t to_bytes = dataTypeSize(buffer.data_type);
  std::vector<std::byte> chunk(std::min(count, kChunkElements) * from_bytes);
  for (size_t done = 0; done < count; done += kChunkElements) {
    const size_t n = std::min(kChunkElements, count - done);
    readExactly(file, weight.offset + done * from_bytes, std::span(chunk).first(n * from_bytes), path);
    convertElements(source_type, chunk.data(), buffer.data_type, out.data() + done * to_bytes, n);
  }
}

}  // namespace

void loadInitialContent(const Buffer& buffer, const std::string& directory, std::span<std::byte> out) {
  if (!buffer.source) {
    if (!out.empty()) std::memset(out.data(), 0, out.size());
    return;
  }
  try {
    if (const auto* constant = std::get_if<Constant>(&*buffer.source)) {
      checkLength(buffer, constant->data_type, constant->bytes.size());
      convertElements(constant->data_type, constant->bytes.data(), buffer.data_type, out.data(),
                      static_cast<size_t>(elementCount(buffer.shape)));
      return;
    }
    const DataType source_type = buffer.source_type == DataType::kUndefined ? buffer.data_type : buffer.source_type;
    loadFromFile(buffer, std::get<WeightReference>(*buffer.source), source_type, directory, out);
  } catch (Error& error) {
    throw error.addContext(fmt::format("initial content of '{}'", buffer.name));
  }
}

}  // namespace pipeshard
