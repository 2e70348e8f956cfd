// Event files, as TensorBoard and other readers take them (`run --log DIR`).
//
// A file is a sequence of records, each framed so (TFRecord):
//   uint64  length of the content        little-endian
//   uint32  masked CRC-32C of these 8 bytes
//   content
//   uint32  masked CRC-32C of the content
// where masked(c) = rotate right(c, 15) + 0xa282ead8. The content is an Event in protobuf's wire format, with
// the fields that are needed here:
//   Event    1: double wall_time (seconds)   2: int64 step   3: string file_version ("brain.Event:2", first)
//            5: Summary summary              7: SessionLog session_log
//   Summary  1: repeated Value               Value  1: string tag   2: float simple_value
//   SessionLog  1: status; 1 is START
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pipeshard {

// CRC-32C (Castagnoli), and as a record has it.
uint32_t checksum32c(std::string_view bytes);
uint32_t maskedChecksum(std::string_view bytes);

class EventFile {
 public:
  // A new file in `directory` whose name says when, where and by which process it was made. Errors as
  // failToWrite.
  explicit EventFile(const std::string& directory);

  using Scalars = std::vector<std::pair<std::string_view, double>>;
  // `time`: seconds since 1970. A number that float32 does not have becomes infinite.
  void write(double time, int64_t step, const Scalars& scalars);
  // Readers forget what any file of the folder has from `step` on: it is done again.
  void beginAgainAt(double time, int64_t step);
  void flush();

  const std::string& path() const { return path_; }

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void record(const std::string& content);

  std::string path_;
  std::unique_ptr<std::FILE, Closer> file_;
};

}  // namespace pipeshard
