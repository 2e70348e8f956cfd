#include "planning/request/profile_store.h"

#include <sys/utsname.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "runtime/kernels/base/simd.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGpuInstructions = "cuda";
constexpr std::string_view kSource = "profile ";  // begins DeviceKind::source of what was measured

// The first processor's lines of /proc/cpuinfo.
std::map<std::string, std::string> processorFacts() {
  std::ifstream file("/proc/cpuinfo");
  std::map<std::string, std::string> facts;
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const auto trimmed = [](std::string text) {
      text.erase(0, text.find_first_not_of(" \t"));
      text.erase(text.find_last_not_of(" \t") + 1);
      return text;
    };
    facts[trimmed(line.substr(0, colon))] = trimmed(line.substr(colon + 1));
  }
  return facts;
}

std::string processorName() {
  const std::map<std::string, std::string> facts = processorFacts();
  const auto fact = [&](const char* key) { return facts.contains(key) ? facts.at(key) : std::string(); };
  if (!fact("model name").empty())
    return fmt::format("{}, family {} model {}", fact("model name"), fact("cpu family"), fact("model"));
  utsname system{};
  ::uname(&system);
  return fmt::format("{} {} {}", system.machine, fact("CPU implementer"), fact("CPU part"));
}

const char* instructionSet() {
  switch (kernels::simdLevel()) {
    case kernels::SimdLevel::kAvx512: return "avx512";
    case kernels::SimdLevel::kAvx2: return "avx2";
    case kernels::SimdLevel::kBase: break;
  }
  return "base";
}

// Latency and bandwidth for those who want two numbers: of the smallest message, and of the largest beyond
// that.
void useCurve(const CostCurve& curve, Link& link) {
  if (curve.points.size() < 2) return;
  const CostPoint& first = curve.points.front();
  const CostPoint& last = curve.points.back();
  link.measured = curve;
  link.latency_ns = first.ns;
  link.bytes_per_ns = static_cast<double>(last.amount - first.amount) /
                      static_cast<double>(std::max<int64_t>(1, last.ns - first.ns));
}

std::string environmentOf(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

}  // namespace

ProfiledDevice thisDevice(int threads) {
  return {processorName(), instructionSet(),
          std::max(1, static_cast<int>(std::thread::hardware_concurrency())), std::max(1, threads)};
}

ProfiledDevice profiledGpu(const std::string& name) {
  const size_t open = name.find('('), close = name.rfind(')');
  const bool has_model = open != std::string::npos && close != std::string::npos && open < close;
  return {has_model ? name.substr(open + 1, close - open - 1) : name, kGpuInstructions, 1, 1};
}

std::string defaultProfilePath(std::string_view backend) {
  const std::string file = backend.empty() ? "profile.json" : fmt::format("profile-{}.json", backend);
  const std::string config = environmentOf("XDG_CONFIG_HOME");
  if (!config.empty()) return (fs::path(config) / "pipeshard" / file).string();
  const std::string home = environmentOf("HOME");
  return home.empty() ? "" : (fs::path(home) / ".config" / "pipeshard" / file).string();
}

StoredProfile readProfile(const std::string& path) {
  const std::optional<std::string> text = readTextFile(path);
  if (!text) {
    fail(ErrorCode::kMissingInput,
         "{}: there is no such profile; `pipeshard profile -o {}` measures one, --profile off does without",
         path, path);
  }
  StoredProfile stored;
  stored.path = path;
  stored.profile = profileFromJson(*text, path);
  stored.digest = profileDigest(stored.profile);
  stored.times = std::make_shared<OperatorTimes>(stored.profile);
  return stored;
}

void writeProfile(const Profile& profile, const std::string& path) {
  const fs::path folder = fs::absolute(path).parent_path();
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    fail(ErrorCode::kDiskFull, "{} cannot be created: {}; -o FILE writes elsewhere", folder.string(),
         error.message());
  const std::string next = path + ".new";
  writeTextFile(next, profileToJson(profile));
  fs::rename(next, path, error);
  if (error) fail(ErrorCode::kDiskFull, "{} cannot be written: {}", path, error.message());
}

bool applyProfile(Cluster& cluster, const StoredProfile& stored) {
  const Profile& profile = stored.profile;
  bool changed = false;
  for (size_t k = 0; k < cluster.kinds.size(); ++k) {
    DeviceKind& kind = cluster.kinds[k];
    if (kind.isKnown() && !kind.source.starts_with(kSource)) continue;
    kind.name = profile.device.instructions == kGpuInstructions ? "gpu" : "cpu-core";
    kind.memory = profile.memory;
    kind.rates = profile.rates;
    kind.source = fmt::format("{}{}: {}", kSource, stored.digest, printDevice(profile.device));
    kind.measured = stored.times;
    changed = true;
    for (ClusterNode& node : cluster.nodes) {
      if (node.kind != static_cast<int>(k)) continue;
      node.cores = std::max(1, profile.device.processors / profile.device.threads);
      useCurve(profile.inside, node.inside);
      useCurve(profile.between, node.nic);
    }
  }
  return changed;
}

std::optional<StoredProfile> chooseProfile(const std::string& asked, std::string* note) {
  const std::string choice = asked.empty() ? environmentOf("PIPESHARD_PROFILE") : asked;
  if (choice == "off") return std::nullopt;
  if (!choice.empty()) return readProfile(choice);
  const std::string path = defaultProfilePath();
  if (path.empty() || !fs::exists(path)) return std::nullopt;
  StoredProfile stored = readProfile(path);
  ProfiledDevice here = thisDevice(stored.profile.device.threads);
  if (stored.profile.device == here) return stored;
  if (note != nullptr) {
    *note = fmt::format(
        "the profile {} is of another machine ({}; this one is {}) and is not used; `pipeshard profile` "
        "measures this one",
        path, printDevice(stored.profile.device), printDevice(here));
  }
  return std::nullopt;
}

}  // namespace pipeshard
