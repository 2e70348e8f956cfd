#include "runtime/checkpoint/replica_hashes.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "runtime/checkpoint/rank_state.h"
#include "runtime/files/content_hash.h"

namespace pipeshard {
namespace {

bool isToBeFlipped(RankId rank, int64_t step) {
  const char* text = std::getenv("PIPESHARD_FLIP_BIT");
  return text != nullptr && text == fmt::format("{}:{}", rank.index(), step);
}

void flipBit(Executor& executor, BufferId id) {
  const HostView content = executor.view(id);
  const std::span<const std::byte> bytes = content.bytes();
  std::vector<std::byte> changed(bytes.size());
  std::ranges::copy(bytes, changed.begin());
  if (changed.empty()) return;
  changed.front() ^= std::byte{1};
  executor.write(id, [&](std::span<std::byte> out) { std::ranges::copy(changed, out.begin()); });
}

}  // namespace

std::vector<std::string> replicaHashes(Executor& executor, int64_t step) {
  std::vector<std::string> hashes;
  bool flip = isToBeFlipped(executor.program().rank, step);
  for (size_t b = 0; b < executor.program().buffers.size(); ++b) {
    const Buffer& buffer = executor.program().buffer(BufferId(b));
    const std::string name = stateTensorName(buffer);
    if (name.empty()) continue;
    if (std::exchange(flip, false)) flipBit(executor, BufferId(b));
    const HostView content = executor.view(BufferId(b));
    const Shard box = boxOf(buffer);
    const uint64_t hash = contentHash({reinterpret_cast<const char*>(content.data()), content.size()});
    hashes.push_back(fmt::format("{} {} [{}]+[{}]", hashText(hash), name, fmt::join(box.start, ","),
                                 fmt::join(box.size, ",")));
  }
  return hashes;
}

std::optional<std::string> ReplicaCheck::take(RankId rank, int64_t step,
                                              const std::vector<std::string>& texts, bool is_last) {
  Said& said = said_[step];
  for (const std::string& text : texts) {
    const size_t space = text.find(' ');
    if (space == std::string::npos) fail(ErrorCode::kInternal, "rank {}: '{}' is no hash", rank, text);
    said.parts[text.substr(space + 1)][text.substr(0, space)].push_back(rank);
  }
  if (is_last) ++said.complete;
  if (said.complete < ranks_) return std::nullopt;
  const Said all = std::move(said);
  said_.erase(step);
  has_no_copies_ = std::ranges::all_of(all.parts, [](const auto& part) {
    return part.second.size() == 1 && part.second.begin()->second.size() == 1;
  });
  for (const auto& [part, groups] : all.parts) {
    if (groups.size() > 1) return fmt::format("after step {} {}", step, describe(part, groups));
  }
  return std::nullopt;
}

std::string ReplicaCheck::describe(const std::string& part, const ByHash& groups) {
  const auto by_size = [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); };
  const auto most = std::max_element(groups.begin(), groups.end(), by_size);
  const auto as_many = std::count_if(groups.begin(), groups.end(), [&](const auto& group) {
    return group.second.size() == most->second.size();
  });
  std::vector<RankId> odd;
  for (const auto& [hash, ranks] : groups) {
    if (hash != most->first) odd.insert(odd.end(), ranks.begin(), ranks.end());
  }
  std::vector<RankId> same = most->second;
  std::sort(odd.begin(), odd.end());
  std::sort(same.begin(), same.end());
  const std::string who = as_many == 1 ? fmt::format("rank {} holds other numbers than rank {}",
                                                     fmt::join(odd, ", "), fmt::join(same, ", "))
                                       : fmt::format("rank {} and rank {} hold different numbers",
                                                     fmt::join(same, ", "), fmt::join(odd, ", "));
  return fmt::format("{} in '{}': memory or a device has changed a value in silence", who, part);
}

}  // namespace pipeshard
