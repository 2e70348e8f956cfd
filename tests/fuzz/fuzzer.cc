// The fuzzer (libFuzzer; preset fuzz): PIPESHARD_FUZZ_TARGET=NAME pipeshard_fuzzer FOLDER... ; fuzz.py runs
// all.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/fuzz/fuzz_mutation.h"
#include "tests/fuzz/fuzz_targets.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using pipeshard::testing::FuzzForm;
using pipeshard::testing::FuzzTarget;

const FuzzTarget* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* name = std::getenv("PIPESHARD_FUZZ_TARGET");
  for (const FuzzTarget& target : pipeshard::testing::fuzzTargets()) {
    if (name != nullptr && target.name == name) chosen = &target;
  }
  if (chosen != nullptr) return 0;
  std::fprintf(stderr, "PIPESHARD_FUZZ_TARGET is one of");
  for (const FuzzTarget& target : pipeshard::testing::fuzzTargets())
    std::fprintf(stderr, " %s", std::string(target.name).c_str());
  std::fprintf(stderr, "\n");
  std::exit(64);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  pipeshard::testing::runFuzzTarget(*chosen, std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  pipeshard::testing::FuzzDice dice(seed);
  std::string changed;
  if (chosen->form != FuzzForm::kBytes && seed % 8 != 0) {
    const std::string input(reinterpret_cast<const char*>(data), size);
    changed = chosen->form == FuzzForm::kJson ? pipeshard::testing::mutateJson(input, dice)
                                              : pipeshard::testing::mutateModel(input, dice);
  }
  if (changed.empty() || changed.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, changed.data(), changed.size());
  return changed.size();
}
