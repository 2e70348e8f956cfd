#include "runtime/identity/identity_message.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"

namespace pipeshard {

nlohmann::json identityJson(const JobIdentity& identity) {
  nlohmann::json parts = nlohmann::json::array();
  for (const IdentityPart& part : identity) parts.push_back({part.what, part.path, part.digest});
  return parts;
}

JobIdentity identityFromJson(const nlohmann::json& json) {
  JobIdentity identity;
  try {
    for (const nlohmann::json& part : json)
      identity.push_back(
          {part.at(0).get<std::string>(), part.at(1).get<std::string>(), part.at(2).get<std::string>()});
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kVersionMismatch, "it does not say which files it reads: {}", error.what());
  }
  return identity;
}

std::string IdentityComparison::describe(const std::string& who, const IdentityPart& part, const Said& said) {
  return fmt::format(
      "the {}{} {} {} on {} (digest {}) than on {} (digest {}); all hosts must read the same: put it in a "
      "folder that they share, or copy it again",
      part.what, part.what == "plan" || part.what == "program" ? " file" : "", part.path,
      part.what.ends_with(kFolderSuffix) ? "has other files" : "is another file", who, part.digest, said.who,
      said.digest);
}

std::optional<std::string> IdentityComparison::add(const std::string& who, const JobIdentity& identity,
                                                   std::string* other) {
  for (const IdentityPart& part : identity) {
    if (part.digest.empty()) continue;
    const auto [said, is_first] = first_.try_emplace(part.path, Said{who, part.digest});
    if (is_first || said->second.digest == part.digest) continue;
    if (other != nullptr) *other = said->second.who;
    return describe(who, part, said->second);
  }
  return std::nullopt;
}

std::optional<std::string> IdentityComparison::difference(const std::string& who,
                                                          const JobIdentity& identity) const {
  for (const IdentityPart& part : identity) {
    const auto said = first_.find(part.path);
    if (said == first_.end() || said->second.digest == part.digest || part.what == "checkpoint") continue;
    if (!part.digest.empty()) return describe(who, part, said->second);
    if (part.what == "program") continue;
    return fmt::format(
        "the {} {} is on {}, and not on {}; put it in a folder that all hosts share, or copy it", part.what,
        part.path, said->second.who, who);
  }
  return std::nullopt;
}

}  // namespace pipeshard
