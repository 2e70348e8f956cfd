// Bytes as text, for control messages.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pipeshard {

std::string toHex(std::span<const std::byte> bytes);
// Two digits a byte; what is no digit counts as 0, a last single one is dropped.
std::vector<std::byte> fromHex(std::string_view text);

}  // namespace pipeshard
