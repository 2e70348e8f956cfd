// A thread beside the host: what NCCL does on its own. It sets communicators up, runs launches that other
// ranks wait for (lazy), sees peers that have vanished, and tells of kernels that wait for each other.
#pragma once

#include <memory>
#include <vector>

#include "tests/standin/nccl/communicator.h"

namespace standin::nccl {

// All that are not destroyed, by handle.
std::vector<std::shared_ptr<Communicator>>& communicators();
void watch(const std::shared_ptr<Communicator>& communicator);
void unwatch(const std::shared_ptr<Communicator>& communicator);

// A launch has come or gone.
void moved();
// STANDIN_NCCL_SECONDS: how long nothing may move before it is told, and how long a failed communicator may
// block its streams before it is aborted. 60 where nobody says another.
double patience();
// Of the ranks that are there, the first time that each is seen.
void meetProcesses(Communicator& communicator);

}  // namespace standin::nccl
