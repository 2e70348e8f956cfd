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

std::optional<std::string> IdentityComparison::add(const std::string& who, const JobIdentity& identity) {
  for (const IdentityPart& part : identity) {
    if (part.digest.empty()) continue;
    const auto [said, is_first] = first_.try_emplace(part.path, Said{who, part.digest});
    if (is_first || said->second.digest == part.digest) continue;
    return fmt::format(
        "the {}{} {} {} on {} (digest {}) than on {} (digest {}); all hosts must read the same: put it in a "
        "folder that they share, or copy it again",
        part.what, part.what == "plan" || part.what == "program" ? " file" : "", part.path,
        part.what.ends_with(kFolderSuffix) ? "has other files" : "is another file", who, part.digest,
        said->second.who, said->second.digest);
  }
  return std::nullopt;
}

}  // namespace pipeshard
