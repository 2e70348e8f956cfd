// Ids in messages: fmt::format("stage {}", stage) prints the position; "-" where there is no such thing.
// Widths are those of texts: "{:>3}".
#pragma once

#include <string>
#include <string_view>

#include <fmt/format.h>

#include "ir/base/ids.h"

template <typename Tag>
struct fmt::formatter<pipeshard::Id<Tag>> : fmt::formatter<std::string_view> {
  template <typename Context>
  auto format(pipeshard::Id<Tag> id, Context& context) const {
    const std::string text = id.valid() ? std::to_string(id.index()) : "-";
    return fmt::formatter<std::string_view>::format(text, context);
  }
};
