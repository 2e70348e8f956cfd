#include "sharding/pricing/priced_memory.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "ir/operators/operator_facts.h"
#include "sharding/pricing/kernel_memory.h"
#include "sharding/pricing/memory_sharing.h"

namespace pipeshard {

namespace {

// 0: forward, 1 and 2: the halves of the backward pass; 1: all of it.
constexpr size_t kPieces = 3;
constexpr size_t kInputHalf = 1;
constexpr size_t kWeightHalf = 2;
constexpr int64_t kConstantsOfAStep = 3;  // of a resharding: where slices begin and end

// Sorts everything that a device holds (StageMemory::uses) into the fields of PricedStage. A use is either a
// value as it is kept, over its whole interval (`own`), or what stands beside it while one node runs: before
// and after a resharding. The own uses go by their role: parameters and states, accumulators of gradients,
// what the update makes, and values of the passes (addOwn). The last are what the pieces are about, three of
// them where the backward pass is in halves, else two:
//   held_[piece]   buffers that are there while the piece runs: what several pieces make or read, and what
//                  goes on to, or comes from, other layers
//   in_course_     of them, those of no other layer that wait or are handed on, and gradients: what the piece
//                  makes is there from its maker on, what nobody reads behind it to its last reader
//   pieces_        what is made and read inside one piece, and so has only workspace. The largest sum at one
//                  position of the list of nodes counts
//   discarding_    the same for a forward pass that keeps nothing, as the backward pass makes it again: there
//                  all that forward nodes make is workspace
//
//   A value that the forward node at position 2 makes, read at 3 and 5 of the forward pass only, is workspace
//   from 2 to 6 (half-open). If the input half of the backward pass reads it, too, it is in held_[0] and
//   held_[1] instead; a discarding forward pass still has it from 2 to 6.
class MemoryPricer {
 public:
  MemoryPricer(const StageContext& context, const std::vector<Phase>& phases,
               const std::map<ValueId, const StageEnd*>& end_of, const StageSharding& sharding, bool halved,
               PricedStage& result)
      : context_(context),
        phases_(phases),
        end_of_(end_of),
        sharding_(sharding),
        weight_piece_(halved ? kWeightHalf : kInputHalf),
        result_(result) {}

  void run(const std::vector<StageResharding>& reshardings) {
    findRoles();
    for (const StageResharding& resharding : reshardings) addResharding(resharding);
    const StageMemory memory(context_.training, context_.nodes, context_.values,
                             {context_.options.microbatches});
    std::vector<bool> seen(context_.values.size());
    for (const MemoryUse& use : memory.uses(sharding_)) {
      const LiveInterval& live = memory.interval(use.value);
      // The value as it is kept, which comes first; not: beside it, while a node runs.
      const bool own =
          use.from == live.from && use.to == live.to && live.from < live.to && !seen[use.value.index()];
      seen[use.value.index()] = seen[use.value.index()] || own;
      const int64_t bytes = placedBytes(use.bytes);
      if (own && of(use.value).persistent) {
        (roles_[use.value.index()] == Role::kState ? result_.optimizer_bytes : result_.weight_bytes) += bytes;
      } else if (own && roles_[use.value.index()] == Role::kAccumulated) {
        addAccumulator(use.value, bytes);
      } else if (isUpdate(use.from)) {
        addToUpdate(use, own);
      } else if (own) {
        addOwn(use.value, live, bytes);
      } else if (context_.mesh.deviceCount() > 1) {
        addBeside({use.value, bytes, use.from, use.to});
      }
    }
    for (NodeId node : context_.nodes) addWorkspace(node);
    addConstants();
    result_.input_bytes += result_.waiting_input_bytes;
    result_.discarding = workspaceOf(discarding_, 0);
    result_.update_bytes = peakOf(update_, end()).bytes;
  }

  PricedPasses passes() const {
    PricedPasses passes;
    for (size_t piece = 0; piece < kPieces; ++piece) {
      passes.workspaces[piece] = workspaceOf(pieces_, piece);
      passes.peak_bytes = std::max(passes.peak_bytes, workspaceOf(pieces_, piece, held_[piece]).alone);
      PricedPeak& excess = passes.excesses[piece];
      excess = workspaceOf(pieces_, piece, in_course_[piece]);
      for (const MemoryUse& use : in_course_[piece]) excess.alone -= use.bytes, excess.inside -= use.bytes;
    }
    return passes;
  }

