// The program of one rank while it grows: buffers by name, and instructions. Internal to partition/emit/.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/program/program.h"
#include "partition/cut/cut_training.h"
#include "partition/emit/emission_context.h"
#include "partition/emit/rank_program.h"
#include "partition/emit/rank_questions.h"
#include "partition/emit/rank_subgraphs.h"
#include "sharding/batch/training_family.h"

namespace pipeshard {

// In the place of a microbatch's number: not of a microbatch, but of the whole step.
inline constexpr int kWholeStep = -1;

// What one emission makes, and what it has asked. Program::buffers that are added later have no start of
// their own.
struct EmittedRank {
  RankProgram rank;
  RankQuestions questions;
  std::vector<int> start_slots;  // as ProgramKind has them
  std::vector<bool> boxed;
};

class RankBuilder {
 public:
  RankBuilder(const EmissionContext& context, RankId rank);

  const std::string& nameOf(ValueId id) const { return training_.graph.value(id).name; }

  // The buffer of that name, made at its first mention; `like` gives type and shape, and in a stage of
  // several devices `kept` how it is cut (`like` itself when invalid).
  BufferId buffer(const std::string& name, BufferKind kind, ValueId like, ValueId kept = {});
  // This device's part of a value that a microbatch's pass makes: "h@0".
  BufferId produced(ValueId value, int microbatch);
  // The buffer that stands for a value in a piece. `prologue`: its inputs are loaded apart from those of the
  // passes.
  BufferId bufferOf(ValueId value, int microbatch, bool prologue = false);
  // The same of a value that every update has for itself: totals, the step, the loss.
  BufferId ofUpdate(ValueId value, BufferKind kind, int update);
  // Where a version of a trained parameter lies (emit_versions.h).
  BufferId version(size_t parameter, int version);
  // A persistent buffer that starts from the value's initializer, or from that of `source`.
  BufferId sourced(ValueId value, BufferKind kind, ValueId source = {});
  // Of an optimizer's state, which starts as zeros or as its parameter.
  BufferId stateOf(const Parameter& parameter, const OptimizerState& state) {
    return state.starts_as_parameter ? sourced(state.value, BufferKind::kOptimizerState, parameter.value)
                                     : bufferOf(state.value, kWholeStep);
  }

  // A number that lives across steps, and is the same on all ranks; checkpoints call it "state/<value>".
  BufferId lasting(const std::string& name, const std::string& value, Constant start);
  // The one that the gradient of the loss is scaled with.
  BufferId lossScale() {
    const ValueId scale = training_.loss_scale;
    return lasting(nameOf(scale), nameOf(scale),
                   makeScalar(training_.graph.dataType(scale), training_.loss_scaling.first));
  }

  // The stage that the instructions from here on work for; invalid: several, or none.
  void workFor(StageId stage) { stage_ = stage; }
  // The same for a pass on the microbatch: makes the copies of weights that it reads, unless they are there.
  void beginPass(StageId stage, int microbatch) {
    workFor(stage);
    makeCopies(stage, context_.cut.copies[stage], microbatch);
  }
  // Those of `all`, copies of weights, that are not there.
  void makeCopies(StageId stage, const Piece& all, int microbatch);
  // Where another group's copy of a weight comes to; it need not be made here.
  BufferId receivedCopy(ValueId copy) {
    const BufferId id = copyOf(copy, kWholeStep);
    copied_.insert(id);
    return id;
  }
  Instruction& add(InstructionKind kind, int microbatch, std::vector<BufferId> inputs,
                   std::vector<BufferId> outputs);
  void send(RankId peer, BufferId id, int microbatch) {
    add(InstructionKind::kSend, microbatch, {id}, {}).peer = peer;
  }
  void receive(RankId peer, BufferId id, int microbatch) {
    add(InstructionKind::kReceive, microbatch, {}, {id}).peer = peer;
  }
  // total := part, or total + part when it has been written before.
  void accumulate(BufferId part, BufferId total, int microbatch);
  // An update has taken the gradient: what is accumulated next overwrites it.
  void forget(BufferId gradient) { written_.erase(gradient); }
  // The sum of a gradient over so many minibatches becomes their mean.
  void average(int minibatches, BufferId sum);
  // Sum over replicas that take turns, and over the mesh axes that `kept` is a partial sum over; in place.
  void sumOverDevices(BufferId id, ValueId kept);
  // In a stage whose sharding was chosen, a tensor kept like `part` becomes one kept like `gradient`: in
  // place where only sums are taken (returns `accumulator`), else in a new buffer that flushSynchronization
  // fills.
  BufferId synchronize(BufferId accumulator, ValueId part, ValueId gradient);
  // Runs what synchronize has gathered, as one subgraph.
  void flushSynchronization();
  // A number of the rank's own, from 0 to count - 1, for subgraphs to read: int64 [1]. It is the rank's part
  // of all of them, [0, 1, ...], so ranks of all numbers are of one kind. One buffer per name.
  BufferId ownNumber(const std::string& name, int64_t count, const std::function<int64_t(RankId)>& of);
  // Of all devices of a stage that hold the same shard of the value, this one speaks.
  bool speaksFor(ValueId value);
  // Loads a batch input unless it has been loaded.
  void load(ValueId input, int microbatch, bool prologue);

