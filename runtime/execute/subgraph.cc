#include "runtime/execute/subgraph.h"

#include <algorithm>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/prepare/inference.h"
#include "onnx_import/prepare/inline_functions.h"
#include "onnx_import/prepare/prepare.h"
#include "runtime/execute/fold_transposes.h"
#include "runtime/execute/subgraph_planner.h"
#include "runtime/kernels/fusion/fused_kernel.h"

namespace pipeshard {
namespace {

constexpr uint64_t kInlineLimit = 2'000'000;

}  // namespace

void BoundRun::run(std::atomic<uint64_t>& progress, NodeObserver* observer, NanFinder* finder) const {
  for (const Call& call : calls_) {
    progress.fetch_add(1, std::memory_order_relaxed);
    if (observer != nullptr && !observer->beginNodes(call.nodes, *queue_)) continue;
    perform(call);
    if (finder != nullptr && call.kernel != nullptr) look(call, *finder);
    if (observer != nullptr) observer->endNodes(call.nodes, *queue_);
  }
}

void BoundRun::perform(const Call& call) const {
  if (call.kernel == nullptr)
    return queue_->copy(inputs_[call.first_input], outputs_[call.first_output], call.bytes);
  try {
    call.kernel->run({std::span(inputs_).subspan(call.first_input, call.input_count),
                      std::span(outputs_).subspan(call.first_output, call.output_count), call.workspace,
                      collectives_, call.accumulate, queue_, call.fault});
  } catch (Error& error) {
    addNode(error, call);
    throw;
  }
}

void BoundRun::look(const Call& call, NanFinder& finder) const {
  queue_->synchronize();
  try {
    finder.lookAtNode(*graph_, graph_->nodes[call.nodes.back()],
                      std::span(inputs_).subspan(call.first_input, call.input_count),
                      std::span(outputs_).subspan(call.first_output, call.output_count), *queue_);
  } catch (Error& error) {
    addNode(error, call);
    throw;
  }
}

void BoundRun::addNode(Error& error, const Call& call) const {
  const std::string& node = (*node_names_)[call.nodes.back()];  // some kernels name it themselves
  if (!error.message().starts_with(node)) error.addContext(node);
}

void BoundRun::placeFaults(DataFault* faults) {
  for (Call& call : calls_) {
    if (call.kernel != nullptr && call.kernel->recordsFaults()) call.fault = faults++;
  }
}

void BoundRun::throwFirst(std::span<const DataFault> faults) const {
  size_t next = 0;
  for (const Call& call : calls_) {
    if (call.kernel == nullptr || !call.kernel->recordsFaults()) continue;
    const DataFault& fault = faults[next++];
    if (fault.found == 0) continue;
    try {
      call.kernel->throwFault(fault);
    } catch (Error& error) {
      addNode(error, call);
      throw;
    }
  }
}

Graph runnableGraph(Graph graph, const KernelRegistry& kernels) {
  const auto is_function_to_inline = [&](const Node& node) {
    return !kernels.has(node.domain, node.op_type) &&
           graph.findFunction(node.domain, node.op_type, node.overload) != nullptr;
  };
  if (std::any_of(graph.nodes.begin(), graph.nodes.end(), is_function_to_inline)) {
    inlineFunctions(graph, kInlineLimit,
                    [&](const Function& function) { return kernels.has(function.domain, function.name); });
    inferShapes(graph);
  }
  const auto has_kernel = [&](const Node& node) {
    return kernels.has(node.domain, node.op_type) || kernels::isNameOnly(graph, node);
  };
  const bool is_complete = std::all_of(graph.values.begin(), graph.values.end(), kernels::hasStaticShape);
  if (!is_complete || !std::all_of(graph.nodes.begin(), graph.nodes.end(), has_kernel)) {
    PrepareOptions options;
    options.supported = [&](const Node& node) {
      return kernels.has(node.domain, node.op_type) || isView(node);
    };
    graph = prepareModel(graph, options);
  }
  foldTransposes(graph, kernels);
  return graph;
}

// From a graph to calls, in three steps:
//   once           steps: a kernel each, of one node, or of several that run as one; and for every value its
//                  *root*: the value whose bytes it names (memoryRoots). What only one step makes and reads
//                  is nowhere
//   per aliasing   a Layout: where each root's bytes are. It depends on which inputs and outputs are one
//                  buffer, as that decides what may be overwritten; microbatches whose buffers coincide in
//                  the same way share a Layout (Planner)
//   per bind       a BoundRun: the Layout with real addresses
// All values of a root have its Storage, so views cost nothing. Initializers that are inputs, too, are
// defaults and have no constant: the bound buffer decides.
//   y = Reshape(x), z = MatMul(y, w): the root of y is x; the run has one call, which reads x's bytes.
CompiledSubgraph::CompiledSubgraph(Graph graph, std::string name, const KernelRegistry& kernels,
                                   Device& device, DeviceQueue* queue, Fusion fusion)
    : name_(std::move(name)),
      own_queue_(queue == nullptr ? device.makeQueue() : nullptr),
      queue_(queue == nullptr ? own_queue_.get() : queue) {
  try {
    graph_ = runnableGraph(std::move(graph), kernels);
    roots_ = kernels::memoryRoots(graph_);
    placeConstants();
    makeSteps(kernels, device.isHostMemory() ? fusion : Fusion::kNone);
    findRootUses();
  } catch (Error& error) {
    error.addContext(fmt::format("subgraph '{}'", name_));
    throw;
  }
}

void CompiledSubgraph::placeConstants() {
  constant_offsets_.assign(graph_.values.size(), 0);
  is_input_.assign(graph_.values.size(), false);
  for (const ValueId input : graph_.inputs) is_input_[input.index()] = true;
  size_t bytes = 0;
  for (const auto& [id, initializer] : graph_.initializers) {
    if (is_input_[id.index()]) continue;  // its default; the bound buffer decides
    const auto* constant = std::get_if<Constant>(&initializer);
    if (constant == nullptr) {
      fail(ErrorCode::kBadModel,
           "'{}' is a weight in a file, but not an input of the subgraph: a program binds weights as buffers",
           graph_.value(id).name);
    }
    constant_offsets_[id.index()] = bytes;
    bytes += alignedBytes(std::ssize(constant->bytes), queue_->device().alignment());
  }
  constants_ = queue_->device().allocate(bytes);
  for (const auto& [id, initializer] : graph_.initializers) {
    if (is_input_[id.index()]) continue;
    const auto& constant = std::get<Constant>(initializer);
    queue_->upload(constant.bytes.data(), constants_.bytes.data() + constant_offsets_[id.index()],
                   constant.bytes.size());
  }
  if (own_queue_) own_queue_->synchronize();
}

KernelSpec CompiledSubgraph::kernelSpec(const Node& node) const {
  KernelSpec spec;
  spec.node = &node;
  const auto describe = [&](ValueId id) {
    if (!id.valid()) return TensorSpec{};
    const bool is_input = is_input_[root(id).index()];
    return TensorSpec{graph_.dataType(id), graph_.shape(id), is_input ? nullptr : graph_.constant(id)};
  };
  for (const ValueId id : node.inputs) spec.inputs.push_back(describe(id));
  for (const ValueId id : node.outputs) spec.outputs.push_back(describe(id));
  return spec;
}

void CompiledSubgraph::checkShapes(size_t node) const {
  for (const std::vector<ValueId>* ids : {&graph_.nodes[node].inputs, &graph_.nodes[node].outputs}) {
    for (const ValueId id : *ids) {
      if (!id.valid() || kernels::hasStaticShape(graph_.value(id))) continue;
      fail(ErrorCode::kBadModel, "{}: '{}' has no static shape", node_names_[node], graph_.value(id).name);
    }
  }
}

void CompiledSubgraph::makeSteps(const KernelRegistry& kernels, Fusion fusion) {
  for (const Node& node : graph_.nodes) node_names_.push_back(describeNode(node));
  std::vector<kernels::FusedGroup> groups;
  if (fusion == Fusion::kElementwise) groups = kernels::findFusedGroups(graph_, roots_);
  std::map<size_t, const kernels::FusedGroup*> group_of;
  for (const kernels::FusedGroup& group : groups) {
    for (const size_t n : group.nodes) group_of[n] = &group;
  }
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    if (kernels::isNameOnly(graph_, node)) continue;
    checkShapes(n);
    const auto found = group_of.find(n);
    if (found == group_of.end()) {
      steps_.push_back({kernels.create(kernelSpec(node)), {n}, node.inputs, node.outputs});
    } else if (const kernels::FusedGroup& group = *found->second; group.nodes.back() == n) {
      steps_.push_back({kernels::makeFusedKernel(graph_, group, roots_, kernels), group.nodes, group.inputs,
                        group.outputs});
    }
  }
}