 private:
  enum class Role : uint8_t { kNone, kState, kAccumulated, kGradient, kUpdated, kInput };

  struct Uses {
    std::vector<MemoryUse> between;  // made and read by nodes of one subgraph
    std::vector<MemoryUse> beside;   // while one node runs
    std::vector<MemoryUse> ends;     // where the layers beside this one run in the same subgraph
  };

  void addBeside(const MemoryUse& use) {
    for (Uses* uses : {&pieces_, &discarding_}) uses->beside.push_back(use);
  }

  void findRoles() {
    roles_.resize(context_.values.size());
    const auto set = [&](ValueId value, Role role) {
      if (value.valid()) roles_[value.index()] = role;
    };
    for (const Parameter& parameter : context_.training.parameters) {
      set(parameter.updated, Role::kUpdated);
      for (const OptimizerState& state : parameter.states)
        set(state.value, Role::kState), set(state.updated, Role::kUpdated);
      if (parameter.gradient_parts.empty()) continue;
      set(parameter.gradient, Role::kGradient);
      for (ValueId part : parameter.gradient_parts) set(part, Role::kAccumulated);
    }
    for (const BatchInput& input : context_.training.inputs) set(input.value, Role::kInput);
  }

  const StageValue& of(ValueId value) const { return context_.values[value.index()]; }
  NodeId nodeAt(int64_t position) const { return context_.nodes[position]; }
  bool isUpdate(int64_t position) const {
    return context_.training.node_phase[nodeAt(position).index()] == Phase::kUpdate;
  }
  size_t pieceOf(NodeId node) const {
    const Phase phase = phases_[node.index()];
    return phase == Phase::kBackwardInput ? kInputHalf : phase == Phase::kBackwardWeight ? weight_piece_ : 0;
  }
  int64_t end() const { return std::ssize(context_.nodes); }
  int64_t positionOf(NodeId node) const {
    return std::lower_bound(context_.nodes.begin(), context_.nodes.end(), node) - context_.nodes.begin();
  }

  // All its parts are summed in one, and each microbatch's summand may be computed there.
  void addAccumulator(ValueId part, int64_t bytes) {
    result_.gradient_bytes += bytes;
    const Shape& shape = context_.training.graph.shape(part);
    result_.whole_gradient_bytes +=
        elementCount(shape) * static_cast<int64_t>(dataTypeSize(context_.training.graph.dataType(part)));
    const NodeId maker = of(part).producer;
    const size_t first = maker.valid() ? pieceOf(maker) : 0;
    const auto add = [&](size_t piece) {
      const MemoryUse use{part, bytes, piece == first && maker.valid() ? positionOf(maker) : 0, end()};
      held_[piece].push_back(use);
      if (piece == weight_piece_) in_course_[piece].push_back(use);
    };
    if (context_.options.microbatches == 1) {
      for (size_t piece = first; piece < kPieces; ++piece) add(piece);
    } else if (const std::optional<std::vector<ValueId>> names = summedInPlace(part)) {
      in_accumulators_.insert(names->begin(), names->end());
    } else {
      result_.summand_bytes += bytes;
      add(weight_piece_);
    }
  }

  // What else the part is named on its way into its accumulator; nullopt: it is not computed there.
  std::optional<std::vector<ValueId>> summedInPlace(ValueId part) const {
    const auto maker = [&](ValueId id) { return of(id).producer; };
    NodeId node = maker(part);
    if (!node.valid() || !isSame(context_.mesh, sharding_.strategies[node.index()].outputs[of(part).output],
                                 sharding_.kept[part.index()]))
      return std::nullopt;
    if (readInPasses(part)) return std::nullopt;
    const Graph& graph = context_.training.graph;
    std::vector<ValueId> names;
    while (node.valid() && isView(graph.node(node))) {
      names.push_back(graph.node(node).inputs.at(0));
      if (of(names.back()).readers.size() != 1) return std::nullopt;
      node = maker(names.back());
    }
    if (!node.valid() || !addsToResult(graph, graph.node(node))) return std::nullopt;
    return names;
  }

