// How a rank's device reaches those of the others: straight, or through the host's memory and the
// communicators of the CPU's ranks. All ranks choose the same.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/device/device_choice.h"
#include "runtime/device/device_communicator.h"
#include "runtime/rendezvous/device_order.h"

namespace pipeshard {

struct DeviceRendezvous {
  RankId rank;
  int ranks = 0;
  DeviceTransport asked = DeviceTransport::kAuto;
  std::vector<ProgramFolder*> folders;  // those of training, those of an evaluation
  std::chrono::milliseconds timeout{};  // of each wait for peers
  Communicator* host = nullptr;         // of these ranks, through the host's memory
  // What ranks leave for each other: bytes by key. fetch waits.
  std::function<void(const std::string& key, const std::string& bytes)> store;
  std::function<std::string(const std::string& key)> fetch;
};

struct DeviceConnection {
  std::unique_ptr<DeviceCommunicator> communicator;  // nullptr: through the host's memory
  std::vector<DeviceOrder> orders;                   // by folder; none: likewise
  std::string text;                                  // for people; "": there is nobody to reach
};

// Waits for all ranks. Straight by Device::network() where each has a device of its own; where ranks share
// some, by Device::nearNetwork() if that works and it is proven that a step ends (device_order.h), else
// through the host's memory, and the text says why. Or as is asked for: Error(kConfiguration) where that
// cannot be. Errors else: kConfiguration where each has a device of its own and a library is missing, or it
// cannot be proven that a step ends; as DeviceNetwork::meet. With a communicator, nobody else uses `host`
// from now on.
DeviceConnection connectDevices(const DeviceRendezvous& rendezvous, Device& device);

}  // namespace pipeshard