const CompiledSubgraph::Layout& CompiledSubgraph::layout(const Aliasing& aliasing) {
  const auto found = layouts_.find(aliasing);
  if (found != layouts_.end()) return found->second;
  PIPESHARD_CHECK(aliasing.inputs.size() == inputCount() && aliasing.outputs.size() == outputCount(),
                  "subgraph '{}'", name_);
  return layouts_.emplace(aliasing, Planner(*this, aliasing).plan()).first->second;
}

const RunMemory& CompiledSubgraph::memory(const Aliasing& aliasing) { return layout(aliasing).memory; }

size_t CompiledSubgraph::copyCount(const Aliasing& aliasing) { return layout(aliasing).copies.size(); }

void CompiledSubgraph::findRootUses() {
  root_uses_.assign(graph_.values.size(), {});
  const auto use = [&](ValueId id) -> RootUse& { return root_uses_[root(id).index()]; };
  for (ValueId output : graph_.outputs) {
    if (output.valid()) ++use(output).outputs;
  }
  for (size_t s = 0; s < steps_.size(); ++s) {
    for (const ValueId input : steps_[s].inputs) {
      if (input.valid()) use(input).read = true;
    }
    for (size_t position = 0; position < steps_[s].outputs.size(); ++position) {
      const ValueId made = steps_[s].outputs[position];
      if (!made.valid()) continue;
      root_uses_[made.index()].maker = static_cast<int>(s);
      root_uses_[made.index()].position = static_cast<int>(position);
    }
  }
}