  bool readInPasses(ValueId id) const {
    return std::ranges::any_of(of(id).readers, [&](const ValueReader& reader) {
      return context_.training.node_phase[reader.node.index()] != Phase::kUpdate;
    });
  }

  // A gradient that is not in its accumulator is a buffer from its synchronization on. Parameters and states
  // are updated where they lie.
  void addToUpdate(const MemoryUse& use, bool own) {
    const Role role = roles_[use.value.index()];
    if (own && role == Role::kUpdated) return;
    if (own && role == Role::kGradient) {
      result_.synchronized_bytes += isSum(use.value) ? 0 : placedBytes(use.bytes);
      return;
    }
    update_.push_back({use.value, placedBytes(use.bytes), use.from, use.to});
  }

  // Summing over devices is all that makes the gradient of its accumulator.
  bool isSum(ValueId gradient) const {
    for (const Parameter& parameter : context_.training.parameters) {
      if (parameter.gradient != gradient) continue;
      ShardingSpec summed = sharding_.kept[of(parameter.gradient_parts.front()).shares.index()];
      summed.partial.clear();
      return summed == sharding_.kept[gradient.index()];
    }
    return false;
  }

  // What a resharding has beside what it begins and ends with.
  void addResharding(const StageResharding& entry) {
    const Graph& graph = context_.training.graph;
    const int64_t most = reshardingWorkspace(entry.from, entry.resharding.steps, graph.shape(entry.value),
                                             dataTypeSize(graph.dataType(entry.value)), context_.mesh);
    result_.constant_bytes += std::ssize(entry.resharding.steps) * kConstantsOfAStep * placedBytes(1);
    const NodeId node = entry.reader.valid() ? entry.reader : of(entry.value).producer;
    if (!node.valid()) {
      result_.synchronization_workspace = std::max(result_.synchronization_workspace, most);
      return;
    }
    const MemoryUse use{entry.value, most, positionOf(node), positionOf(node) + 1};
    if (isUpdate(use.from)) {
      update_.push_back(use);
    } else {
      addBeside(use);
    }
  }

  void addWorkspace(NodeId id) {
    const Node& node = context_.training.graph.node(id);
    const Strategy& strategy = sharding_.strategies[id.index()];
    if (node.outputs.empty() || !node.outputs[0].valid() || isUpdate(positionOf(id))) return;
    if (operatorFacts(node).workspace == Workspace::kNone) return;
    const auto bytes = [&](ValueId value, const ShardingSpec& spec) {
      return largestShard(spec, context_.training.graph.shape(value), context_.mesh) *
             static_cast<int64_t>(dataTypeSize(context_.training.graph.dataType(value)));
    };
    std::vector<int64_t> inputs;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      inputs.push_back(node.inputs[i].valid() ? bytes(node.inputs[i], strategy.inputs[i]) : 0);
    const Shape& first = context_.training.graph.shape(node.inputs.at(0));
    int64_t features = first.size() < 2 ? 1 : first[1];
    if (first.size() >= 2)
      for (const int mesh_axis : strategy.inputs[0].axes[1]) features /= context_.mesh.axisSize(mesh_axis);
    const int64_t most = kernelWorkspace(node, inputs, bytes(node.outputs[0], strategy.outputs[0]),
                                         first.empty() ? 1 : first[0], features);
    if (most > 0) addBeside({node.outputs[0], placedBytes(most), positionOf(id), positionOf(id) + 1});
  }

  // What a value of the passes is to the pieces that make and read it.
  struct Life {
    bool forward = false;    // made in a forward pass, here or elsewhere, or an input
    size_t first = kPieces;  // pieces of this part
    size_t last = 0;
    int64_t from = 0;         // its producer
    int64_t last_reader = 0;  // position behind the last reader of its first piece
    bool in_weight_half = false;
  };

  Life lifeOf(ValueId id, const LiveInterval& live) const {
    const StageValue& value = of(id);
    Life life;
    const auto add = [&](NodeId node) {
      if (context_.training.node_phase[node.index()] == Phase::kUpdate) return;
      life.first = std::min(life.first, pieceOf(node));
      life.last = std::max(life.last, pieceOf(node));
    };
    if (value.producer.valid()) add(value.producer);
    for (const ValueReader& reader : value.readers) add(reader.node);
    if (value.producer.valid()) life.from = positionOf(value.producer);
    life.last_reader = life.from + 1;
    for (const ValueReader& reader : value.readers) {
      const size_t piece = pieceOf(reader.node);
      if (piece == life.first) life.last_reader = std::max(life.last_reader, positionOf(reader.node) + 1);
      life.in_weight_half = life.in_weight_half || piece == kWeightHalf;
    }
    life.forward = live.waits || life.first == 0;
    return life;
  }

