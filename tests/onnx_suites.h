// Where ONNX's backend test suites are: as PIPESHARD_ONNX_SUITES says, or where tools/setup.sh puts them.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace pipeshard::testing {

// Its folders are the suites: node, simple, light, pytorch-converted, pytorch-operator.
inline std::filesystem::path onnxSuites() {
  if (const char* folder = std::getenv("PIPESHARD_ONNX_SUITES")) return folder;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path base = cache != nullptr && *cache != 0
                                         ? std::filesystem::path(cache)
                                         : std::filesystem::path(home != nullptr ? home : "") / ".cache";
  return base / "pipeshard/onnx-1.19.1/share/suites";
}

}  // namespace pipeshard::testing
