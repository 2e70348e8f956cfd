// Which device a job's ranks compute on: what people ask for.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace pipeshard {

enum class DeviceBackend : uint8_t { kCpu, kCuda };

inline constexpr std::array<std::string_view, 2> kDeviceBackends = {"cpu", "cuda"};  // by backend
inline std::string_view nameOf(DeviceBackend backend) {
  return kDeviceBackends[static_cast<size_t>(backend)];
}
inline std::optional<DeviceBackend> deviceBackendOf(std::string_view name) {
  for (size_t i = 0; i < kDeviceBackends.size(); ++i) {
    if (kDeviceBackends[i] == name) return static_cast<DeviceBackend>(i);
  }
  return std::nullopt;
}

struct DeviceChoice {
  DeviceBackend backend = DeviceBackend::kCpu;
  // GPUs: rank k of a node has number k of those that the node sees. Where there are fewer, several ranks
  // have one; else that is refused.
  bool shared = false;
};

}  // namespace pipeshard