  void addOwn(ValueId id, const LiveInterval& live, int64_t bytes) {
    const Life life = lifeOf(id, live);
    const auto end = end_of_.find(id);
    if (live.waits) result_.waiting_bytes += bytes;
    if (roles_[id.index()] == Role::kInput)
      (live.waits ? result_.waiting_input_bytes : result_.input_bytes) += bytes;
    if (end != end_of_.end()) return addEnd(id, *end->second, life, live.waits, bytes);
    const std::vector<bool>& kept_anyway = context_.options.kept_anyway;
    if (!kept_anyway.empty() && kept_anyway[id.index()]) {
      result_.kept_bytes += bytes;
      if (live.waits) result_.kept_waiting_bytes += bytes;
    }
    const StageValue& value = of(id);
    // of the whole batch
    const bool total = !value.producer.valid() && !live.waits && roles_[id.index()] != Role::kInput;
    // the loss is summed
    if (total || id == context_.training.loss) result_.constant_bytes += bytes;
    // a further output that only backward passes read is not made then
    const bool dropped = value.output > 0 && !isReadForward(id);
    if (life.forward && value.producer.valid() && !value.readers.empty() && !dropped)
      discarding_.between.push_back({id, bytes, life.from, life.last_reader});
    if (value.producer.valid() && !value.readers.empty() && life.first == life.last) {
      pieces_.between.push_back({id, bytes, life.from, life.last_reader});
      return;
    }
    const bool handed = !life.forward && life.in_weight_half;
    for (size_t piece = life.first; piece <= life.last; ++piece) {
      const MemoryUse use = useIn(piece, id, life, bytes);
      held_[piece].push_back(use);
      // Until the weight half, what it reads waits as it is.
      const bool to_be_read = live.waits && (piece != kInputHalf || life.last == kInputHalf);
      if (to_be_read || handed) in_course_[piece].push_back(use);
    }
    if (live.waits && life.last == kInputHalf) result_.early_bytes += bytes;
    if (handed) result_.handed_bytes += bytes;
    if (life.forward && value.readers.empty()) result_.output_bytes += bytes;
  }

  // A buffer of this part alone: from its maker on, if that is in the piece, and to its last reader, if no
  // later piece has one.
  MemoryUse useIn(size_t piece, ValueId id, const Life& life, int64_t bytes) const {
    const NodeId maker = of(id).producer;
    MemoryUse use{id, bytes, 0, end()};
    if (maker.valid() && pieceOf(maker) == piece) use.from = life.from;
    if (piece != life.last || of(id).readers.empty()) return use;
    use.to = use.from + 1;
    for (const ValueReader& reader : of(id).readers) {
      if (pieceOf(reader.node) != piece) continue;
      use.to = std::max(
          use.to, behindElementwise(context_.training.graph, context_.nodes, positionOf(reader.node),
                                    [&](int64_t position) { return pieceOf(nodeAt(position)) == piece; }));
    }
    return use;
  }

  // A value of other layers, too: a buffer, or, where they run with this one, between nodes of their
  // subgraph.
  void addEnd(ValueId id, const StageEnd& end, const Life& life, bool waits, int64_t bytes) {
    const size_t last = end.goes_on && life.first > 0 ? kPieces - 1 : life.last;
    for (size_t piece = life.first; piece <= last; ++piece)
      held_[piece].push_back({id, bytes, 0, this->end()});
    const int64_t from = of(id).producer.valid() ? life.from : 0;
    const int64_t to = end.goes_on ? std::ssize(context_.nodes) : life.last_reader;
    if (life.forward) {
      if (life.first > 0) return;
      discarding_.ends.push_back({id, bytes, from, to});
      if (!waits) pieces_.ends.push_back({id, bytes, from, to});
    } else if (life.in_weight_half) {
      result_.handed_bytes += bytes;
      if (!of(id).producer.valid()) result_.handed_end_bytes += bytes;
    } else {
      pieces_.ends.push_back({id, bytes, from, to});
    }
  }

