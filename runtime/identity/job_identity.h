// What decides the numbers that a job computes, as digests of the files that its processes read.
//
//   const JobIdentity ours = readJobIdentity({plan, all_ranks, data, checkpoint});      // the coordinator's
//   IdentityComparison comparison;
//   comparison.add("the coordinator (host a)", ours);
//   comparison.add("node 1 (host b)", theirs);          // "the weights m.onnx.data differ: 12ab... on ..."
//
// Every host reads the files that its own ranks need; what two of them have read must be equal.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ir/base/ids.h"
#include "runtime/identity/file_digest.h"

namespace pipeshard {

struct IdentityRequest {
  std::string plan_directory;
  std::vector<RankId> ranks;  // whose programs and weights are read
  std::string data;           // a file or folder; "": synthetic
  std::string checkpoint;     // the folder of the checkpoint that the job goes on from; "": it begins anew
};

struct IdentityPart {
  std::string what;    // "plan", "program", "weights", "data", "checkpoint"
  std::string path;    // under which every host reads it
  std::string digest;  // 16 hexadecimal digits; "": this host has no such file
  friend bool operator==(const IdentityPart&, const IdentityPart&) = default;
};
using JobIdentity = std::vector<IdentityPart>;  // in order of what, path

// Weights are read whole (file_digest.h), data by samples. A file that is not there, or cannot be read, has
// no digest here: whoever needs it says so better. `progress` may be null; Error(kRequeue) when it says stop.
// Errors: kMissingInput (no plan directory), kConfiguration (its files are damaged).
JobIdentity readJobIdentity(const IdentityRequest& request, ReadingProgress* progress = nullptr);

// As the body of a control message, and back. Error(kVersionMismatch) for what is none.
nlohmann::json identityJson(const JobIdentity& identity);
JobIdentity identityFromJson(const nlohmann::json& json);

// Finds the first file of which two have different contents.
class IdentityComparison {
 public:
  // `who`: "node 1 (host b)". What differs from what others have said before, with both digests and both
  // names; nothing when nothing does.
  std::optional<std::string> add(const std::string& who, const JobIdentity& identity);

 private:
  struct Said {
    std::string who;
    std::string digest;
  };
  std::map<std::string, Said> first_;  // by path
};

}  // namespace pipeshard
