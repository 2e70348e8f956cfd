#include "sharding/pricing/memory_sharing.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ir/operators/operator_facts.h"
#include "sharding/pricing/kernel_memory.h"

namespace pipeshard {
namespace {

class MemorySharer {
 public:
  MemorySharer(const PricedPass& pass, std::set<ValueId> buffers, std::vector<MemoryUse>& uses)
      : pass_(pass), buffers_(std::move(buffers)), uses_(uses) {}

  void run() {
    makeInBuffers();
    std::stable_sort(uses_.begin(), uses_.end(),
                     [](const MemoryUse& a, const MemoryUse& b) { return a.from < b.from; });
    place_.clear();
    for (size_t i = 0; i < uses_.size(); ++i) {
      MemoryUse& use = uses_[i];
      place_[use.value] = i;
      if (pass_.in_accumulators.contains(use.value)) use.bytes = 0;
      const StageValue& value = of(use.value);
      if (!buffers_.contains(use.value) && value.output == 0 && value.producer.valid()) placeIn(use);
    }
  }

 private:
  const StageValue& of(ValueId value) const { return pass_.context.values[value.index()]; }
  const Graph& graph() const { return pass_.context.training.graph; }

  // The node runs in the pass, and this input of it is as it is kept, and so is its first output.
  bool takesAsKept(NodeId id, size_t input) const {
    if (!id.valid() || !pass_.has(id)) return false;
    const Node& node = graph().node(id);
    const ValueId read = node.inputs.at(input), made = node.outputs.at(0);
    const Strategy& strategy = pass_.sharding.strategies[id.index()];
    return read.valid() &&
           isSame(pass_.context.mesh, strategy.inputs[input], pass_.sharding.kept[read.index()]) &&
           isSame(pass_.context.mesh, strategy.outputs[0], pass_.sharding.kept[made.index()]);
  }

  // Products read it where it was before it was transposed (runtime/execute/fold_transposes.h).
  bool isForProducts(ValueId id) const {
    return swapsLastTwoAxes(graph(), graph().node(of(id).producer)) &&
           std::ranges::all_of(of(id).readers, [&](const ValueReader& reader) {
             return operatorFacts(graph().node(reader.node)).multiplies_matrices;
           });
  }

  // What a buffer is another name of is made in the buffer, and so a buffer, too.
  void makeInBuffers() {
    for (size_t i = 0; i < uses_.size(); ++i) place_[uses_[i].value] = i;
    for (const ValueId id : std::set<ValueId>(buffers_)) {
      MemoryUse& use = uses_[place_.at(id)];
      for (ValueId made = id; of(made).output == 0 && takesAsKept(of(made).producer, 0);) {
        const Node& node = graph().node(of(made).producer);
        if (!isView(node)) break;
        made = node.inputs[0];
        const auto there = place_.find(made);
        if (there == place_.end() || !buffers_.insert(made).second) break;
        use.from = std::min(use.from, uses_[there->second].from);
        uses_[there->second].bytes = 0;
      }
    }
  }

  void placeIn(MemoryUse& use) {
    const NodeId producer = of(use.value).producer;
    const Node& node = graph().node(producer);
    for (size_t input = 0; input < node.inputs.size(); ++input) {
      if (!node.inputs[input].valid() || !takesAsKept(producer, input)) continue;
      const bool names = input == 0 && (isView(node) || isForProducts(use.value));
      const auto there = place_.find(node.inputs[input]);
      if (there == place_.end()) {
        if (names) use.bytes = 0;  // of a buffer
        continue;
      }
      MemoryUse& held = uses_[there->second];
      const bool last = held.to == use.from + 1 && held.bytes == use.bytes && overwritesInput(node, input);
      if (!last && !names) continue;
      held.to = std::max(held.to, use.to);
      use.bytes = 0;
      place_[use.value] = there->second;
      break;
    }
  }

  const PricedPass& pass_;
  std::set<ValueId> buffers_;
  std::vector<MemoryUse>& uses_;
  std::map<ValueId, size_t> place_;  // by value: whose of the uses it is in
};

}  // namespace

void shareMemory(const PricedPass& pass, std::set<ValueId> buffers, std::vector<MemoryUse>& uses) {
  MemorySharer(pass, std::move(buffers), uses).run();
}

}  // namespace pipeshard
