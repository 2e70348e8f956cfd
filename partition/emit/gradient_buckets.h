// Gradients are synchronised while the backward pass goes on: in buckets, each as soon as the last microbatch
// has finished it.
//
// In an emitted program the gradients of a stage are summed over its devices, or resharded, one by one behind
// its last pass. Here those that the last backward pass finishes are gathered in buckets in the order in
// which it finishes them, the pass is cut behind each bucket, and the bucket's collectives are handed to the
// background lane (Instruction::background):
//
//   run backward_weight microbatch=3 ... -> "dw@3", "dv@3"     run backward_weight_part1of2 ... -> "dw@3"
//   accumulate "dw@3" -> "dw"                                  accumulate "dw@3" -> "dw"
//   accumulate "dv@3" -> "dv"                                  all_reduce background "dw" -> "dw"
//   ...                                                        run backward_weight_part2of2 ... -> "dv@3"
//   all_reduce "dw" -> "dw"                                    accumulate "dv@3" -> "dv"
//   all_reduce "dv" -> "dv"                                    ...
//   update ...                                                 all_reduce "dv" -> "dv"
//                                                              update ...
//
// The last bucket stays where it was when the rank has nothing to compute between. All values keep their
// bits: the same kernels compute the same nodes, and sums are in rank order wherever they are taken.
// (Buckets: Li et al., PyTorch Distributed, VLDB 2020, section 3.2.) Internal to partition/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "partition/emit/rank_program.h"

namespace pipeshard {

// A pass is cut into no more parts than this: larger buckets then.
inline constexpr int64_t kMostBuckets = 16;

// Buckets of at least so many bytes of whole tensors (a gradient is in one bucket), so that all devices of a
// stage make the same. To be called before frees are inserted. `separator`: EmissionContext::separator.
void postGradientBuckets(RankProgram& rank, int64_t bucket_bytes, const std::string& separator);

}  // namespace pipeshard
