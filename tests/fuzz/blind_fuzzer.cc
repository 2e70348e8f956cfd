// A fuzzer without libFuzzer, for compilers that have none: the readers and mutations of the other one,
// without a look at what they reach.
//
//   blind_fuzzer TARGET SECONDS EXECUTIONS SEED SLOT FOLDER...     fuzz.py runs it
//
// Begins with the files of the folders, and ends after so many seconds of the processor, or executions. SLOT
// is a file that holds the input of the moment: its size (8 bytes), then the bytes, for whoever looks when a
// reader has ended the process.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_mutation.h"
#include "tests/fuzz/fuzz_targets.h"

namespace pipeshard::testing {
namespace {

constexpr size_t kLongestInput = 65'536;
constexpr unsigned kLongestWait = 1200;  // for one input, of the clock
constexpr rlim_t kMostMemory = rlim_t{4} << 30;
constexpr int kChangesInARow = 16;  // before it begins with a file again

class Slot {
 public:
  explicit Slot(const char* path) {
    const int file = ::open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ::ftruncate(file, kBytes) != 0) std::abort();
    void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    if (memory == MAP_FAILED) std::abort();
    memory_ = static_cast<char*>(memory);
  }
  void hold(const std::string& input) {
    const uint64_t size = input.size();
    std::memcpy(memory_, &size, sizeof size);
    std::memcpy(memory_ + sizeof size, input.data(), input.size());
  }

 private:
  static constexpr size_t kBytes = kLongestInput + sizeof(uint64_t);
  char* memory_;  // until the process ends
};

std::vector<std::string> inputsIn(char** begin, char** end) {
  std::vector<std::filesystem::path> paths;
  for (char** folder = begin; folder != end; ++folder) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(*folder)) {
      if (entry.is_regular_file()) paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());  // so that a seed has the same changes everywhere
  std::vector<std::string> inputs;
  for (const std::filesystem::path& path : paths) {
    std::ifstream stream(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  return inputs;
}

size_t below(size_t count, FuzzDice& dice) { return count == 0 ? 0 : dice() % count; }

// A byte changed, put in or left out, a part left out, doubled, or taken from another input.
std::string mutateBytes(std::string input, const std::string& other, FuzzDice& dice) {
  const size_t at = below(input.size(), dice);
  const size_t count = 1 + below(std::min<size_t>(input.size() - at, 64), dice);
  switch (dice() % 6) {
    case 0:
      if (!input.empty()) input[at] = static_cast<char>(input[at] ^ 1 << dice() % 8);
      break;
    case 1:
      if (!input.empty()) input[at] = static_cast<char>(dice());
      break;
    case 2: input.insert(at, 1, static_cast<char>(dice())); break;
    case 3: input.erase(at, count); break;
    case 4: input.insert(at, input.substr(at, count)); break;
    default: input = input.substr(0, at) + other.substr(below(other.size(), dice));
  }
  return input;
}

std::string mutate(FuzzForm form, const std::string& input, const std::string& other, FuzzDice& dice) {
  std::string changed;
  if (form != FuzzForm::kBytes && dice() % 8 != 0)
    changed = form == FuzzForm::kJson ? mutateJson(input, dice) : mutateModel(input, dice);
  if (changed.empty()) changed = mutateBytes(input, other, dice);
  return changed.substr(0, kLongestInput);
}

int64_t fuzz(const FuzzTarget& target, double seconds, int64_t most, FuzzDice& dice, Slot& slot,
             const std::vector<std::string>& inputs) {
  const auto end = static_cast<std::clock_t>(seconds * CLOCKS_PER_SEC);  // of the processor
  int64_t executions = 0;
  std::string input;
  while (executions < most && std::clock() < end) {
    if (executions % kChangesInARow == 0) input = inputs[below(inputs.size(), dice)];
    input = mutate(target.form, input, inputs[below(inputs.size(), dice)], dice);
    slot.hold(input);
    ::alarm(kLongestWait);
    runFuzzTarget(target, input);
    ++executions;
  }
  ::alarm(0);
  return executions;
}

int run(int count, char** arguments) {
  const FuzzTarget* chosen = nullptr;
  for (const FuzzTarget& target : fuzzTargets()) {
    if (count > 6 && target.name == arguments[1]) chosen = &target;
  }
  if (chosen == nullptr) {
    std::fprintf(stderr, "expected TARGET SECONDS EXECUTIONS SEED SLOT FOLDER...\n");
    return 64;
  }
  const rlimit memory{kMostMemory, kMostMemory};
  ::setrlimit(RLIMIT_AS, &memory);
  FuzzDice dice(static_cast<unsigned>(std::strtoul(arguments[4], nullptr, 10)));
  Slot slot(arguments[5]);
  const std::vector<std::string> inputs = inputsIn(arguments + 6, arguments + count);
  if (inputs.empty()) return 66;
  const int64_t most = std::strtoll(arguments[3], nullptr, 10);
  const int64_t executions = fuzz(*chosen, std::strtod(arguments[2], nullptr), most, dice, slot, inputs);
  std::printf("number_of_executed_units: %lld\n", static_cast<long long>(executions));
  return 0;
}

}  // namespace
}  // namespace pipeshard::testing

int main(int count, char** arguments) { return pipeshard::testing::run(count, arguments); }
