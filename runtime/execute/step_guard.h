// A step whose guard is not finite (Program::guard) is not applied: no update is made, and what the forward
// passes have replaced becomes again what it was. All ranks hold the same guard, so all do the same.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ir/program/program.h"
#include "runtime/device/device.h"
#include "runtime/execute/nan_finder.h"

namespace pipeshard {

class StepGuard {
 public:
  // `program` has a guard, and outlives this, as `queue` does; `place`: where its buffers are on the device.
  using Place = std::function<std::span<std::byte>(BufferId)>;
  StepGuard(const Program& program, DeviceQueue& queue, Place place)
      : program_(program), queue_(queue), place_(std::move(place)) {
    for (size_t b = 0; b < program.buffers.size(); ++b) {
      if (program.buffer(BufferId(b)).kind == BufferKind::kForwardState)
        kept_.emplace_back(b, queue.device().allocate(place_(BufferId(b)).size()));
    }
  }

  // Before a step: keeps what its forward passes replace.
  void begin() {
    finding_.clear();
    for (auto& [id, kept] : kept_) queue_.copy(place_(id).data(), kept.bytes.data(), kept.bytes.size());
  }

  // From the first update on: is the norm of all gradients finite?
  bool isFinite() const {
    double norm = 0;
    std::memcpy(&norm, HostView(queue_, place_(program_.guard)).data(), sizeof norm);
    return std::isfinite(norm);
  }

  // An update that is left out: looks for the first gradient in it that is not finite.
  void leaveOut(const Instruction& update) {
    for (const BufferId id : update.inputs) {
      const Buffer& buffer = program_.buffer(id);
      if (buffer.kind != BufferKind::kGradient || !finding_.empty()) continue;
      const auto found = firstNotFinite(buffer.data_type, HostView(queue_, place_(id)).bytes(), true);
      if (!found) continue;
      const std::string_view name = buffer.value;  // "w.gradient"
      finding_ = fmt::format("the gradient of '{}' has {}", name.substr(0, name.rfind('.')),
                             describeNotFinite(found->second));
    }
  }

  // Behind a step that is not applied: what lives across steps is as it was before it.
  void takeBack() {
    for (const auto& [id, kept] : kept_) queue_.copy(kept.bytes.data(), place_(id).data(), kept.bytes.size());
  }

  // Of this rank's gradients, "the gradient of 'w' has nan"; "": nothing is known.
  const std::string& finding() const { return finding_; }

 private:
  const Program& program_;
  DeviceQueue& queue_;
  Place place_;
  std::vector<std::pair<BufferId, MemoryBlock>> kept_;  // forward states, on the device
  std::string finding_;
};

}  // namespace pipeshard