bool CompiledSubgraph::mayAccumulate(size_t output) const {
  const RootUse& use = root_uses_[root(graph_.outputs.at(output)).index()];
  return use.outputs == 1 && !use.read && use.maker >= 0 &&
         steps_[use.maker].kernel->mayAccumulate(use.position);
}

std::vector<GroupId> CompiledSubgraph::collectiveGroups() const {
  std::vector<GroupId> groups;
  for (const Step& step : steps_) {
    const GroupId group = step.kernel->collectiveGroup();
    if (group.valid()) groups.push_back(group);
  }
  return groups;
}

bool CompiledSubgraph::recordsFaults() const {
  return std::ranges::any_of(steps_, [](const Step& step) { return step.kernel->recordsFaults(); });
}

size_t CompiledSubgraph::collectiveBytes() const {
  size_t most = 0;
  for (const Step& step : steps_) most = std::max(most, step.kernel->collectiveBytes());
  return most;
}

void CompiledSubgraph::checkGroupSizes(const IdVector<GroupId, std::vector<RankId>>& groups) const {
  for (const Step& step : steps_) {
    const size_t members = step.kernel->collectiveMembers();
    if (members == 0) continue;
    const GroupId group = step.kernel->collectiveGroup();
    const size_t size = groups.at(group).size();
    if (members == size) continue;
    fail(ErrorCode::kConfiguration,
         "subgraph '{}': {} is cut for {} members, but group {} of the program has {}; plan again", name_,
         node_names_[step.nodes.back()], members, group, size);
  }
}

