// A hash of bytes that is the same on every machine: for digests in files, never against an adversary.
#pragma once

#include <cstdint>
#include <string_view>

namespace pipeshard {

inline constexpr uint64_t kHashStart = 0xcbf29ce484222325;

// FNV-1a, 64 bits; goes on from `hash`.
constexpr uint64_t hashBytes(std::string_view bytes, uint64_t hash = kHashStart) {
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return hash;
}

}  // namespace pipeshard
