#include "partition/emit/rank_questions.h"

#include <algorithm>
#include <utility>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"

namespace pipeshard {
size_t groupIn(ProgramSet& set, const std::vector<RankId>& group) {
  const size_t index = std::find(set.groups.begin(), set.groups.end(), group) - set.groups.begin();
  if (index == set.groups.size()) set.groups.push_back(group);
  return index;
}

int RankQuestions::ask(const std::string& key, Question question) {
  const auto [found, is_new] = first_start_.try_emplace(key, starts_);
  if (!is_new) return found->second;
  RankAnswer own = question(rank_);
  starts_ += static_cast<int>(own.starts.size());
  asked_.push_back({std::move(question), std::move(own)});
  return found->second;
}

const Constant& RankQuestions::askConstant(const std::string& key, std::function<Constant(RankId)> of) {
  const auto [found, is_new] = constants_.try_emplace(key, OwnedConstant{constants_.size(), {}});
  if (!is_new) return found->second.own;
  ask("constant " + key, [of = std::move(of)](RankId rank) {
    RankAnswer answer;
    answer.constants.push_back(of(rank));
    answer.alike.push_back(static_cast<int64_t>(answer.constants[0].data_type));
    const Shape& shape = answer.constants[0].shape;
    answer.alike.insert(answer.alike.end(), shape.begin(), shape.end());
    return answer;
  });
  return found->second.own = asked_.back().own.constants[0];
}

std::optional<RankBinding> RankQuestions::bindingOf(RankId rank, const std::vector<RankId>& of_kind,
                                                    ProgramSet& set) const {
  RankBinding binding;
  std::map<RankId, RankId> theirs, ours;  // peers: by the asking rank's, and by this rank's
  std::vector<std::vector<RankId>> groups;
  for (const Asked& asked : asked_) {
    RankAnswer answer = asked.question(rank);
    const RankAnswer& own = asked.own;
    if (answer.alike != own.alike || answer.peers.size() != own.peers.size() ||
        answer.starts.size() != own.starts.size() || answer.groups.size() != own.groups.size())
      return std::nullopt;
    for (size_t i = 0; i < own.peers.size(); ++i) {
      if (theirs.try_emplace(own.peers[i], answer.peers[i]).first->second != answer.peers[i] ||
          ours.try_emplace(answer.peers[i], own.peers[i]).first->second != own.peers[i])
        return std::nullopt;
    }
    for (Shape& start : answer.starts) binding.starts.push_back(std::move(start));
    for (Constant& constant : answer.constants) binding.constants.push_back(std::move(constant));
    for (std::vector<RankId>& group : answer.groups) groups.push_back(std::move(group));
  }
  const auto same = [&](const std::pair<int, int>& starts) {
    return binding.starts[starts.first] == binding.starts[starts.second];
  };
  if (!std::all_of(equal_.begin(), equal_.end(), same) ||
      std::any_of(distinct_.begin(), distinct_.end(), same))
    return std::nullopt;
  for (const RankId peer : of_kind) {
    const auto found = theirs.find(peer);
    PIPESHARD_CHECK(found != theirs.end(), "rank {} never asked for its peer {}", rank_, peer);
    binding.peers.push_back(found->second);
    for (const auto& of : of_peers_) {
      if (of(rank_, peer) != of(rank, found->second)) return std::nullopt;
    }
  }
  for (const std::vector<RankId>& group : groups) binding.groups.push_back(groupIn(set, group));
  return binding;
}

}  // namespace pipeshard
