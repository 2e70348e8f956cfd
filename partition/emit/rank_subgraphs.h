// The subgraphs of one rank: one for each piece that it runs and each size that its microbatches have, made
// when it is first run. Internal to partition/emit/.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ir/program/program.h"
#include "partition/cut/cut_training.h"
#include "partition/emit/emission_context.h"
#include "partition/emit/rank_questions.h"
#include "sharding/specs/resharding_emit.h"
#include "sharding/spmd/spmd_rewrite.h"

namespace pipeshard {

// The rank's entries in Program::groups.
struct RankGroups {
  GroupId replicas;      // that take turns; invalid: there are none
  MeshGroups mesh;       // of a sharded stage
  bool in_order = true;  // their ranks are in the order of the mesh; else they can only add up
};
// A stage whose parts are gathered lists its devices in ascending order.
[[noreturn]] void refuseOrder(StageId stage);

// What marks a constant of a graph, in its metadata, until the rank's program is complete: the key of the
// question that says what it is on other ranks. So it is found again when graphs are cut.
inline constexpr const char* kOwnConstantMark = "pipeshard.own_constant";

class RankSubgraphs {
 public:
  // `questions` is the rank's.
  RankSubgraphs(const EmissionContext& context, RankId rank, RankGroups groups, RankQuestions& questions);

  // That of a stage's phase for a microbatch of so many rows; `part` as Cut::piece.
  SubgraphId of(StageId stage, Phase phase, PassForm form, size_t part, int64_t rows);
  // That makes these copies of weights, a part of Cut::copies.
  SubgraphId ofCopies(StageId stage, const Piece& piece);
  // Any other.
  SubgraphId add(Subgraph description, Graph graph);
  // The constants of a device's graph become the rank's own, and are marked; `mesh` is that of the devices.
  void makeOwn(const std::vector<DeviceConstant>& constants, const LogicalMesh& mesh, Graph& graph);

  std::vector<Subgraph> takeDescriptions() && { return std::move(descriptions_); }
  std::vector<Graph> takeGraphs() && { return std::move(graphs_); }

 private:
  bool isSharded() const { return context_.shardings.isSharded(context_.layout.firstStage(place_.group)); }
  // Of a piece of the stage's; `made` has its name and phase.
  SubgraphId make(StageId stage, const Piece& piece, int64_t rows, Subgraph made);
  std::string nameOf(StageId stage, Phase phase, PassForm form, size_t part, int64_t rows) const;
  // In a stage whose updates take several minibatches: its steps count updates, not minibatches.
  void countUpdates(StageId stage, Graph& update) const;

  const EmissionContext& context_;
  const TrainingGraph& training_;  // the family's base
  const RankId rank_;
  const Place& place_;
  const RankGroups groups_;
  RankQuestions& questions_;
  std::vector<Subgraph> descriptions_;
  std::vector<Graph> graphs_;
  std::map<std::tuple<StageId, Phase, PassForm, size_t, int64_t>, SubgraphId> subgraph_of_;
  std::map<std::pair<StageId, std::vector<NodeId>>, SubgraphId> copies_of_;
};

}  // namespace pipeshard
