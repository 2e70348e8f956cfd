#include "runtime/execute/subgraph_planner.h"

#include <algorithm>

#include "ir/base/error.h"

namespace pipeshard {

CompiledSubgraph::Planner::Planner(const CompiledSubgraph& subgraph, const Aliasing& aliasing)
    : subgraph_(subgraph), graph_(subgraph.graph_), aliasing_(aliasing) {
  layout_.storage.resize(graph_.values.size());
  layout_.kernel_workspace.assign(subgraph_.steps_.size(), kNoTemporary);
  producer_.assign(graph_.values.size(), -1);
  last_use_.assign(graph_.values.size(), -1);
  claimed_output_.assign(graph_.values.size(), kNoTemporary);
  output_done_.assign(graph_.outputs.size(), false);
  output_buffers_.insert(aliasing.outputs.begin(), aliasing.outputs.end());
  PIPESHARD_CHECK(output_buffers_.size() == aliasing.outputs.size(),
                  "subgraph '{}': two outputs are one buffer", subgraph.name_);
  for (size_t i = 0; i < graph_.inputs.size(); ++i) {
    if (output_buffers_.contains(aliasing.inputs[i]))
      inputs_of_[aliasing.inputs[i]].push_back(graph_.inputs[i]);
  }
}

CompiledSubgraph::Layout CompiledSubgraph::Planner::plan() {
  findUses();
  placeInputsAndConstants();
  claimOutputs();
  for (size_t s = 0; s < subgraph_.steps_.size(); ++s) placeStep(s);
  copyOutputs();
  placeTemporaries();
  findMoments();
  return std::move(layout_);
}

void CompiledSubgraph::Planner::findUses() {
  for (size_t s = 0; s < subgraph_.steps_.size(); ++s) {
    for (const ValueId id : subgraph_.steps_[s].inputs) {
      if (id.valid()) last_use_[subgraph_.root(id).index()] = s;
    }
    for (const ValueId id : subgraph_.steps_[s].outputs) {
      if (id.valid()) producer_[id.index()] = s;
    }
  }
  for (size_t o = 0; o < graph_.outputs.size(); ++o)
    last_use_[outputRoot(o).index()] = std::ssize(subgraph_.steps_);
}

void CompiledSubgraph::Planner::placeInputsAndConstants() {
  for (const auto& [id, initializer] : graph_.initializers) {
    layout_.storage[id.index()] = {Storage::Kind::kConstant, subgraph_.constant_offsets_[id.index()]};
  }
  for (size_t i = 0; i < graph_.inputs.size(); ++i)
    layout_.storage[graph_.inputs[i].index()] = {Storage::Kind::kInput, i};
  input_ends_.resize(graph_.inputs.size());
  for (size_t i = 0; i < aliasing_.ending.size(); ++i) {
    const int buffer = aliasing_.inputs[i];
    const bool is_alone = std::count(aliasing_.inputs.begin(), aliasing_.inputs.end(), buffer) == 1;
    if (aliasing_.ending[i] && is_alone && !output_buffers_.contains(buffer))
      input_ends_[i] = last_use_[graph_.inputs[i].index()] + 1;
  }
}

void CompiledSubgraph::Planner::claimOutputs() {
  for (size_t o = 0; o < graph_.outputs.size(); ++o) {
    const ValueId value = outputRoot(o);
    if (producer_[value.index()] < 0 || claimed_output_[value.index()] != kNoTemporary ||
        !mayWriteEarly(o, value))
      continue;
    claimed_output_[value.index()] = o;
    layout_.storage[value.index()] = {Storage::Kind::kOutput, o};
    output_done_[o] = true;
  }
}

template <typename Predicate>
std::vector<size_t> CompiledSubgraph::Planner::inputsWhere(size_t step, Predicate predicate) const {
  std::vector<size_t> result;
  const std::vector<ValueId>& inputs = subgraph_.steps_[step].inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].valid() && predicate(subgraph_.root(inputs[i]))) result.push_back(i);
  }
  return result;
}

bool CompiledSubgraph::Planner::mayOverwrite(size_t step, size_t output,
                                             const std::vector<size_t>& inputs) const {
  return std::all_of(inputs.begin(), inputs.end(), [&](size_t input) {
    return subgraph_.steps_[step].kernel->mayRunInPlace(input, output);
  });
}

// Whether output buffer `output` may get its content when the producer of `value` runs, although it may also
// be an input.
bool CompiledSubgraph::Planner::mayWriteEarly(size_t output, ValueId value) const {
  const int64_t producer = producer_[value.index()];
  const auto found = inputs_of_.find(aliasing_.outputs[output]);
  const std::vector<ValueId> in_same_buffer =
      found == inputs_of_.end() ? std::vector<ValueId>() : found->second;
  for (const ValueId input : in_same_buffer) {
    if (last_use_[input.index()] > producer) return false;
  }
  const size_t step = producer;
  const auto& outputs = subgraph_.steps_[step].outputs;
  const size_t position = std::find(outputs.begin(), outputs.end(), value) - outputs.begin();
  return mayOverwrite(step, position, inputsWhere(step, [&](ValueId root) {
                        return std::find(in_same_buffer.begin(), in_same_buffer.end(), root) !=
                               in_same_buffer.end();
                      }));
}

