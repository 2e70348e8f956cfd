// What a control endpoint says about who can reach it, and the names in it.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace pipeshard {

// True when only this machine can reach it: tcp on a loopback address ("tcp://127.0.0.1:*",
// "tcp://[::1]:5000", "tcp://localhost:*"), ipc://, inproc://. Host names and interfaces other than these are
// taken as public.
bool isLocalEndpoint(const std::string& endpoint);

// True for a server on all addresses of its machine ("tcp://*:7000", "tcp://0.0.0.0:*", "tcp://[::]:7000").
bool isAnyAddress(const std::string& endpoint);

// Where a client on this machine reaches a server that listens on `endpoint`: wildcards become loopback.
std::string reachableHere(const std::string& endpoint);

// "tcp://0.0.0.0:7000" with host "a" is "tcp://a:7000", with "fd09::1" it is "tcp://[fd09::1]:7000". What is
// no tcp://HOST:PORT stays as it is.
std::string withHost(const std::string& endpoint, const std::string& host);

// What a client is to connect to, one after the other: "tcp://NAME:PORT" with each address that NAME has on
// this machine in its place, those of IPv4 first; any other endpoint as it is. None, and the resolver's
// reason in `why_none`, where the name has no address. May wait for the resolver, some seconds.
std::vector<std::string> addressesOf(const std::string& endpoint, std::string& why_none);

// What a server is to bind to: "tcp://NAME:PORT" with the first address of NAME in its place; addresses, *,
// interfaces ("tcp://eth0:7000") and other transports as they are. Error(kConfiguration) that says what to
// write: for what is no endpoint, for a name without address, and for a name other than localhost that is
// loopback on this machine, where others would not reach it.
std::string listeningEndpoint(const std::string& endpoint);

}  // namespace pipeshard
