// Which transport carries tensors between the hosts of a job (on a host, shared memory does).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pipeshard {

enum class DataPlane : uint8_t {
  kCurve,    // transport/wire: encrypted, and only members of the job take part
  kPrivate,  // transport/gloo: neither, for a network that was declared trusted
};

std::string_view dataPlaneName(DataPlane plane);  // "curve", "private"
// Error(kUsage) naming both.
DataPlane parseDataPlane(const std::string& text);

}  // namespace pipeshard
