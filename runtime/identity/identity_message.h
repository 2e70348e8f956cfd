// What a host says of the files that decide a job's numbers, and where two hosts differ.
//
//   IdentityComparison comparison;
//   comparison.add("the coordinator (host a)", ours);
//   comparison.add("node 1 (host b)", theirs);  // "the weights m.onnx.data differ: 12ab... on ..."
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace pipeshard {

inline constexpr std::string_view kFolderSuffix = " folder";

struct IdentityPart {
  // "plan", "program", "weights", "data", "held-out data", "adopted values", "checkpoint"; of a folder, for
  // which files it has, with kFolderSuffix
  std::string what;
  std::string path;    // under which every host reads it
  std::string digest;  // 16 hexadecimal digits; "": this host has no such file
  friend bool operator==(const IdentityPart&, const IdentityPart&) = default;
};
using JobIdentity = std::vector<IdentityPart>;  // in order of what, path

// As the body of a control message, and back. Error(kVersionMismatch) for what is none.
nlohmann::json identityJson(const JobIdentity& identity);
JobIdentity identityFromJson(const nlohmann::json& json);

// Finds the first file of which two have different contents.
class IdentityComparison {
 public:
  // `who`: "node 1 (host b)". What differs from what others have said before, with both digests and both
  // names; nothing when nothing does. `other`: then, who has said otherwise.
  std::optional<std::string> add(const std::string& who, const JobIdentity& identity,
                                 std::string* other = nullptr);
  // The same of a host that takes no part by now, with what it lacks of what others have (but for programs,
  // which each host can make); without the checkpoint, as it would go on from another one. Not remembered.
  std::optional<std::string> difference(const std::string& who, const JobIdentity& identity) const;

 private:
  struct Said {
    std::string who;
    std::string digest;
  };
  static std::string describe(const std::string& who, const IdentityPart& part, const Said& said);

  std::map<std::string, Said> first_;  // by path
};

}  // namespace pipeshard