  // Every subgraph has the constants that it reads.
  void addConstants() {
    std::set<std::pair<ValueId, size_t>> seen;
    for (NodeId node : context_.nodes) {
      for (ValueId input : context_.training.graph.node(node).inputs) {
        const TrainingGraph& training = context_.training;
        const bool scalar =
            input == training.step || input == training.gradient_scale || input == training.loss_scale;
        if (input.valid() && scalar) result_.constant_bytes += placedBytes(1);
        if (!input.valid() || !of(input).constant || !seen.insert({input, pieceOf(node)}).second) continue;
        const int64_t times = pieceOf(node) == 0 ? 2 : 1;  // with the recomputation
        result_.constant_bytes += times * placedBytes(context_.training.graph.bytes(input));
      }
    }
  }

  // Of what is between the nodes of one piece, the most at one time.
  int64_t peakOfPiece(const std::vector<MemoryUse>& uses, size_t piece) const {
    std::vector<int64_t> change(context_.nodes.size() + 1);
    for (const MemoryUse& use : uses) {
      change[use.from] += use.bytes;
      change[use.to] -= use.bytes;
    }
    int64_t now = 0, most = 0;
    for (size_t position = 0; position < context_.nodes.size(); ++position) {
      now += change[position];
      if (pieceOf(context_.nodes[position]) == piece) most = std::max(most, now);
    }
    return most;
  }

  // With `buffers` beside it.
  PricedPeak workspaceOf(const Uses& uses, size_t piece, const std::vector<MemoryUse>& buffers = {}) const {
    std::vector<MemoryUse> of_piece;
    const auto add = [&](const MemoryUse& use) {
      const NodeId producer = of(use.value).producer;
      const bool entering = use.from == 0 && (!producer.valid() || positionOf(producer) != 0);
      const size_t own = entering ? (isReadForward(use.value) ? 0 : kInputHalf) : pieceOf(nodeAt(use.from));
      if (own == piece) of_piece.push_back(use);
    };
    for (const MemoryUse& use : uses.between) add(use);
    std::set<ValueId> is_buffer;
    for (const MemoryUse& use : buffers) is_buffer.insert(use.value), of_piece.push_back(use);
    const auto in_piece = [&](NodeId node) { return pieceOf(node) == piece; };
    shareMemory({context_, sharding_, in_piece, in_accumulators_}, std::move(is_buffer), of_piece);
    for (const MemoryUse& use : uses.beside) add(use);
    PricedPeak peak{peakOfPiece(of_piece, piece), 0};
    for (const MemoryUse& use : uses.ends) add(use);
    peak.inside = peakOfPiece(of_piece, piece);
    return peak;
  }

  bool isReadForward(ValueId id) const {
    return std::ranges::any_of(of(id).readers, [&](const auto& reader) { return pieceOf(reader.node) == 0; });
  }

  const StageContext& context_;
  const std::vector<Phase>& phases_;
  const std::map<ValueId, const StageEnd*>& end_of_;
  const StageSharding& sharding_;
  const size_t weight_piece_;  // of nodes that make gradients of parameters
  PricedStage& result_;
  std::vector<Role> roles_;  // by value index
  std::array<std::vector<MemoryUse>, kPieces> held_, in_course_;
  Uses pieces_, discarding_;  // of the pieces as they are, and of a forward pass that keeps nothing
  std::vector<MemoryUse> update_;
  std::set<ValueId> in_accumulators_;  // summands that are computed there
};

}  // namespace

void addPricedMemory(const StageContext& context, const std::vector<Phase>& phases,
                     const std::map<ValueId, const StageEnd*>& end_of, const StageSharding& sharding,
                     const std::vector<StageResharding>& reshardings, PricedStage& result) {
  PricedStage once_more;  // what is not of the passes
  MemoryPricer whole(context, phases, end_of, sharding, false, once_more);
  whole.run(reshardings);
  MemoryPricer halved(context, phases, end_of, sharding, true, result);
  halved.run(reshardings);
  result.whole = whole.passes();
  result.halved = halved.passes();
}

}  // namespace pipeshard
