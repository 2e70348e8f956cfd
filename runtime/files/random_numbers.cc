#include "runtime/files/random_numbers.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ir/base/convert.h"
#include "ir/base/hash.h"
#include "ir/base/tensor_box.h"

namespace pipeshard {
namespace {

// The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection that mixes every bit into every other.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

double uniform(uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }  // in (0, 1)

// Box and Muller 1958, the cosine branch.
double standardNormal(uint64_t key, uint64_t element) {
  const uint64_t first = mix(key ^ mix(2 * element));
  const uint64_t second = mix(key ^ mix(2 * element + 1));
  return std::sqrt(-2 * std::log(uniform(first))) * std::cos(2 * std::numbers::pi * uniform(second));
}

// The high word of a 64x64 bit product: a value in [0, range) without the bias and cost of a division.
uint64_t scaled(uint64_t bits, uint64_t range) {
  return (static_cast<unsigned __int128>(bits) * range) >> 64;
}

double floatingNumber(const ProgramInput& input, uint64_t key, uint64_t element) {
  const RandomNumbers drawn = input.drawn.value_or(RandomNumbers{RandomNumbers::Kind::kNormal});
  const bool uniform_kind = drawn.kind == RandomNumbers::Kind::kUniform;
  const double number = uniform_kind ? static_cast<double>(mix(key ^ mix(element)) >> 40) *
                                           0x1p-24  // exact in float32: never 1
                                     : standardNormal(key, element);
  return number * drawn.scale + drawn.shift;
}

void writeElement(const ProgramInput& input, uint64_t key, uint64_t element, std::byte* to) {
  if (isFloatingPoint(input.data_type)) {
    const double value = floatingNumber(input, key, element);
    convertElements(DataType::kFloat64, &value, input.data_type, to, 1);
    return;
  }
  const uint64_t bits = mix(key ^ mix(element));
  if (input.drawn) {
    *to = std::byte{uniform(bits) < input.drawn->probability};
    return;
  }
  const bool is_bool = input.data_type == DataType::kBool;
  const uint64_t range = is_bool ? 2 : static_cast<uint64_t>(input.high) - static_cast<uint64_t>(input.low);
  const int64_t value = static_cast<uint64_t>(is_bool ? 0 : input.low) + scaled(bits, range);
  convertElements(DataType::kInt64, &value, input.data_type, to, 1);
}

}  // namespace

void writeRandomNumbers(const ProgramInput& input, uint64_t seed, int64_t step, const Shard& box,
                        std::span<std::byte> out) {
  if (input.drawn && input.drawn->kind == RandomNumbers::Kind::kTrue && input.drawn->probability >= 1) {
    std::fill(out.begin(), out.end(), std::byte{1});  // in an evaluation nothing is dropped
    return;
  }
  const size_t element_bytes = dataTypeSize(input.data_type);
  const uint64_t key = mix(mix(seed) ^ mix(step) * 3 ^ mix(hashBytes(input.name)));
  std::byte* to = out.data();
  forEachRun(input.shape, box, [&](int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i, to += element_bytes) writeElement(input, key, first + i, to);
  });
}

}  // namespace pipeshard