  // What another stage gets of a value of this stage, or this one of another's, as the plan says.
  void sendShards(const CrossMeshPlan& plan, ValueId value, int microbatch, StageId to_stage);
  void receiveShards(const CrossMeshPlan& plan, ValueId value, int microbatch, StageId from_stage);
  // The same of a buffer that is there once a step, kept like `value`.
  void sendShards(const CrossMeshPlan& plan, BufferId buffer, ValueId value, StageId to_stage);
  void receiveShards(const CrossMeshPlan& plan, BufferId buffer, ValueId value, StageId from_stage);

  // What a recomputation makes again of a value: "h@0@again".
  BufferId remade(ValueId value, int microbatch);
  // A copy of what a forward state was before the microbatch's forward pass, for the recomputation.
  BufferId stateBefore(ValueId state, int microbatch);
  // Runs the piece of a stage's phase on a microbatch; `part` as Cut::piece. The subgraph comes from the
  // family's member of the microbatch's size.
  void run(StageId stage, Phase phase, int microbatch, PassForm form = PassForm::kWhole, size_t part = 0);
  void runUpdate(StageId stage, int microbatch, std::vector<BufferId> inputs, std::vector<BufferId> outputs);
  // Any other graph; `description` but for its collectives.
  void runGraph(Subgraph description, Graph graph, std::vector<BufferId> inputs,
                std::vector<BufferId> outputs, int microbatch = kWholeStep);

  Program& program() { return program_; }
  // Whatever depends on the rank's place is asked here.
  RankQuestions& questions() { return questions_; }
  // The program with its subgraphs.
  EmittedRank take() &&;

