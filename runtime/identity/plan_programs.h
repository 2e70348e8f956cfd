// The programs of a plan directory: files that belong together. They were verified against each other when
// they were made, and a record beside ranks.json says what they were then; what was changed since is verified
// again before a job starts.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ir/base/ids.h"

namespace pipeshard {

class ProgramFolder;  // runtime/execute/rank_image.h

// The file beside ranks.json.
inline constexpr const char* kProgramsRecordName = "programs.json";

// Of all files that the rank reads (ProgramFolder::files), by names and contents; 16 hexadecimal digits. What
// `programs` has read already is not read again: the digest is of what was loaded. Errors as ProgramFolder.
std::string programsDigest(ProgramFolder& programs, RankId rank);

// Writes the record of what is there now, whose programs have been verified. `digests` are contentHash of
// files in the directory that were just written, by path in it. Errors as writeTextFile.
void recordPrograms(const std::string& plan_directory);
void recordPrograms(ProgramFolder& programs, const std::map<std::string, uint64_t>& digests);

// The digests, by rank, of programs that can run together: as recorded, or verified now, of which `notice`
// is told when they are not those of the record. Errors: kMissingInput (no plan directory, no file),
// kConfiguration (programs that contradict themselves or each other: rank, instruction and why; a file beyond
// what any reader takes, of a subgraph kBadModel). `look` is called before each file that is read, and may
// throw.
IdVector<RankId, std::string> requireSoundPrograms(ProgramFolder& programs,
                                                   const std::function<void(const std::string&)>& notice,
                                                   const std::function<void()>& look = {});

}  // namespace pipeshard
