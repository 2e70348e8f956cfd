// weights.json of a plan directory: which files the programs read their weights from, and what these files
// were when the plan was made. Plain data; runtime/files/weight_check.h makes it and compares it with what
// lies on disk.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

inline constexpr int kWeightFilesVersion = 1;

struct WeightFile {
  std::string path;           // as in the programs: absolute, or of a copy relative to the plan directory
  uint64_t needed_bytes = 0;  // the end of the last weight that some program reads
  // When the plan was made; nothing when the file did not exist then (`plan --allow-missing-weights`).
  struct Content {
    uint64_t bytes = 0;
    uint64_t sample = 0;  // hash of the content, or of blocks spread over it when the file is large
    friend bool operator==(const Content&, const Content&) = default;
  };
  std::optional<Content> content;
  friend bool operator==(const WeightFile&, const WeightFile&) = default;
};

// Where a program finds the content of an initializer: a weight's file by its absolute path.
Initializer absoluteSource(const Graph& graph, ValueId initializer);

std::string weightFilesToJson(const std::vector<WeightFile>& files);
// Throws Error(kConfiguration) naming the field; Error(kVersionMismatch).
std::vector<WeightFile> weightFilesFromJson(std::string_view text);

}  // namespace pipeshard