 private:
  std::string nameOf(ValueId value, int microbatch) const;
  // Of the version of the weight that passes on the microbatch read.
  BufferId copyOf(ValueId copy, int microbatch);
  int64_t rowsOf(int microbatch) const { return context_.layout.microbatch(microbatch).count; }
  void listInputs();
  bool isSharded() const { return context_.shardings.isSharded(firstStage()); }
  const Place& place() const { return context_.layout.place(program_.rank); }
  // The first of the rank's stages: it stands for the others where these do not differ.
  StageId firstStage() const { return context_.layout.firstStage(place().group); }
  const ShardingSpec& kept(ValueId value) const { return context_.shardings.kept(firstStage(), value); }
  // Where the buffer's part begins: an entry of RankBinding::starts; -1: at the same place on all ranks.
  void setStart(BufferId id, int start);
  // Gives the buffer its shape: this device's part of `whole`, as the value is kept.
  void cut(BufferId id, const Shape& whole, ValueId value, int microbatch = kWholeStep);
  // Of a tensor as a value is kept: the device's part, and where it begins on other ranks.
  struct OwnPart {
    Shape whole;
    Shard shard;
    int start = -1;
  };
  const OwnPart& partOf(const Shape& whole, ValueId value, int microbatch);
  // A tensor on its way between stages: `value` says type and spec, `whole` what all devices together have.
  struct Travelling {
    ValueId value;
    BufferId buffer;
    std::string name;
    Shape whole;
    int microbatch = kWholeStep;
    Phase phase = Phase::kUpdate;
  };
  Travelling travelling(ValueId value, int microbatch);
  Travelling travelling(BufferId buffer, ValueId value) const;
  void sendShards(const CrossMeshPlan& plan, const Travelling& tensor, StageId to_stage);
  void receiveShards(const CrossMeshPlan& plan, const Travelling& tensor, StageId from_stage);
  // The buffer that holds a box of it, by default under a name that ends with the box. `start`: as setStart.
  BufferId boxBuffer(const Travelling& tensor, const Shard& box, int start, std::string name = "");
  // Adds up what the pieces of a partial sum bring.
  void receiveSummands(const CrossMeshTransfer& transfer, const Travelling& tensor, StageId from_stage);
  // What all devices together have of it.
  const Shape& wholeShapeOf(ValueId value, int microbatch) const;
  // As it is while the microbatch runs.
  LogicalMesh ownMesh(int microbatch) const {
    const int64_t rows = microbatch == kWholeStep ? context_.family.largestMicrobatch() : rowsOf(microbatch);
    return isSharded() ? context_.shardings.mesh(firstStage(), rows) : LogicalMesh{{1}};
  }
  DeviceId ownDevice() const { return isSharded() ? place().position : DeviceId(0); }
  // ownDevice of any rank of the group.
  std::function<DeviceId(RankId)> deviceOf() const {
    return [&layout = context_.layout, sharded = isSharded()](RankId rank) {
      return sharded ? layout.place(rank).position : DeviceId(0);
    };
  }

  const EmissionContext& context_;
  const TrainingGraph& training_;  // the family's base
  Program program_;
  RankQuestions questions_;
  RankGroups groups_;
  RankSubgraphs subgraphs_;
  std::map<std::tuple<int, DataType, Shape>, SubgraphId> averages_;  // by minibatches and tensor
  int means_ = 0;                                                    // taken
  std::unordered_map<std::string, BufferId> buffers_;
  std::map<int, std::unordered_map<ValueId, BufferId>> produced_;  // by microbatch
  std::map<std::pair<ValueId, int64_t>, OwnPart> parts_;           // by value and rows
  std::vector<int> start_slots_;                                   // by buffer
  std::set<BufferId> boxed_;                                       // their names end with their boxes
  std::map<std::pair<std::string, Shape>, std::vector<int>> starts_of_boxes_;  // by tensor and size
  std::set<BufferId> loaded_;                                                  // batch inputs
  std::set<BufferId> copied_;                                                  // copies of weights
  std::set<BufferId> sliced_;
  std::set<BufferId> written_;                        // accumulators
  std::map<size_t, std::vector<bool>> in_parameter_;  // by parameter and version: WeightVersions::inParameter
  StageId stage_;                                     // workFor

  // A resharding of one tensor, between buffers. `name`: its name in the subgraph.
  struct Pending {
    std::string name;
    BufferId from, to;
    Shape whole;
    ShardingSpec before;
    Resharding steps;
  };
  SubgraphId reshardingSubgraph(const std::string& name, Phase phase, int microbatch,
                                const std::vector<Pending>& reshardings);
  // Of a tensor on its way; microbatches of one plan, which are of one size, share the subgraph.
  void runResharding(const CrossMeshPlan& plan, const Travelling& tensor, Pending resharding);
  std::vector<Pending> pending_;  // synchronization that waits to be run
  int reshardings_ = 0;           // subgraphs made for values on their way
  std::map<std::pair<const CrossMeshPlan*, ValueId>, SubgraphId> resharding_of_;
};

}  // namespace pipeshard
