#include "tools/options/cluster_option.h"

#include <algorithm>
#include <filesystem>
#include <thread>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "ir/cluster/cluster_file.h"
#include "ir/cluster/cluster_presets.h"

namespace pipeshard {
namespace {

std::string readText(const std::string& path) {
  constexpr uint64_t kMostBytes = 16 << 20;
  if (std::optional<std::string> text = readTextFile(path, kMostBytes, "a cluster file"))
    return *std::move(text);
  fail(ErrorCode::kMissingInput,
       "--cluster {}: there is no file of this name that can be read; write NODESxDEVICES, for example 1x4, "
       "a preset (pipeshard cluster lists them) or the path of a cluster file (docs/clusters.md)",
       path);
}

}  // namespace

Cluster readCluster(const std::string& text) {
  if (text == "this" || text == "this machine" || text == "this-machine") {
    return uniformCluster(1, std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  }
  const std::filesystem::path path(text);
  std::error_code error;
  const bool is_file = text.find('/') != std::string::npos || text.ends_with(".json") ||
                       std::filesystem::is_regular_file(path, error);
  return is_file ? parseClusterFile(readText(text), path.filename().string()) : parseCluster(text);
}

std::string clusterHelp() {
  std::vector<std::string> names;
  for (const ClusterPreset& preset : clusterPresets()) names.push_back(preset.name);
  std::string lines;
  size_t width = 0;
  for (const std::string& name : names) {
    const bool breaks = width + name.size() > 90;
    lines += lines.empty() ? "" : breaks ? ",\n  " : ", ";
    width = breaks ? name.size() : width + name.size() + 2;
    lines += name;
  }
  return "What the plan is for; no device is touched:\n"
         "  2x4: two nodes of four devices; this: this machine, a device per core\n"
         "  PRESET, PRESET:N (N nodes, or N devices of v100 and the like) or PRESET:NxD: p3.16xlarge:8, "
         "v100:8, dgx-h100:4\n"
         "  FILE: a description in JSON, nodes may differ (docs/clusters.md; pipeshard cluster PRESET --json "
         "FILE writes one)\n"
         "Presets: " +
         lines;
}

}  // namespace pipeshard
