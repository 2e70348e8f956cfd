// Hashes that are the same on every machine: for digests in files and numbers drawn by place, never against
// an adversary.
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

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): one to one; every bit of the result depends on every
// bit of x, so that neighbouring numbers give unrelated ones.
constexpr uint64_t mixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace pipeshard
