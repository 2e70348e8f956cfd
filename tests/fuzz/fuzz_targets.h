// What is fuzzed: every reader of bytes that pipeshard has not written itself, or may have been given by
// somebody else. A target takes any bytes. A reader refuses with an Error that is no bug (kInternal), or
// reads; anything else ends the process, which is what a fuzzer looks for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pipeshard::testing {

enum class FuzzForm { kBytes, kJson, kModel };  // how inputs are changed with sense

struct FuzzTarget {
  std::string_view name;
  FuzzForm form = FuzzForm::kBytes;
  void (*run)(const std::string& input) = nullptr;
};

const std::vector<FuzzTarget>& fuzzTargets();

// Runs it; aborts with a message where the reader calls the input a bug, throws anything but Error, or
// computes for 20 s of the processor.
void runFuzzTarget(const FuzzTarget& target, const std::string& input);

}  // namespace pipeshard::testing
