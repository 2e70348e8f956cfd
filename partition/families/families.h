// The functions behind makeSchedule, one per family, each with its timeline, formulas and source. Internal to
// partition/.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "partition/families/make_schedule.h"
#include "partition/schedules/schedule.h"

namespace pipeshard {

// What a family's function gets: a request whose options are understood.
struct FamilyRequest {
  int ranks = 1;
  int microbatches = 1;
  int chunks = 1;                          // v
  std::map<std::string, int64_t> options;  // all but v
  ScheduleCosts costs;
  IdVector<StageId, int> replicas = {};  // as ScheduleRequest
  std::string name = {};                 // canonical text, for messages

  int64_t option(const std::string& key, int64_t otherwise) const;
};

// Fills everything but the name.
using FamilyFunction = Schedule (*)(const FamilyRequest& request);

struct FamilyEntry {
  ScheduleFamily about;
  FamilyFunction make = nullptr;
  std::vector<std::string> options;  // those it knows
  // The largest v of the option v; 0: any. 1: v is no option, the family has `about.chunks` always.
  int most_chunks = 1;
};
const std::vector<FamilyEntry>& familyEntries();

// S stages on p ranks: stage s on rank s mod p ("looped"), and forth and back ("V": two stages per rank, s
// and 2p-1-s).
RankOfStage loopedPlacement(int ranks, int stages);
RankOfStage vPlacement(int ranks);

// Timelines: a column is a unit of time, a pass of two units stands twice, "." is an idle unit. Where stages
// are chunks they have their numbers (2F0: stage 2), and a column is a pass of one chunk. Symbols as in
// schedule.h; rank r counts from 0; "peak" is the most stashes held from F to the end of B or W.

// partition/families/fill_drain.cc
//
// sequential: a microbatch goes forward through all stages and backward again before the next one starts.
// Plain model parallelism; the reference for the others.
//   p=2, m=2, tF=1, tB=2       rank 0  F0 .  .  .  B0 B0 F1 .  .  .  B1 B1
//                              rank 1  .  F0 B0 B0 .  .  .  F1 B1 B1 .  .
//   makespan m p (tF+tB);  idle/makespan (p-1)/p;  peak activations A on every rank.
Schedule sequentialSchedule(const FamilyRequest& request);
//
// gpipe: all forwards, then all backwards. Huang et al. 2019, "GPipe: Efficient Training of Giant Neural
// Networks using Pipeline Parallelism", section 2.3 (there with backwards in descending order; the makespan
// is the same).
//   p=2, m=3, tF=1, tB=2       rank 0  F0 F1 F2 .  .  .  B0 B0 B1 B1 B2 B2
//                              rank 1  .  F0 F1 F2 B0 B0 B1 B1 B2 B2 .  .
//   makespan (m+p-1)(tF+tB);  idle/makespan (p-1)/(m+p-1), idle/useful (p-1)/m;
//   peak activations m A on every rank.
Schedule gpipeSchedule(const FamilyRequest& request);
//
// looped-bfs (option v, default 2): gpipe over v chunks per rank: all microbatches forward through a chunk
// before the next chunk, then back. Lamy-Poirier 2023, "Breadth-First Pipeline Parallelism", section 4.1
// (torch's LoopedBFS runs backwards in descending order).
//   p=2, m=3, v=2, tF=2, tB=4
//   rank 0  0F0 0F1 0F2 2F0 2F1 2F2 .   .   .   2B0 2B0 2B1 2B1 2B2 2B2 0B0 0B0 0B1 0B1 0B2 0B2
//   rank 1  .   1F0 1F1 1F2 3F0 3F1 3F2 3B0 3B0 3B1 3B1 3B2 3B2 1B0 1B0 1B1 1B1 1B2 1B2 .   .
//   for m >= p: makespan (m + (p-1)/v)(tF+tB), idle/useful (p-1)/(v m);  peak m v chunks = m A on every rank.
Schedule loopedBreadthFirstSchedule(const FamilyRequest& request);

// partition/families/one_forward_one_backward.cc
//
// 1f1b: rank s starts with min(p-1-s, m) forwards, then alternates one forward and one backward, then drains.
// Narayanan et al. 2019, "PipeDream", section 3.2, with a flush at the end of the step as in Fan et al. 2021,
// "DAPPLE", section 3.2, and Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
// Clusters", section 2.2.
//   p=2, m=3, tF=1, tB=2       rank 0  F0 F1 .  .  B0 B0 F2 B1 B1 .  B2 B2
//                              rank 1  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 .  .
//   makespan and idle as gpipe;  peak activations min(p-s, m) A on rank s.
Schedule oneForwardOneBackwardSchedule(const FamilyRequest& request);
//
// eager-1f1b (option extra, default 1): 1f1b with `extra` more microbatches in flight on each rank, but at
// most one per rank behind it: the last rank has none, and with tB >= tF no backward pass waits for a forward
// one. What is in flight hides the time of transfers. Zhuang et al. 2023, "On Optimizing the Communication of
// Model Parallelism", section 4 (2(p-s)-1 in flight on rank s: extra >= p-1); also policy B of Fan et al.
// 2021, "DAPPLE", section 3.2.
//   p=3, m=4, extra=1          rank 0  F0 F1 F2 F3 .  .  .  B0 B0 .  B1 B1 .  B2 B2 .  B3 B3
//   tF=1, tB=2                 rank 1  .  F0 F1 F2 .  B0 B0 F3 B1 B1 .  B2 B2 .  B3 B3 .  .
//                              rank 2  .  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .  .  .  .
//   without transfers, for tB >= tF: makespan and idle as gpipe;
//   peak min(p-s + min(extra, p-1-s), m) A on rank s.
Schedule eagerOneForwardOneBackwardSchedule(const FamilyRequest& request);

// partition/families/interleaved.cc
//
// Microbatches in groups of N (option group): a rank runs a group through its first chunk, then through its
// second, ...; backward passes the same with the chunks from last to first. N microbatches or more have to be
// in flight to keep p ranks busy, so N >= p, and a last group that is smaller has at least p as well, as in
// Megatron-LM (microbatch_group_size_per_vp_stage). Without the option N is the smallest that fits: p where m
// is a multiple of p; torch's m / floor(m/p) where that divides; else the next one (m itself always fits).
// With fewer microbatches than ranks there is one group.
//
// interleaved (options v, default 2; group): 1f1b over the walk above, rank r starts with 2(p-1-r) + (v-1)N
// forwards. Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", section
// 2.2. v=1 is 1f1b.
//   p=2, m=4, v=2, tF=2, tB=4; the first 15 columns, below them the other 12
//   rank 0  0F0 0F1 2F0 2F1 0F2 .   2B0 2B0 0F3 2B1 2B1 2F2 0B0 0B0 2F3
//   rank 1  .   1F0 1F1 3F0 3B0 3B0 3F1 3B1 3B1 1F2 1B0 1B0 1F3 1B1 1B1
//                 rank 0  0B1 0B1 .   2B2 2B2 .   2B3 2B3 0B2 0B2 0B3 0B3
//                 rank 1  3F2 3B2 3B2 3F3 3B3 3B3 1B2 1B2 1B3 1B3 .   .
//   where p divides m: makespan (m + (p-1)/v)(tF+tB);  idle/useful (p-1)/(v m);
//   v >= 2: peak min(2(p-1-r) + (v-1)N + 1, m v) chunks on rank r.
Schedule interleavedSchedule(const FamilyRequest& request);
//
// interleaved-zb (options v, default 2; group): the same walk with split passes: rank r starts with (p-1-r) +
// (v-1)N forwards, W of a microbatch runs after r more I's. torch.distributed.pipelining's
// ScheduleInterleavedZeroBubble (zb-h1 of Qi et al. 2023 over the walk); v=1 is zb-h1.
//   p=2, m=2, v=2              rank 0  0F0 0F1 2F0 2F1 .   2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1
//   tF=tI=tW=2                 rank 1  .   1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1
//   where p divides m: idle (p-1)(tF+tI-tW)/v on every rank for tW <= tI, tF;
//   v >= 2: peak min((v-1)N + p, m v) chunks on every rank.
Schedule interleavedZeroBubbleSchedule(const FamilyRequest& request);
//
// forward-only (option v, default 1): the forward half of the walk, N = p: evaluation.
//   p=2, m=3                   rank 0  F0 F1 F2 .
//                              rank 1  .  F0 F1 F2
//   v=1: makespan (m+p-1) tF;  idle (p-1) tF. Nothing is stashed.
Schedule forwardOnlySchedule(const FamilyRequest& request);

// partition/families/zero_bubble.cc
//
// The hand-made schedules of Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2.
//
// zb-h1: 1f1b with the weight half of a backward pass put off, on rank s until s more input halves have run,
// so that the memory is that of 1f1b's first rank on all ranks and the ramp down is filled.
//   p=3, m=3, tF=tI=tW=1       rank 0  F0 F1 F2 .  .  I0 W0 I1 W1 I2 W2
//                              rank 1  .  F0 F1 .  I0 F2 I1 W0 I2 W1 W2
//                              rank 2  .  .  F0 I0 F1 I1 F2 I2 W0 W1 W2
//   for m >= p and tW <= tI, tF: idle (p-1)(tF+tI-tW) on every rank;  peak min(p, m) A on every rank.
Schedule zeroBubbleH1Schedule(const FamilyRequest& request);
//
// zb-h2: 2(p-s)-1 forwards before the first backward pass of rank s, and weights put off by 2s: with equal
// times a rank is never idle between its first pass and its last one. The ramp p-1 remains where all ranks
// end their step together.
//   p=2, m=3, tF=tI=tW=1       rank 0  F0 F1 F2 I0 W0 I1 W1 I2 W2 .
//                              rank 1  .  F0 I0 F1 I1 F2 I2 W0 W1 W2
//   for m >= 2p-1 and equal times: idle between a rank's first and last pass (p-1)(tF+tI-2tW) = 0;
//   peak min(2p-1, m) A on every rank.
Schedule zeroBubbleH2Schedule(const FamilyRequest& request);

// partition/families/dual_pipe_v.cc
//
// dual-pipe-v: V placement, two stages per rank; a forward pass of one is paired with a backward pass of the
// other (overlaps_next), so that a device can hide the communication of each under the other. DeepSeek-AI
// 2024, "DeepSeek-V3 Technical Report", section 3.2.1, cut in half as in "DualPipeV" (Sea AI Lab; DeepSeek's
// DualPipe repository); orders byte by byte those of torch's ScheduleDualPipeV. m >= 2p.
//   p=2, m=4, the orders, with pairs in ()
//   rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 (0F3 3B1) (3F2 0B0) 3B2 (3F3 0B1) 3B3 0I2 0W2 0I3 0W3
//   rank 1  1F0 2F0 1F1 2F1 1F2 2B0 (2F2 1B0) (1F3 2B1) (2F3 1B1) 2B2 1B2 2I3 1I3 2W3 1W3
//   with tF, tI, tW of a *chunk*, all equal, and tP the time of a pair, which starts when both of its passes
//   can and ends them together: idle (p-1)(tP + tB - 3tW);  peak 2p+1 chunks on every rank.
//   Pairs that run one pass after the other (tP = tF+tB) are what published tables count; a pass that need
//   not wait for its partner's inputs idles less.
Schedule dualPipeVSchedule(const FamilyRequest& request);

// partition/families/asynchronous.cc
//
// Asynchronous schedules. `microbatches` are those of a window of several updates, in which the pipeline is
// never empty; it drains at the window's end. U is an update of the stage's weights; "reads" is the version
// of the weights that F and B of microbatch 0, 1, ... use. Between the ends of a window nobody idles:
// makespan m (tF+tB) + (p-1)(tF+tB), whatever the number of updates. Peak activations as 1f1b.
//
// pipedream: 1f1b with an update after every backward pass, and weight stashing: B reads the version that F
// has read. Narayanan et al. 2019, "PipeDream: Generalized Pipeline Parallelism for DNN Training", section
// 3.3. Microbatch i on stage s reads version max(0, i - (p-1-s)); at most min(p-s, m) versions live on it.
//   p=2, m=4        rank 0  F0 F1 .  B0 U F2 B1 U F3 B2 U .  B3 U    reads 0 0 1 2
//                   rank 1  .  F0 B0 U F1 B1 U F2 B2 U F3 B3 U       reads 0 1 2 3
// With replicas[s] = R replicas of stage s (option rows=0) microbatches are taken in turn (section 3.2 and
// 3.3, and PipeDream's runtime): the warm-up of a replica is d = floor((devices - 1 - devices of earlier
// stages) / R) microbatches, an update of the stage follows one backward pass of each replica, and microbatch
// i reads version max(0, floor(i/R) - d); d + 1 versions live. m is a multiple of every R.
//   p=2, m=6, replicas 3, 1     rank 0, replica 0  F0 F3 B0 U B3 U     reads 0 0 0 0 0 0
//                               rank 0, replica 1  F1 F4 B1 U B4 U
//                               rank 0, replica 2  F2 F5 B2 U B5 U
//                               rank 1  F0 B0 U F1 B1 U F2 B2 U F3 B3 U F4 B4 U F5 B5 U     reads 0 1 2 3 4 5
Schedule pipeDreamSchedule(const FamilyRequest& request);
//
// pipedream-vertical: the same order with vertical sync (same section): every stage reads the version that
// stage 0 has read, max(0, i - (p-1)); at most min(p, m) versions live on each stage. With replicas: stage s
// reads floor(v R_0 / R_s), where v is what microbatch i reads on stage 0.
Schedule pipeDreamVerticalSchedule(const FamilyRequest& request);
//
// pipedream-2bw: double-buffered weight updates. Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel
// DNN Training", section 3.1. An update takes option m microbatches (default p, at least p; the window is a
// multiple); those of batch t read version max(0, t-1); at most two versions live on each stage. With
// replicas, which take microbatches in turn, m is at least R_0 ceil(devices / R_0).
//   p=2, m=4, option m=2    rank 0  F0 F1 .  B0 F2 B1 U F3 B2 .  B3 U     reads 0 0 0 0
//                           rank 1  .  F0 B0 F1 B1 U F2 B2 F3 B3 U        reads 0 0 0 0
Schedule pipeDreamTwoBufferSchedule(const FamilyRequest& request);

// partition/families/zero_bubble_automatic.cc
//
// zb-1p, zb-2p: split backward passes, orders found for the request's times and memory by a counted search
// over greedy rules (automatic_trial.h). Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 3.1. No
// rank holds more than option `limit` times what a microbatch's F adds: by default p (zb-1p) or 2p (zb-2p).
//   zb-1p, p=2, m=3            rank 0  F0 F1 .  I0 W0 F2 I1 W1 I2 W2
//                              rank 1  .  F0 I0 F1 I1 W0 F2 I2 W1 W2
//   zb-2p, p=2, m=3            rank 0  F0 F1 F2 I0 W0 I1 W1 I2 W2 .
//                              rank 1  .  F0 I0 F1 I1 F2 I2 W0 W1 W2
//   Equal times, m >= p (zb-2p: 2p): zb-1p as zb-h1, idle (p-1)(tF+tI-tW) on every rank; zb-2p has no idle
//   time between a rank's first start and its last end, idle (p-1) tF beside it.
//   Other times: at least automaticSpanBound; the tests hold it to the paper's table 5.
//   Peak activations min(limit, m) A on every rank at most.
Schedule zeroBubbleOneSchedule(const FamilyRequest& request);
Schedule zeroBubbleTwoSchedule(const FamilyRequest& request);

// partition/families/v_schedules.cc
//
// Two stages per rank, r and 2p-1-r: microbatches go down the ranks and up again, so a rank's second stage
// frees early what its first one holds long, and all ranks hold the same. In the timelines capital letters
// are of stage r, small ones of stage 2p-1-r, each half a unit.
//
// zbv: split backward passes. Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 6.
//   p=2, m=3       rank 0  F0 F1 F2 f0 i0 w0 f1 i1 w1 I0 W0 f2 i2 w2 I1 W1 I2 W2 .
//                  rank 1  .  F0 f0 F1 f1 i0 w0 F2 I0 W0 f2 i1 w1 I1 i2 I2 W1 w2 W2
//   Equal times, m >= 2p-1: makespan m (tF+tB) + (p-1) tF/2, no idle time between a rank's first start and
//   its last end.
//   Peak activations p A on every rank.
Schedule zbvSchedule(const FamilyRequest& request);
//
// 1f1b-v: whole backward passes. Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", appendix.
//   p=2, m=2       rank 0  F0 F1 .  f0 b0 b0 f1 b1 b1 .  B0 B0 .  .  B1 B1
//                  rank 1  .  F0 f0 F1 f1 .  b0 b0 B0 B0 b1 b1 B1 B1 .  .
//   tI=tW=tF, m >= p: makespan at most m (tF+tB) + 5 (p-1) tF/2, and exactly that where p = 1 modulo 3.
//   Peak activations floor((2p+3)/3) A on every rank: 2/3 of 1f1b's in the limit.
Schedule oneForwardOneBackwardVSchedule(const FamilyRequest& request);

// partition/families/v_automatic.cc
//
// v-half, v-min: split backward passes, orders found for the request's times and memory, shortest makespan
// first. Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", section 4, of which the memory is;
// the orders are searched anew for every request. No rank holds more than option `limit` times what a
// microbatch's F adds to its two stages: by default floor(p/2)+1 (v-half), floor((p+4)/3) (v-min): 1/2 and
// 1/3 of 1f1b's in the limit.
//   v-min, p=3, m=2  (v-half, too: 2 A)
//                  rank 0  F0 F1 .  .  .  f0 i0 f1 i1 w0 w1 I0 W0 I1 W1 .
//                  rank 1  .  F0 F1 .  f0 .  f1 i0 w0 i1 I0 w1 I1 W0 W1 .
//                  rank 2  .  .  F0 f0 F1 f1 .  .  i0 I0 i1 I1 w0 W0 w1 W1
//   Equal times at p=4, m=8: makespan 26.5 and 29.5 (zbv 25.5), peaks 3 A and 2 A.
//   Peak activations min(limit, m) A at most.
Schedule vHalfSchedule(const FamilyRequest& request);
Schedule vMinSchedule(const FamilyRequest& request);

}  // namespace pipeshard
