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

// How GPUs give each other tensors: straight, by NCCL, where each rank has one of its own; by CUDA IPC, where
// ranks share some; else through the host's memory and the transports of the CPU.
enum class DeviceTransport : uint8_t { kAuto, kStaged, kNccl, kIpc };
inline constexpr std::array<std::string_view, 4> kDeviceTransports = {"auto", "staged", "nccl", "ipc"};
inline std::string_view nameOf(DeviceTransport transport) {
  return kDeviceTransports[static_cast<size_t>(transport)];
}
inline std::optional<DeviceTransport> deviceTransportOf(std::string_view name) {
  for (size_t i = 0; i < kDeviceTransports.size(); ++i) {
    if (kDeviceTransports[i] == name) return static_cast<DeviceTransport>(i);
  }
  return std::nullopt;
}

struct DeviceChoice {
  DeviceBackend backend = DeviceBackend::kCpu;
  // GPUs: rank k of a node has number k of those that the node sees. Where there are fewer, several ranks
  // have one; else that is refused.
  bool shared = false;
  DeviceTransport transport = DeviceTransport::kAuto;

  friend bool operator==(const DeviceChoice&, const DeviceChoice&) = default;
};

}  // namespace pipeshard
