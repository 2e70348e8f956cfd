#include "runtime/files/weights.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "runtime/files/posix_file.h"
#include "runtime/files/random_numbers.h"

namespace pipeshard {
namespace {

constexpr size_t kReadBytes = 1 << 20;  // read at once
// a run of this size is read where it belongs, if nothing is to be converted
constexpr size_t kDirectBytes = 1 << 16;
// that a read may bring in vain between two runs: a page, which the system reads anyway
constexpr size_t kGapBytes = 1 << 12;

// What the source is: the tensor, or the rank's copy of its box.
const Shape& sourceShape(const Buffer& buffer) { return buffer.own_copy ? buffer.shape : wholeShape(buffer); }

Shard boxOfSource(const Buffer& buffer) {
  return buffer.own_copy ? Shard{Shape(buffer.shape.size(), 0), buffer.shape} : boxOf(buffer);
}

void checkLength(const Buffer& buffer, DataType source_type, uint64_t found) {
  const uint64_t expected = byteCount(source_type, sourceShape(buffer));
  if (found != expected) {
    fail(ErrorCode::kConfiguration, "its source has {} bytes, but {}{} needs {}", found,
         dataTypeName(source_type), shapeToString(sourceShape(buffer)), expected);
  }
  if (!isConvertible(source_type, buffer.data_type)) {
    fail(ErrorCode::kConfiguration, "its source is {}, which cannot be converted to {}",
         dataTypeName(source_type), dataTypeName(buffer.data_type));
  }
  const std::string fault = boxFault(sourceShape(buffer), boxOfSource(buffer));
  if (!fault.empty()) fail(ErrorCode::kConfiguration, "it is no part of its source: {}", fault);
}

// Reads runs of elements, in ascending order, into `out`, one behind the other. Runs that are near to each
// other are read together.
class RunReader {
 public:
  RunReader(std::string path, uint64_t offset, DataType from_type, DataType to_type, std::span<std::byte> out)
      : path_(std::move(path)),
        file_(openForReading(path_)),
        offset_(offset),
        from_type_(from_type),
        to_type_(to_type),
        out_(out.data()) {}

  void add(size_t first, size_t count) {
    const size_t element_bytes = dataTypeSize(from_type_);
    if (from_type_ == to_type_ && count * element_bytes >= kDirectBytes) {
      flush();
      readExactly(file_, offset_ + first * element_bytes, {out_, count * element_bytes}, path_);
      out_ += count * element_bytes;
      return;
    }
    const size_t most = kReadBytes / element_bytes;
    for (; count > most; first += most, count -= most) addShort(first * element_bytes, most * element_bytes);
    addShort(first * element_bytes, count * element_bytes);
  }

  void flush() {
    if (runs_.empty()) return;
    chunk_.resize(end_ - runs_[0].begin);
    readExactly(file_, offset_ + runs_[0].begin, chunk_, path_);
    for (const Run& run : runs_) {
      const size_t count = run.bytes / dataTypeSize(from_type_);
      convertElements(from_type_, chunk_.data() + (run.begin - runs_[0].begin), to_type_, out_, count);
      out_ += count * dataTypeSize(to_type_);
    }
    runs_.clear();
  }

 private:
  struct Run {
    size_t begin = 0;  // byte of the tensor
    size_t bytes = 0;
  };

  void addShort(size_t begin, size_t bytes) {
    if (!runs_.empty() && (begin - end_ > kGapBytes || begin + bytes - runs_[0].begin > kReadBytes)) flush();
    runs_.push_back({begin, bytes});
    end_ = begin + bytes;
  }

  std::string path_;
  Descriptor file_;
  uint64_t offset_;
  DataType from_type_;
  DataType to_type_;
  std::byte* out_;
  std::vector<Run> runs_;  // not read yet
  size_t end_ = 0;         // of the last one
  std::vector<std::byte> chunk_;
};

void loadFromFile(const Buffer& buffer, const WeightReference& weight, DataType source_type,
                  const std::string& directory, std::span<std::byte> out) {
  checkLength(buffer, source_type, weight.length);
  const std::string path = (std::filesystem::path(directory) / weight.location).string();
  Shape whole = sourceShape(buffer);
  Shard box = boxOfSource(buffer);
  std::vector<std::byte> as_stored(weight.transposed ? out.size() : 0);
  if (weight.transposed) {
    whole = firstAxisLast(whole);
    box = firstAxisLast(box);
  }
  RunReader reader(path, weight.offset, source_type, buffer.data_type,
                   weight.transposed ? std::span<std::byte>(as_stored) : out);
  forEachRun(whole, box, [&](int64_t first, int64_t count) { reader.add(first, count); });
  reader.flush();
  if (!weight.transposed) return;
  const int64_t rows = buffer.shape.front();
  transposeMatrix(as_stored, elementCount(box.size) / rows, rows, dataTypeSize(buffer.data_type), out);
}

// As step 0, which no input is drawn in.
void drawContent(const Buffer& buffer, const RandomNumbers& drawn, uint64_t seed, std::span<std::byte> out) {
  ProgramInput tensor;
  tensor.name = sourceName(buffer);
  tensor.data_type = buffer.data_type;
  tensor.shape = wholeShape(buffer);
  tensor.drawn = drawn;
  writeRandomNumbers(tensor, seed, 0, boxOf(buffer), out);
}

void loadFromConstant(const Buffer& buffer, const Constant& constant, std::span<std::byte> out) {
  checkLength(buffer, constant.data_type, constant.bytes.size());
  std::byte* to = out.data();
  forEachRun(wholeShape(buffer), boxOf(buffer), [&](int64_t first, int64_t count) {
    const size_t elements = count;
    const std::byte* from = constant.bytes.data() + first * dataTypeSize(constant.data_type);
    convertElements(constant.data_type, from, buffer.data_type, to, elements);
    to += elements * dataTypeSize(buffer.data_type);
  });
}

}  // namespace

void loadInitialContent(const Buffer& buffer, const std::string& directory, uint64_t seed,
                        std::span<std::byte> out) {
  if (!buffer.source) {
    if (!out.empty()) std::memset(out.data(), 0, out.size());
    return;
  }
  try {
    if (const auto* constant = std::get_if<Constant>(&*buffer.source)) {
      loadFromConstant(buffer, *constant, out);
      return;
    }
    const DataType source_type =
        buffer.source_type == DataType::kUndefined ? buffer.data_type : buffer.source_type;
    const auto& weight = std::get<WeightReference>(*buffer.source);
    if (weight.drawn) {
      drawContent(buffer, *weight.drawn, seed, out);
    } else {
      loadFromFile(buffer, weight, source_type, directory, out);
    }
  } catch (Error& error) {
    error.addContext(fmt::format("initial content of '{}'", buffer.name));
    throw;
  }
}

}  // namespace pipeshard
