// What decides the numbers that a job computes, as digests of the files that its processes read.
//
//   const JobIdentity ours = readJobIdentity({plan, all_ranks, data, checkpoint});  // the coordinator's
//
// Every host reads the files that its own ranks need; what two of them have read must be equal.
#pragma once

#include <string>
#include <vector>

#include "ir/base/ids.h"
#include "runtime/identity/file_digest.h"
#include "runtime/identity/identity_message.h"

namespace pipeshard {

struct IdentityRequest {
  std::string plan_directory;
  std::vector<RankId> ranks;    // whose programs and weights are read
  std::string data;             // a file or folder; "": synthetic
  std::string checkpoint;       // the folder of the checkpoint that the job goes on from; "": it begins anew
  std::string held_out = {};    // likewise data that are evaluated; "": none
  std::string evaluation = {};  // the folder of the ranks' programs that evaluate them; "": none do
  std::string adopted = {};     // the folder of the dumps that steps begin with; "": none do
  // This host makes programs, and plans for fewer devices, when its ranks need them: of those that are not
  // made yet, and of the weights that they name, nothing is read. What they are made of is to be there.
  bool may_be_unmade = false;
};

// Weights are read whole (file_digest.h), data by samples. A file that is not there, or cannot be read, has
// no digest here: whoever needs it says so better. Of a folder of data, which files are in it, too.
// `progress` may be null; Error(kRequeue) when it says stop. Errors: kMissingInput (no plan directory, or
// none of its programs), kConfiguration (its files are damaged).
JobIdentity readJobIdentity(const IdentityRequest& request, ReadingProgress* progress = nullptr);

}  // namespace pipeshard