void CompiledSubgraph::Planner::placeStep(size_t step) {
  const int64_t begin = step;
  const std::vector<ValueId>& outputs = subgraph_.steps_[step].outputs;
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!outputs[o].valid() || claimed_output_[outputs[o].index()] != kNoTemporary) continue;
    if (reuseInput(step, o, outputs[o])) continue;
    const int64_t end = std::max(begin, last_use_[outputs[o].index()]) + 1;
    layout_.storage[outputs[o].index()] = {Storage::Kind::kTemporary,
                                           addTemporary(graph_.bytes(outputs[o]), begin, end)};
  }
  const size_t workspace = subgraph_.steps_[step].kernel->workspaceBytes();
  if (workspace > 0) layout_.kernel_workspace[step] = addTemporary(workspace, begin, begin + 1);
}

// Where it is said how long `bytes` of memory are in use, if that may change: of a temporary, or of an input
// whose buffer ends with the run. Else nullptr.
int64_t* CompiledSubgraph::Planner::endOf(const Storage& storage, int64_t bytes) {
  if (storage.kind == Storage::Kind::kTemporary) {
    LiveBlock& temporary = layout_.memory.temporaries[storage.index];
    return temporary.bytes == bytes ? &temporary.end : nullptr;
  }
  if (storage.kind != Storage::Kind::kInput || !input_ends_[storage.index]) return nullptr;
  return graph_.bytes(graph_.inputs[storage.index]) == bytes ? &*input_ends_[storage.index] : nullptr;
}

// Computes an output in memory whose last reader is this step.
bool CompiledSubgraph::Planner::reuseInput(size_t step, size_t output, ValueId value) {
  const int64_t now = step;
  const std::vector<ValueId>& inputs = subgraph_.steps_[step].inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].valid() || !subgraph_.steps_[step].kernel->mayRunInPlace(i, output)) continue;
    const Storage storage = layout_.storage[subgraph_.root(inputs[i]).index()];
    int64_t* end = endOf(storage, graph_.bytes(value));
    if (end == nullptr || *end != now + 1) continue;
    const auto same = [&](ValueId root) {
      const Storage& other = layout_.storage[root.index()];
      return other.kind == storage.kind && other.index == storage.index;
    };
    if (!mayOverwrite(step, output, inputsWhere(step, same))) continue;
    const std::vector<ValueId>& outputs = subgraph_.steps_[step].outputs;
    const bool is_taken = std::any_of(outputs.begin(), outputs.begin() + output,
                                      [&](ValueId id) { return id.valid() && same(id); });
    if (is_taken) continue;
    layout_.storage[value.index()] = storage;
    *end = std::max(now, last_use_[value.index()]) + 1;
    return true;
  }
  return false;
}

void CompiledSubgraph::Planner::copyOutputs() {
  const int64_t end = std::ssize(subgraph_.steps_);
  std::vector<Copy> late;
  for (size_t o = 0; o < graph_.outputs.size(); ++o) {
    if (output_done_[o]) continue;
    Storage from = layout_.storage[outputRoot(o).index()];
    const size_t bytes = graph_.bytes(graph_.outputs[o]);
    if (from.kind == Storage::Kind::kInput) {
      const int buffer = aliasing_.inputs[from.index];
      if (buffer == aliasing_.outputs[o]) continue;  // it is there already
      if (output_buffers_.contains(buffer)) {  // another copy may replace it first: two buffers may swap
        const Storage aside{Storage::Kind::kTemporary, addTemporary(bytes, end, end + 1)};
        layout_.copies.push_back({from, aside, bytes});
        from = aside;
      }
    }
    late.push_back({from, {Storage::Kind::kOutput, o}, bytes});
  }
  layout_.copies.insert(layout_.copies.end(), late.begin(), late.end());
}

size_t CompiledSubgraph::Planner::addTemporary(int64_t bytes, int64_t begin, int64_t end) {
  layout_.memory.temporaries.push_back({bytes, begin, end});
  return layout_.memory.temporaries.size() - 1;
}

void CompiledSubgraph::Planner::placeTemporaries() {
  const std::vector<LiveBlock>& temporaries = layout_.memory.temporaries;
  const int64_t alignment = subgraph_.queue_->device().alignment();
  layout_.memory.apart = placeBlocks(temporaries, alignment);
  verifyPlacement(temporaries, layout_.memory.apart, alignment);
}

// The steps, then the copies: those that rescue an input, and the others.
void CompiledSubgraph::Planner::findMoments() {
  const int64_t copies = std::ssize(subgraph_.steps_);
  RunMemory& memory = layout_.memory;
  memory.count = copies + 1;
  for (const std::optional<int64_t>& end : input_ends_)
    memory.input_ends.push_back(end ? *end : memory.count);
  for (size_t o = 0; o < graph_.outputs.size(); ++o)
    memory.output_begins.push_back(output_done_[o] ? producer_[outputRoot(o).index()] : copies);
}

}  // namespace pipeshard
