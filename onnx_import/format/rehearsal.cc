#include "onnx_import/format/rehearsal.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <optional>
#include <thread>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

using namespace std::chrono_literals;

constexpr auto kLongestRehearsal = 60s;
constexpr rlim_t kMemory = rlim_t{4} << 30;  // beside what the process has
constexpr int kOutOfMemoryCode = 3;

std::atomic<Rehearsing> rehearsing{Rehearsing::kNever};

// Data, and ends of ranges that are cut off at a tensor's own.
constexpr std::array<std::string_view, 9> kMayBeAnything = {
    "start", "end", "starts", "ends", "shape", "value_int", "value_ints", "k", "seed"};
constexpr std::array<std::string_view, 3> kCountFromBehind = {"axis", "axes", "ignore_index"};

// Sizes, counts and steps: what a shape is divided by or multiplied with. All others may be 0.
constexpr std::array<std::string_view, 17> kSizes = {
    "strides",      "dilations", "kernel_shape", "group",       "blocksize",     "block_size",
    "num_outputs",  "num_heads", "hidden_size",  "q_num_heads", "kv_num_heads",  "output_height",
    "output_width", "size",      "scales",       "split",       "sampling_ratio"};

constexpr int64_t kHuge = int64_t{1} << 24;
constexpr int64_t kFarBehind = -1024;

bool isOddNumber(std::string_view name, int64_t number) {
  const auto isIn = [&](const auto& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (number == 0) return isIn(kSizes);
  if ((number > 0 && number < kHuge) || isIn(kMayBeAnything)) return false;
  return number > 0 || number < kFarBehind || !isIn(kCountFromBehind);
}

bool isOdd(std::string_view name, const Attribute& attribute) {
  if (const auto* number = std::get_if<int64_t>(&attribute)) return isOddNumber(name, *number);
  if (const auto* numbers = std::get_if<std::vector<int64_t>>(&attribute))
    return std::any_of(numbers->begin(), numbers->end(), [&](int64_t n) { return isOddNumber(name, n); });
  const auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute);
  return body != nullptr && *body && hasOddNumbers(**body);
}

// What the child looks at, in memory that both see.
struct Place {
  std::array<char, 512> text{};

  void note(const std::string& what) {
    const size_t bytes = std::min(what.size(), text.size() - 1);
    std::memcpy(text.data(), what.data(), bytes);
    text[bytes] = '\0';
  }
  std::string read() const { return {text.data(), ::strnlen(text.data(), text.size() - 1)}; }
};

void lowerLimits() {
  std::ifstream pages("/proc/self/statm");
  rlim_t mapped = 0;
  pages >> mapped;
  const rlim_t memory = mapped * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + kMemory;
  const rlimit all{memory, memory}, none{0, 0};
  ::setrlimit(RLIMIT_AS, &all);
  ::setrlimit(RLIMIT_CORE, &none);
}

[[noreturn]] void runChild(const std::function<void(const RehearsalNote&)>& work, Place& place,
                           pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGINT, SIGTERM})
    ::signal(number, SIG_DFL);
  lowerLimits();
  int code = 0;
  try {
    work([&](const std::string& what) { place.note(what); });
  } catch (const std::bad_alloc&) {
    code = kOutOfMemoryCode;
  } catch (...) {
    // The parent comes to the same, and says it.
  }
  ::_exit(code);
}

[[noreturn]] void failUnwatched() {
  fail(
      ErrorCode::kOutOfMemory,
      "the model cannot be looked at in a process of its own first: {}; check `ulimit -u` and memory, or say "
      "--trust-model where you know who made it",
      std::strerror(errno));
}

// The status, or nothing when it has not ended in time (it has then been killed).
std::optional<int> awaitEnd(pid_t child) {
  const auto end = std::chrono::steady_clock::now() + kLongestRehearsal;
  int status = 0;
  for (auto pause = 200us;; pause = std::min<decltype(pause)>(pause * 2, 10ms)) {
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended < 0) failUnwatched();  // as where SIGCHLD is ignored
    if (ended > 0) return status;
    if (std::chrono::steady_clock::now() > end) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return std::nullopt;
    }
    std::this_thread::sleep_for(pause);
  }
}

// "": well.
std::string describeEnd(const std::optional<int>& status) {
  if (!status) return "does not end";
  if (WIFSIGNALED(*status)) return fmt::format("crashed (SIG{})", ::sigabbrev_np(WTERMSIG(*status)));
  switch (WEXITSTATUS(*status)) {
    case 0: return "";
    case kOutOfMemoryCode: return "needs more than 4 GiB";
    default: return fmt::format("ended its process with exit code {}", WEXITSTATUS(*status));
  }
}

bool isMemoryLimited() {
  const auto isLimited = [](auto resource) {
    rlimit limit{};
    return ::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  };
  return isLimited(RLIMIT_AS) || isLimited(RLIMIT_DATA);
}

}  // namespace

bool isOfStrangers(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path file = fs::canonical(path, error);
  struct stat status {
  }, folder{};
  if (error || ::stat(file.c_str(), &status) != 0 || ::stat(file.parent_path().c_str(), &folder) != 0)
    return false;
  return status.st_uid != ::geteuid() || (folder.st_mode & S_IWOTH) != 0;
}

Rehearsing rehearsalOf(const std::string& path) {
  return isOfStrangers(path) ? Rehearsing::kAlways : Rehearsing::kOfOddNumbers;
}

bool hasOddNumbers(const Graph& graph) {
  const bool in_nodes = std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) {
    return std::any_of(node.attributes.begin(), node.attributes.end(),
                       [](const auto& attribute) { return isOdd(attribute.first, attribute.second); });
  });
  return in_nodes ||
         std::any_of(graph.functions.begin(), graph.functions.end(),
                     [](const Function& function) { return function.body && hasOddNumbers(*function.body); });
}

Rehearsals::Rehearsals(Rehearsing when) : before_(rehearsing.exchange(when)) {}
Rehearsals::~Rehearsals() { rehearsing.store(before_); }
bool Rehearsals::areWantedFor(const Graph& graph) {
  const Rehearsing when = rehearsing.load();
  return when == Rehearsing::kAlways || (when == Rehearsing::kOfOddNumbers && hasOddNumbers(graph));
}

void rehearse(const std::function<void(const RehearsalNote&)>& work) {
  void* memory = ::mmap(nullptr, sizeof(Place), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) failUnwatched();
  const auto unmap = [](Place* place) { ::munmap(place, sizeof(Place)); };
  const std::unique_ptr<Place, decltype(unmap)> place(new (memory) Place, unmap);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) failUnwatched();
  if (child == 0) runChild(work, *place, parent);
  const std::optional<int> status = awaitEnd(child);
  const std::string end = describeEnd(status);
  if (end.empty()) return;
  // Its limits are lower than 4 GiB, and are this process's, too: whoever hears this names them.
  const bool lacks_memory = status && WIFEXITED(*status) && WEXITSTATUS(*status) == kOutOfMemoryCode;
  if (lacks_memory && isMemoryLimited()) throw std::bad_alloc();
  fail(
      ErrorCode::kBadModel,
      "{}: ONNX's inference of types and shapes {}: what it is given does not make sense to it; the model is "
      "not used",
      place->read(), end);
}

}  // namespace pipeshard
