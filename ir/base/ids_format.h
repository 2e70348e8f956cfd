// Ids in messages: fmt::format("stage {}", stage) prints the position; "-" where there is no such thing.
#pragma once

#include <fmt/format.h>

#include "ir/base/ids.h"

template <typename Tag>
struct fmt::formatter<pipeshard::Id<Tag>> : fmt::formatter<std::string_view> {
  template <typename Context>
  auto format(pipeshard::Id<Tag> id, Context& context) const {
    return id.valid() ? fmt::format_to(context.out(), "{}", id.index()) : fmt::format_to(context.out(), "-");
  }
};
