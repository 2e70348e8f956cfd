// The options that subcommands share, and what they mean for planning.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "ir/base/data_type.h"
#include "partition/stages/partition.h"
#include "runtime/job/job.h"

namespace pipeshard {

// What the user asks for, as given; planTraining (planning.h) gives it its meaning.
struct PlanRequest {
  std::string model_path;
  std::vector<std::string> dimensions;  // "batch=8"
  std::string external_data_root;
  bool allow_missing_weights = false;
  std::string loss;
  std::vector<std::string> train;   // regular expressions: weights that are trained, whatever the model says
  std::vector<std::string> freeze;  // weights that are not
  std::string optimizer = "sgd:lr=0.01";
  std::string precision = "float32";
  std::string batch_dimension;                 // "": found by name and place
  int64_t microbatches = 0;                    // 0: automatic
  int64_t bucket_bytes = kDefaultBucketBytes;  // of gradients; 0: no buckets
  OverlapReceives overlap_receives = OverlapReceives::kBetweenNodes;
  int64_t last_batch = 0;  // rows of the shorter batch that ends an epoch; 0: as `data_path` says
  std::string data_path;   // an .npz file whose length decides it; "": there is none
  std::string cluster = "1x1";
  bool programs = true;  // false: the plan alone, without what ranks run
  std::string profile;   // as chooseProfile takes it (planning/profile_store.h)
  PartitionOptions partition;
  std::string
      submeshes;  // that --stages auto may use, and logical meshes on them (partition/search/search_limits.h)
  std::string logical_meshes;   // "": those of the method
  bool schedule_given = false;  // --schedule, --recompute: else --stages auto searches them
  bool recomputation_given = false;
};

// Declares the options on a subcommand; the request must outlive parsing.
void addModelOptions(CLI::App& command, PlanRequest& request);
void addPlanOptions(CLI::App& command, PlanRequest& request);
// What a stage file looks like, for the end of --help.
const char* stageFileHelp();
// Data, seed, threads and the deadline of a step, for `run` and `validate`.
void addJobOptions(CLI::App& command, JobSpec& job);

// "batch=8" -> {"batch", 8}. Error(kUsage) otherwise.
std::map<std::string, int64_t> parseDimensions(const std::vector<std::string>& texts);
// "16GB", "1.5GiB", "800000" -> bytes; units B, kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB.
// Error(kUsage) otherwise.
int64_t parseBytes(const std::string& option, const std::string& text);
// "float32" or "float64". Error(kUsage) otherwise.
DataType parsePrecision(const std::string& text);

}  // namespace pipeshard
