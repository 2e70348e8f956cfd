#include "tools/cluster_option.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <fmt/ranges.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

std::string readText(const std::string& path) {
  constexpr std::uintmax_t kMostBytes = 16 << 20;
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (!error && size > kMostBytes)
    fail(ErrorCode::kConfiguration, "{} is too large for a cluster file ({} bytes)", path, size);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) {
    fail(
        ErrorCode::kMissingInput,
        "--cluster {}: there is no file of this name that can be read; write NODESxDEVICES, for example 1x4, "
        "a preset (pipeshard cluster lists them) or the path of a cluster file (docs/clusters.md)",
        path);
  }
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
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

int64_t leastMemory(const Cluster& cluster) {
  int64_t least = 0;
  for (const ClusterNode& node : cluster.nodes) {
    const int64_t memory = cluster.kinds[static_cast<size_t>(node.kind)].memory_bytes;
    if (memory > 0 && (least == 0 || memory < least)) least = memory;
  }
  return least;
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
