// What a control endpoint says about who can reach it. Internal to control.
#pragma once

#include <string>

namespace pipeshard {

// True when only this machine can reach it: tcp on a loopback address ("tcp://127.0.0.1:*",
// "tcp://[::1]:5000", "tcp://localhost:*"), ipc://, inproc://. Host names and interfaces other than these are
// taken as public.
bool isLocalEndpoint(const std::string& endpoint);

// Where a client on this machine reaches a server that listens on `endpoint`: wildcards become loopback.
std::string reachableHere(const std::string& endpoint);

}  // namespace pipeshard
