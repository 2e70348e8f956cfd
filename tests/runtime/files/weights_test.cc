#include "runtime/files/weights.h"

#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "ir/base/tensor_box.h"
#include "ir/base/convert.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

std::vector<std::byte> randomBytes(std::mt19937_64& generator, size_t count) {
  std::vector<std::byte> bytes(count);
  // of any type: finite and not huge
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator() & 0x3f);
  return bytes;
}

Buffer partBuffer(const Shape& whole, const Shard& box, DataType type, DataType source_type) {
  Buffer buffer;
  buffer.name = "w@part";
  buffer.kind = BufferKind::kParameter;
  buffer.data_type = type;
  buffer.shape = box.size;
  buffer.part = BufferPart{whole, box.start};
  buffer.source_type = source_type;
  return buffer;
}

std::vector<std::byte> contentOf(const Buffer& buffer, const std::string& directory = "") {
  std::vector<std::byte> out(byteCount(buffer.data_type, buffer.shape), std::byte{0xee});
  loadInitialContent(buffer, directory, 0, out);
  return out;
}

// All of the tensor is converted, then the box is taken element by element.
std::vector<std::byte> expectedContent(const Buffer& buffer, std::span<const std::byte> source) {
  const Shape& whole = wholeShape(buffer);
  const Shape strides = rowMajorStrides(whole);
  const size_t size = dataTypeSize(buffer.data_type);
  std::vector<std::byte> converted(static_cast<size_t>(elementCount(whole)) * size), result;
  convertElements(buffer.source_type, source.data(), buffer.data_type, converted.data(), elementCount(whole));
  for (int64_t element = 0; element < elementCount(whole); ++element) {
    bool inside = true;
    for (size_t axis = 0; axis < whole.size(); ++axis) {
      const int64_t at = element / strides[axis] % whole[axis] - buffer.part->start[axis];
      inside = inside && at >= 0 && at < buffer.shape[axis];
    }
    const auto from = converted.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(element) * size);
    if (inside) result.insert(result.end(), from, from + static_cast<std::ptrdiff_t>(size));
  }
  return result;
}

void expectPart(Buffer buffer, const TemporaryFolder& folder, std::mt19937_64& generator) {
  const auto bytes = randomBytes(generator, byteCount(buffer.source_type, wholeShape(buffer)));
  const std::vector<std::byte> expected = expectedContent(buffer, bytes);
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  folder.write("weights.bin", "0123456" + text);
  buffer.source = WeightReference{"weights.bin", 7, bytes.size()};
  EXPECT_TRUE(contentOf(buffer, folder.path().string()) == expected)
      << printBox(boxOf(buffer)) << " of " << shapeToString(wholeShape(buffer));
  buffer.source = Constant{buffer.source_type, wholeShape(buffer), bytes};
  EXPECT_TRUE(contentOf(buffer) == expected);
  const Shape& whole = wholeShape(buffer);
  if (whole.size() != 2 && whole.size() != 3) return;  // a matrix, or one whose columns are two axes
  const int64_t rows = whole[0], columns = elementCount(whole) / rows;
  const size_t element = dataTypeSize(buffer.source_type);
  std::string transposed(bytes.size(), '\0');
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const size_t from = static_cast<size_t>(i * columns + j), to = static_cast<size_t>(j * rows + i);
      std::memcpy(transposed.data() + to * element, bytes.data() + from * element, element);
    }
  }
  folder.write("transposed.bin", transposed);
  buffer.source = WeightReference{"transposed.bin", 0, bytes.size(), {}, true};
  EXPECT_TRUE(contentOf(buffer, folder.path().string()) == expected);
}

TEST(InitialContent, OfAPartIsItsBox) {
  const TemporaryFolder folder;
  std::mt19937_64 generator(5);
  const auto below = [&](int64_t limit) {
    return static_cast<int64_t>(generator() % static_cast<uint64_t>(limit));
  };
  const DataType types[] = {DataType::kFloat32, DataType::kFloat64, DataType::kFloat16};
  for (int round = 0; round < 200; ++round) {
    Shape whole;
    Shard box;
    for (int64_t rank = below(5); rank > 0; --rank) {
      whole.push_back(1 + below(6));
      box.start.push_back(below(whole.back()));
      box.size.push_back(1 + below(whole.back() - box.start.back()));
    }
    expectPart(partBuffer(whole, box, types[below(3)], types[below(3)]), folder, generator);
  }
}

// Runs that are read alone, together, in several chunks, and over gaps that are too wide to be read.
TEST(InitialContent, OfBigPartsIsTheirBox) {
  const TemporaryFolder folder;
  std::mt19937_64 generator(6);
  const DataType f32 = DataType::kFloat32, f64 = DataType::kFloat64;
  for (const DataType source : {f32, f64}) {
    // one long run
    expectPart(partBuffer({700, 1001}, {{100, 0}, {500, 1001}}, f32, source), folder, generator);
    // short runs, short gaps
    expectPart(partBuffer({900, 1001}, {{0, 250}, {900, 251}}, f32, source), folder, generator);
    // wide gaps
    expectPart(partBuffer({60, 10007}, {{3, 5000}, {50, 7}}, f32, source), folder, generator);
    // long runs
    expectPart(partBuffer({10, 60000}, {{0, 1}, {10, 40000}}, f32, source), folder, generator);
    // runs longer than a chunk
    expectPart(partBuffer({3, 400000}, {{0, 1}, {3, 300000}}, f32, source), folder, generator);
  }
}

TEST(InitialContent, NeedsNoMoreOfTheFileThanTheBox) {
  const TemporaryFolder folder;
  const std::string bytes(4 * 3 * 4, 'a');
  Buffer buffer = partBuffer({4, 3}, {{1, 0}, {2, 2}}, DataType::kFloat32, DataType::kFloat32);
  buffer.source = WeightReference{folder.write("weights.bin", bytes.substr(0, 32)), 0, bytes.size()};
  EXPECT_NO_THROW(contentOf(buffer));
  folder.write("weights.bin", bytes.substr(0, 31));
  EXPECT_ERROR(contentOf(buffer), ErrorCode::kMissingInput, "initial content of 'w@part'");
}

TEST(InitialContent, RefusesASourceThatIsNotTheWholeTensor) {
  const TemporaryFolder folder;
  Buffer buffer = partBuffer({4, 3}, {{1, 0}, {2, 3}}, DataType::kFloat32, DataType::kFloat32);
  buffer.source = WeightReference{folder.write("weights.bin", std::string(24, 'a')), 0, 24};
  EXPECT_ERROR(contentOf(buffer), ErrorCode::kConfiguration,
               "its source has 24 bytes, but float32[4,3] needs 48");
  buffer.source = Constant{DataType::kFloat32, {4, 3}, std::vector<std::byte>(48)};
  buffer.part->start = {3, 0};
  EXPECT_ERROR(contentOf(buffer), ErrorCode::kConfiguration,
               "[2,3] from [3,0] on passes the end of axis 0 of [4,3]");
}

}  // namespace
}  // namespace pipeshard
