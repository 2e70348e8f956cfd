// Files of text that somebody else has made, line by line, in bounded memory.
//
//   TextLines lines("steps.jsonl", "a log");
//   for (std::string line; lines.next(line);) use(line, lines.number());
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/base/plain_file.h"

namespace pipeshard {

class TextLines {
 public:
  struct Limits {
    uint64_t most_line_bytes = uint64_t{64} << 20;
    uint64_t most_bytes = uint64_t{32} << 30;  // in all
  };

  // `what` names its kind in messages. Never waits. Errors: kMissingInput (it cannot be opened, is a folder,
  // a named pipe, a device), kBadModel (it is larger than a file of its kind may be).
  TextLines(std::string path, std::string_view what);
  TextLines(std::string path, std::string_view what, const Limits& limits);

  // The next line, without the line feed; false behind the last. Errors: kBadModel, naming the line, for one
  // that is longer than a line may be; kMissingInput when the file cannot be read.
  bool next(std::string& line);
  const std::string& path() const { return path_; }
  // Of the line that next() gave, from 1 on.
  int64_t number() const { return number_; }
  // It had a line feed: the last one may have none, as one that is being written.
  bool isWhole() const { return whole_; }

 private:
  bool fill();
  void refuseMore(uint64_t bytes) const;

  std::string path_;
  std::string what_;
  Limits limits_;
  uint64_t bytes_ = 0;  // of the file when it was opened, then those that were read
  OpenFile file_;
  std::vector<char> block_;
  std::string_view rest_;  // of the block
  int64_t number_ = 0;
  bool whole_ = false;
};

}  // namespace pipeshard
