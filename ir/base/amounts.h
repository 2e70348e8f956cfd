// Amounts for people.
#pragma once

#include <cstdint>
#include <string>

namespace pipeshard {

// "1.5 MiB", "2.3 GFLOP": three digits, powers of 1024 and of 1000.
std::string formatBytes(int64_t bytes);
std::string formatFlops(int64_t flops);
// "12.3 us", "4.56 ms".
std::string formatNanoseconds(int64_t ns);
// "27.3%": the part of the whole; "0.0%" of nothing.
std::string formatShare(int64_t part, int64_t whole);

// "16GB", "1.5GiB", "800000" -> bytes; units B, kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB.
// Error(kUsage) naming `option` otherwise.
int64_t parseBytes(const std::string& option, const std::string& text);

}  // namespace pipeshard
