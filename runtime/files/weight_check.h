// Whether the files that weights come from are still what they were when the plan was made. Programs refer to
// weights by file, offset and length; a file that was written again in the meantime would be read as if
// nothing had happened.
//
// A file is known by its size and by a hash: of all its bytes up to 64 MiB, of 1024 blocks of 4 KiB spread
// evenly from the first to the last when it is larger. So a copy (whose time stamps differ) is the same file,
// a file of 100 GB costs 4 MiB of reading, and a training run that saved other weights in the same place is
// noticed. A change of a few bytes of a larger file, outside of the blocks, is not.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph/weight_files.h"
#include "ir/program/program.h"

namespace pipeshard {

// The file beside plan.json in a plan directory.
inline constexpr const char* kWeightFilesName = "weights.json";

// Every file that one of the programs reads, ascending by path. A file that does not exist has no content.
// Relative paths (copies of a rank's own) begin at `directory`. Errors: kMissingInput for a file that cannot
// be read.
std::vector<WeightFile> recordWeightFiles(const std::vector<const Program*>& programs,
                                          const std::string& directory = "");

// What to do, for people.
struct WeightRemedies {
  std::string_view of_missing = "plan again with the model where it is now";  // "put it back, or ..."
  std::string_view of_changed = "plan again";
};

// Compares with what is there now. Errors, naming the file: kMissingInput (it does not exist, cannot be read,
// or was not there when the plan was made and is too short), kConfiguration (changed since planning).
void checkWeightFiles(const std::vector<WeightFile>& files, const std::string& directory = "",
                      const WeightRemedies& remedies = {});

// What a plan directory, or a checkpoint, records; of one without the file (made by hand): nothing.
std::vector<WeightFile> readWeightFiles(const std::string& plan_directory);
// checkWeightFiles of that. `notice` hears of files that are compared by samples alone and were written after
// the record: a change between the samples would not be seen.
void checkWeightFiles(const std::string& plan_directory,
                      const std::function<void(const std::string&)>& notice = {});

}  // namespace pipeshard
