// The programs of all ranks of a step, each thing said once.
//
// Ranks that do the same share one *kind*: the program of the first of them. What is another rank's own is
// its *binding*: whom it talks to, with whom it meets, and where its parts of tensors begin. A thousand ranks
// have a few dozen kinds: one per stage, and few more where parts are unequal or one rank speaks for others.
//
//   four ranks, two stages of two devices that share rows; rank 1 is of rank 0's kind:
//     kind 0      send peer=2 "h@0[0:4]" ...      (rank 0's program)
//     rank 0      peers {2}, groups {0}, starts {[0,0]}
//     rank 1      peers {3}, groups {0}, starts {[4,0]}:  send peer=3 "h@0[4:8]" ...
//
// Subgraphs are the kind's, too. Where one takes its rank's part out of a tensor, say, the constants that
// tell which part it is are the binding's (OwnConstant).
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "ir/graph/graph.h"
#include "ir/program/program.h"

namespace pipeshard {

using KindId = Id<struct KindTag>;  // of a ProgramSet

// A constant of a subgraph that is another one, of equal type and shape, on other ranks of the kind.
struct OwnConstant {
  SubgraphId subgraph;
  std::string value;  // its name in the graph
  size_t slot = 0;    // the entry of RankBinding::constants
  friend bool operator==(const OwnConstant&, const OwnConstant&) = default;
};

struct ProgramKind {
  Program program;  // of the first of its ranks
  // By buffer: the entry of RankBinding::starts that says where its part begins; -1: it has no part, or one
  // that is the same on all ranks of the kind.
  std::vector<int> start_slots;
  std::vector<bool> boxed;  // by buffer: its name ends with the text of its box (boxText)
  // Both say the same of all iterations of a loop of the program's buffers.
  std::vector<OwnConstant> own_constants = {};
};

struct RankBinding {
  KindId kind;
  std::vector<RankId> peers;   // in the place of peersOf(kind's program)
  std::vector<size_t> groups;  // in the place of its groups: entries of ProgramSet::groups
  std::vector<Shape> starts;
  std::vector<Constant> constants = {};
};

struct ProgramSet {
  IdVector<KindId, ProgramKind> kinds;
  std::vector<std::vector<RankId>> groups;  // no two are equal
  IdVector<RankId, RankBinding> ranks;
};

// A set of one kind per program: nothing is shared. `programs` are those of ranks 0, 1, ...
ProgramSet setOf(std::vector<Program> programs);

// "[0:4,8:16]": rows 0 to 3, columns 8 to 15.
std::string boxText(const Shape& start, const Shape& size);

// Where the copies of a rank's weights lie in a plan directory: "weights/0003.safetensors". In a kind's
// program they are those of its first rank; all ranks of a kind have theirs at the same offsets.
std::string copiedWeightsFile(RankId rank);

// The ranks that the program sends to or receives from, in the order in which it first does.
std::vector<RankId> peersOf(const Program& program);

// A rank's program, as it stands alone. The second form: of one kind, where the others are not in memory;
// `groups` are the set's. The binding must fit (verifyBinding in ir/program/program_set_verify.h).
Program instantiate(const ProgramSet& set, RankId rank);
Program instantiate(const ProgramKind& kind, const RankBinding& binding,
                    const std::vector<std::vector<RankId>>& groups, RankId rank);

// The graphs of a kind's subgraphs, by SubgraphId, get a rank's own constants. Error(kInternal) where a graph
// has no such constant.
void bindConstants(const ProgramKind& kind, const RankBinding& binding, std::vector<Graph>& subgraphs);

// How much further into its source than on the kind's first rank a slice begins, by axis; only along its own
// axis may it differ.
std::vector<int64_t> sliceShift(const ProgramKind& kind, const RankBinding& binding,
                                const Instruction& slice);

// Where the rank's part of a tensor of its kind begins, and its size.
Shard boxOf(const ProgramKind& kind, const RankBinding& binding, BufferId buffer);

// Some ranks that stand for all. Ranks that send to each other, directly or through others, belong together;
// where several such collections are alike (the lines of data-parallel replicas, say), one is in the sample.
// What happens on the ranks of one that is left out happens at the same time on those that stand for them: in
// every collective of the sample meets who stands for those that meet.
struct RankSample {
  std::vector<RankId> ranks;       // ascending
  IdVector<RankId, size_t> place;  // by rank: where in `ranks` the one is that stands for it
  std::vector<int64_t> counts;     // by place: for how many
  bool all() const { return ranks.size() == place.size(); }
};
// Each for itself.
RankSample allRanks(const ProgramSet& set);
// `label`: ranks with different labels do not stand for each other. Where it cannot be shown that some stand
// for all: all ranks. The set must have passed verifyBindings
// (ir/program/program_set_verify.h).
RankSample sampleOf(const ProgramSet& set, const std::function<std::string(RankId)>& label = nullptr);

// The programs of a sample as a job of their own: ranks are numbered by place, groups have those that stand
// for their members.
std::vector<Program> samplePrograms(const ProgramSet& set, const RankSample& sample);

}  // namespace pipeshard
