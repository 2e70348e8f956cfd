// How communicators come to be and end: what all of their ranks take part in.
#pragma once

#include <memory>
#include <string>

#include "tests/standin/nccl/communicator.h"

namespace standin::nccl {

// A rank joins; `setup` ends when all have.
void join(const std::shared_ptr<Communicator>& communicator, const Place& place, int rank, int ranks);
// Another communicator of those ranks of the parent that give the same color; none where it is negative: then
// it ends with no block.
std::shared_ptr<Communicator> split(const std::shared_ptr<Communicator>& parent, int color, int key);
void finalize(const std::shared_ptr<Communicator>& communicator);

// Until `setup` is over; what waits too long is reported and fails. Not under the lock.
ncclResult_t waitFor(const std::shared_ptr<Communicator>& communicator, const std::string& what);

// The device that this thread uses, as the process and as the machine counts.
void takeDevice(Communicator& communicator);
// Communicators that a group makes have no order.
uint64_t nextCreation(bool another);

}  // namespace standin::nccl
