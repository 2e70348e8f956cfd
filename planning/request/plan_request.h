// What somebody wants planned, as values: the command parses its options into this
// (tools/options/plan_options.h), and other callers fill it directly.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/plan/given_options.h"
#include "ir/plan/loss_spec.h"
#include "partition/search/search_limits.h"
#include "partition/stages/partition_options.h"
#include "planning/request/profile_store.h"
#include "runtime/data/data_description.h"

namespace pipeshard {

struct PlanRequest {
  std::string model_path;
  std::map<std::string, int64_t> dimensions;  // symbolic dimensions by name, at the full batch
  // Lengths of sequences that there are to be programs for, too: shorter sizes of that one of `dimensions`,
  // descending. "": none.
  std::string length_dimension;
  std::vector<int64_t> shorter_lengths;
  std::string external_data_root;  // a second folder that external data may lie in
  bool allow_missing_weights = false;
  bool trust_model = false;  // else a file of strangers is looked at in a process of its own (isOfStrangers)
  LossSpec loss;
  GivenOptions given = defaultOptions();
  bool optimizer_given = false;  // else a file that holds one decides
  bool any_sizes = false;        // dimensions without a size get one: to look, not to run
  std::string batch_dimension;   // "": found by name and place
  int64_t microbatches = 0;      // 0: automatic
  // Why the batch cannot be cut, or not into parts of fewer than `fewest_rows`: where that is 1, one
  // microbatch has all of it, and a batch that is chosen has several rows. nullopt: it can, as far as is
  // known.
  std::optional<std::string> uncut;
  int64_t fewest_rows = 1;  // of a microbatch where their number or the batch is chosen; more than 1: `uncut`
  int64_t last_batch = 0;   // rows of the shorter batch that ends an epoch; 0: as `data` says
  DataDescription data;     // of `run`; their length decides it
  // What `given.precision` makes of the graph, with all its floating-point types float64: the same nodes, so
  // that a plan fits them (validate: rounding told from a wrong cut).
  bool in_float64 = false;
  bool copy_weights = false;  // the plan directory gets every rank's parts of the weights
  bool programs = true;       // false: the plan alone, without what ranks run
  // What operators and links were measured to take (chooseProfile), and what people should know about that.
  std::optional<StoredProfile> profile;
  std::string profile_note;
  PartitionOptions partition;
  // That a search (PartitionOptions::stages) may use (partition/search/search_limits.h).
  std::optional<SubmeshLimit> submeshes;           // nothing: as many as the cluster's size allows
  std::optional<LogicalMeshLimit> logical_meshes;  // nothing: those of the method
  bool recomputation_given = false;                // else a search decides about it
  // So many batches make one update: batch and microbatches are that many times what is said or chosen.
  int64_t accumulate = 1;
};

}  // namespace pipeshard
