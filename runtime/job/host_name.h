// This machine's name, for messages, and its addresses.
#pragma once

#include <string>

namespace pipeshard {

std::string hostName();

// The address of this machine from which `endpoint` ("tcp://HOST:PORT") is reached: no packet is sent for
// that. Its name where that cannot be known.
std::string addressTowards(const std::string& endpoint);

}  // namespace pipeshard
