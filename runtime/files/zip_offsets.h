// Where the members of a zip archive lie: what libzip does not tell, so that stored members can be read in
// place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/files/posix_file.h"

namespace pipeshard {

struct ZipMember {
  std::string name;
  uint64_t offset = 0;            // of its (compressed) bytes in the file
  uint64_t compressed_bytes = 0;  // that lie there
  uint64_t bytes = 0;             // unpacked, as it claims
  bool stored = false;            // as it is: not compressed, not encrypted
};

// In the order of the archive's directory. Untrusted input: every member lies inside the file. Archives of
// more than 4 GiB (zip64) too. Errors: kBadModel naming the path, kMissingInput (it cannot be read).
std::vector<ZipMember> zipMembers(const Descriptor& file, const std::string& path);

}  // namespace pipeshard
