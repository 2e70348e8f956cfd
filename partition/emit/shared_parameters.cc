#include "partition/emit/shared_parameters.h"

#include <algorithm>
#include <vector>

namespace pipeshard {
namespace {

class Sharing {
 public:
  Sharing(const EmissionContext& context, RankId rank, RankBuilder& builder, RankTransfers& transfers)
      : context_(context),
        group_(context.layout.place(rank).group),
        builder_(builder),
        transfers_(transfers) {}

  void run(const std::function<bool(size_t)>& changes) {
    for (size_t p = 0; p < parameters().size(); ++p) {
      if (!changes(p)) continue;
      if (ownerOf(p) == group_) {
        offer(p);
      } else if (reads(group_, p)) {
        wanted_.push_back(p);
      }
    }
    makeCopies();
    for (const Offer& offer : offers_) transfers_.sendTo(offer.group, bufferOf(offer.value), offer.value);
    for (const size_t p : wanted_) {
      const NodeId copy = travellingCopy(ownerOf(p), group_, p);
      const ValueId value = copy.valid() ? outputOf(copy) : parameters()[p].value;
      const BufferId buffer = copy.valid() ? builder_.receivedCopy(value) : bufferOf(value);
      transfers_.receiveFrom(ownerOf(p), buffer, value);
    }
  }

 private:
  struct Offer {
    PipelineRankId group;
    ValueId value;  // the parameter, or a copy
  };

  const std::vector<Parameter>& parameters() const { return context_.family.base().parameters; }
  const Graph& graph() const { return context_.family.base().graph; }
  PipelineRankId ownerOf(size_t p) const { return context_.layout.group(context_.cut.owners[p]); }
  bool reads(PipelineRankId group, size_t p) const {
    return context_.cut.groupReads(group, parameters()[p].value);
  }
  ValueId outputOf(NodeId node) const { return graph().node(node).outputs[0]; }
  BufferId bufferOf(ValueId value) { return builder_.bufferOf(value, kWholeStep); }

  void offer(size_t p) {
    for (const PipelineRankId group : context_.layout.groupIds()) {
      if (group == group_ || !reads(group, p)) continue;
      const NodeId copy = travellingCopy(group_, group, p);
      offers_.push_back({group, copy.valid() ? outputOf(copy) : parameters()[p].value});
      if (copy.valid()) copies_.push_back(copy);
    }
  }

  // With those that the rank's own passes read, but for what another group owns: it has not arrived yet.
  void makeCopies() {
    if (copies_.empty()) return;
    const StageId stage = context_.layout.firstStage(group_);
    const Piece& own = context_.cut.copies[stage];
    Piece all;
    for (size_t i = 0; i < own.nodes.size(); ++i) {
      const ValuePlace& weight = context_.cut.place(graph().node(own.nodes[i]).inputs[0]);
      if (weight.role == ValueRole::kParameter && ownerOf(weight.index) != group_) continue;
      all.nodes.push_back(own.nodes[i]);
      all.outputs.push_back(own.outputs[i]);
    }
    for (const NodeId copy : copies_) {
      all.nodes.push_back(copy);
      all.outputs.push_back(outputOf(copy));
    }
    builder_.makeCopies(stage, all, kWholeStep);
  }

  bool isChosen(PipelineRankId group) const {
    return context_.shardings.isChosen(context_.layout.firstStage(group));
  }

  // The node that makes what goes from the owner in place of the parameter; invalid: the parameter itself.
  NodeId travellingCopy(PipelineRankId owner, PipelineRankId reader, size_t p) const {
    if (context_.versions.asynchronous() || isChosen(owner) || isChosen(reader)) return {};
    const ValueId weight = parameters()[p].value;
    NodeId found;
    for (const StageId s : context_.cut.stages.ids()) {
      if (context_.cut.groups[s] != reader) continue;
      if (readsInPasses(context_.cut.stages[s], weight)) return {};
      for (const NodeId copy : context_.cut.copies[s].nodes) {
        if (graph().node(copy).inputs[0] != weight) continue;
        const bool other =
            found.valid() && graph().dataType(outputOf(copy)) != graph().dataType(outputOf(found));
        if (other) return {};
        found = copy;
      }
    }
    return found;
  }
  static bool readsInPasses(const StagePieces& pieces, ValueId weight) {
    return std::any_of(
        pieces.begin(), pieces.begin() + static_cast<size_t>(Phase::kUpdate), [&](const Piece& piece) {
          return std::find(piece.inputs.begin(), piece.inputs.end(), weight) != piece.inputs.end();
        });
  }

  const EmissionContext& context_;
  const PipelineRankId group_;
  RankBuilder& builder_;
  RankTransfers& transfers_;
  std::vector<Offer> offers_;   // to other groups, in the order of parameters
  std::vector<NodeId> copies_;  // that are among them
  std::vector<size_t> wanted_;  // of others
};

}  // namespace

void shareParameters(const EmissionContext& context, RankId rank, const std::function<bool(size_t)>& changes,
                     RankBuilder& builder, RankTransfers& transfers) {
  Sharing(context, rank, builder, transfers).run(changes);
}

}  // namespace pipeshard