void CompiledSubgraph::requireCommunicator(const Collectives* collectives) const {
  const size_t count = collectiveGroups().size();
  if (count == 0 || collectives != nullptr) return;
  fail(ErrorCode::kConfiguration,
       "subgraph '{}' has {} collective node(s), but there is no communicator: it runs only beside the "
       "other ranks of its plan",
       name_, count);
}

struct CompiledSubgraph::Addresses {
  std::span<std::byte* const> inputs;
  std::span<std::byte* const> outputs;
  std::byte* constants;
  std::byte* workspace;
  const std::vector<int64_t>& temporaries;

  std::byte* of(const Storage& storage) const {
    switch (storage.kind) {
      case Storage::Kind::kInput: return inputs[storage.index];
      case Storage::Kind::kOutput: return outputs[storage.index];
      case Storage::Kind::kConstant: return constants + storage.index;
      case Storage::Kind::kTemporary: return workspace + temporaries[storage.index];
      case Storage::Kind::kNone: break;
    }
    return nullptr;
  }
};

BoundRun CompiledSubgraph::bind(const Aliasing& aliasing, std::span<std::byte* const> inputs,
                                std::span<std::byte* const> outputs, std::byte* workspace,
                                Collectives* collectives, const std::vector<bool>& adds, DeviceQueue* queue,
                                const std::vector<int64_t>* temporaries) {
  requireCommunicator(collectives);
  const Layout& plan = layout(aliasing);
  if (temporaries == nullptr) temporaries = &plan.memory.apart.offsets;
  const Addresses addresses{inputs, outputs, constants_.bytes.data(), workspace, *temporaries};
  const auto value_address = [&](ValueId id) {
    return id.valid() ? addresses.of(plan.storage[root(id).index()]) : nullptr;
  };

  BoundRun run;
  run.node_names_ = &node_names_;
  run.graph_ = &graph_;
  run.collectives_ = collectives;
  run.queue_ = queue == nullptr ? queue_ : queue;
  for (size_t s = 0; s < steps_.size(); ++s) {
    const Step& step = steps_[s];
    BoundRun::Call call;
    call.kernel = step.kernel.get();
    call.first_input = run.inputs_.size();
    call.input_count = step.inputs.size();
    call.first_output = run.outputs_.size();
    call.output_count = step.outputs.size();
    call.nodes = step.nodes;
    for (const ValueId id : step.inputs) run.inputs_.push_back(value_address(id));
    for (size_t o = 0; o < step.outputs.size(); ++o) {
      const ValueId id = step.outputs[o];
      run.outputs_.push_back(value_address(id));
      if (adds.empty() || !id.valid()) continue;
      const Storage& place = plan.storage[root(id).index()];
      if (place.kind == Storage::Kind::kOutput && adds.at(place.index)) call.accumulate |= uint32_t{1} << o;
    }
    if (plan.kernel_workspace[s] != Planner::kNoTemporary)
      call.workspace = workspace + (*temporaries)[plan.kernel_workspace[s]];
    run.fault_count_ += call.kernel->recordsFaults() ? 1 : 0;
    run.calls_.push_back(call);
  }
  for (const Copy& copy : plan.copies) {
    BoundRun::Call call;
    call.first_input = run.inputs_.size();
    call.first_output = run.outputs_.size();
    call.bytes = copy.bytes;
    if (!run.calls_.empty()) call.nodes = run.calls_.back().nodes;
    run.inputs_.push_back(addresses.of(copy.from));
    run.outputs_.push_back(addresses.of(copy.to));
    run.calls_.push_back(call);
  }
  return run;
}

}  // namespace pipeshard
