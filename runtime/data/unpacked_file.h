// Arrays that a file has packed, unpacked once for all processes of a host that read them. They go into a
// file without a name, which whoever starts the processes makes and hands on
// (DataDescription::unpacked_descriptor); who needs an array first unpacks it while the others wait. Nothing
// is left behind, however they end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/data_description.h"
#include "runtime/files/posix_file.h"

namespace pipeshard {

// An empty one, in TMPDIR or /tmp, that child processes inherit. Error(kDiskFull) when it cannot be made.
Descriptor makeUnpackedFile();
// The same where these data may need it; else not valid.
Descriptor makeUnpackedFileFor(const DataDescription& data);

class UnpackedFile {
 public:
  // `places`: how many bytes each array needs at most; the same in every process. `descriptor`: inherited
  // (made by makeUnpackedFile); -1: an own file, shared with nobody.
  UnpackedFile(int descriptor, const std::vector<uint64_t>& places);

  // Where the array of a place begins in file().
  uint64_t offset(size_t place) const { return offsets_.at(place); }
  const std::shared_ptr<const Descriptor>& file() const { return file_; }
  // Has `unpack` write `bytes` bytes there, unless this has been done; waits while another process does it.
  // `what` names the array in messages. Errors: kDiskFull (no space), and what `unpack` throws; then it is as
  // if nothing had been done.
  void ensure(size_t place, uint64_t bytes, const std::string& what,
              const std::function<void(std::span<std::byte>)>& unpack);

 private:
  std::shared_ptr<const Descriptor> file_;
  std::vector<uint64_t> offsets_;
};

}  // namespace pipeshard
