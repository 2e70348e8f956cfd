#include "runtime/execute/subgraph.h"

#include <algorithm>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/prepare/inference.h"
#include "onnx_import/prepare/inline_functions.h"
#include "onnx_import/prepare/prepare.h"
#include "runtime/execute/fold_transposes.h"
#include "runtime/execute/memory_plan.h"
#include "runtime/execute/subgraph_planner.h"

namespace pipeshard {
namespace {

constexpr uint64_t kInlineLimit = 2'000'000;

bool hasStaticShape(const Value& value) {
  return value.data_type != DataType::kUndefined && value.shape && isStatic(*value.shape);
}

// Its output is another name for its first input's bytes.
bool isNameOnly(const Graph& graph, const Node& node) {
  if (!isView(node)) return false;
  if (node.inputs.empty() || node.outputs.empty() || !node.inputs[0].valid() || !node.outputs[0].valid())
    return false;
  const Value& from = graph.value(node.inputs[0]);
  const Value& to = graph.value(node.outputs[0]);
  if (!hasStaticShape(from) || !hasStaticShape(to)) return false;
  return from.data_type == to.data_type && elementCount(*from.shape) == elementCount(*to.shape);
}

}  // namespace

void BoundRun::run(std::atomic<uint64_t>& progress, NodeObserver* observer, NanFinder* finder) const {
  for (const Call& call : calls_) {
    progress.fetch_add(1, std::memory_order_relaxed);
    if (observer != nullptr && !observer->beginNode(call.node, *queue_)) continue;
    perform(call);
    if (finder != nullptr && call.kernel != nullptr) look(call, *finder);
    if (observer != nullptr) observer->endNode(call.node, *queue_);
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
    finder.lookAtNode(*graph_, graph_->nodes[call.node],
                      std::span(inputs_).subspan(call.first_input, call.input_count),
                      std::span(outputs_).subspan(call.first_output, call.output_count), *queue_);
  } catch (Error& error) {
    addNode(error, call);
    throw;
  }
}

void BoundRun::addNode(Error& error, const Call& call) const {
  const std::string& node = (*node_names_)[call.node];  // some kernels name it themselves
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
    return kernels.has(node.domain, node.op_type) || isNameOnly(graph, node);
  };
  const bool is_complete = std::all_of(graph.values.begin(), graph.values.end(), hasStaticShape);
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
//   once           kernels, and for every value its *root*: the value whose bytes it names (findViews)
//   per aliasing   a Layout: where each root's bytes are. It depends on which inputs and outputs are one
//                  buffer, as that decides what may be overwritten; microbatches whose buffers coincide in
//                  the same way share a Layout (Planner)
//   per bind       a BoundRun: the Layout with real addresses
// All values of a root have its Storage, so views cost nothing. Initializers that are inputs, too, are
// defaults and have no constant: the bound buffer decides.
//   y = Reshape(x), z = MatMul(y, w): the root of y is x; the run has one call, which reads x's bytes.
CompiledSubgraph::CompiledSubgraph(Graph graph, std::string name, const KernelRegistry& kernels,
                                   Device& device, DeviceQueue* queue)
    : name_(std::move(name)),
      own_queue_(queue == nullptr ? device.makeQueue() : nullptr),
      queue_(queue == nullptr ? own_queue_.get() : queue) {
  try {
    graph_ = runnableGraph(std::move(graph), kernels);
    findViews();
    placeConstants();
    createKernels(kernels);
  } catch (Error& error) {
    error.addContext(fmt::format("subgraph '{}'", name_));
    throw;
  }
}

void CompiledSubgraph::findViews() {
  roots_.resize(graph_.values.size());
  for (size_t v = 0; v < roots_.size(); ++v) roots_[v] = ValueId(v);
  for (const Node& node : graph_.nodes) {
    if (isNameOnly(graph_, node)) roots_[node.outputs[0].index()] = root(node.inputs[0]);
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

void CompiledSubgraph::createKernels(const KernelRegistry& kernels) {
  for (const Node& node : graph_.nodes) {
    node_names_.push_back(describeNode(node));
    if (isNameOnly(graph_, node)) {
      kernels_.push_back(nullptr);
      continue;
    }
    for (const std::vector<ValueId>* ids : {&node.inputs, &node.outputs}) {
      for (const ValueId id : *ids) {
        if (id.valid() && !hasStaticShape(graph_.value(id))) {
          fail(ErrorCode::kBadModel, "{}: '{}' has no static shape", node_names_.back(),
               graph_.value(id).name);
        }
      }
    }
    kernels_.push_back(kernels.create(kernelSpec(node)));
  }
  findRootUses();
}

const CompiledSubgraph::Layout& CompiledSubgraph::layout(const Aliasing& aliasing) {
  const auto found = layouts_.find(aliasing);
  if (found != layouts_.end()) return found->second;
  PIPESHARD_CHECK(aliasing.inputs.size() == inputCount() && aliasing.outputs.size() == outputCount(),
                  "subgraph '{}'", name_);
  return layouts_.emplace(aliasing, Planner(*this, aliasing).plan()).first->second;
}

int64_t CompiledSubgraph::workspaceBytes(const Aliasing& aliasing) {
  return layout(aliasing).workspace_bytes;
}

size_t CompiledSubgraph::copyCount(const Aliasing& aliasing) { return layout(aliasing).copies.size(); }

void CompiledSubgraph::findRootUses() {
  root_uses_.assign(graph_.values.size(), {});
  const auto use = [&](ValueId id) -> RootUse& { return root_uses_[root(id).index()]; };
  for (ValueId output : graph_.outputs) {
    if (output.valid()) ++use(output).outputs;
  }
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    if (kernels_[n] == nullptr) continue;
    const Node& node = graph_.nodes[n];
    for (ValueId input : node.inputs) {
      if (input.valid()) use(input).read = true;
    }
    for (size_t position = 0; position < node.outputs.size(); ++position) {
      if (!node.outputs[position].valid()) continue;
      RootUse& made = root_uses_[node.outputs[position].index()];
      made.maker = static_cast<int>(n);
      made.position = static_cast<int>(position);
    }
  }
}

bool CompiledSubgraph::mayAccumulate(size_t output) const {
  const RootUse& use = root_uses_[root(graph_.outputs.at(output)).index()];
  return use.outputs == 1 && !use.read && use.maker >= 0 && kernels_[use.maker]->mayAccumulate(use.position);
}

std::vector<GroupId> CompiledSubgraph::collectiveGroups() const {
  std::vector<GroupId> groups;
  for (const auto& kernel : kernels_) {
    const GroupId group = kernel == nullptr ? GroupId() : kernel->collectiveGroup();
    if (group.valid()) groups.push_back(group);
  }
  return groups;
}

bool CompiledSubgraph::recordsFaults() const {
  return std::ranges::any_of(kernels_,
                             [](const auto& kernel) { return kernel != nullptr && kernel->recordsFaults(); });
}

size_t CompiledSubgraph::collectiveBytes() const {
  size_t most = 0;
  for (const auto& kernel : kernels_) {
    if (kernel != nullptr) most = std::max(most, kernel->collectiveBytes());
  }
  return most;
}

void CompiledSubgraph::checkGroupSizes(const IdVector<GroupId, std::vector<RankId>>& groups) const {
  for (size_t n = 0; n < kernels_.size(); ++n) {
    const size_t members = kernels_[n] == nullptr ? 0 : kernels_[n]->collectiveMembers();
    if (members == 0) continue;
    const GroupId group = kernels_[n]->collectiveGroup();
    const size_t size = groups.at(group).size();
    if (members == size) continue;
    fail(ErrorCode::kConfiguration,
         "subgraph '{}': {} is cut for {} members, but group {} of the program has {}; plan again", name_,
         node_names_[n], members, group, size);
  }
}

BoundRun CompiledSubgraph::bind(const Aliasing& aliasing, std::span<std::byte* const> inputs,
                                std::span<std::byte* const> outputs, std::byte* workspace,
                                Collectives* collectives, const std::vector<bool>& adds, DeviceQueue* queue) {
  if (const size_t count = collectiveGroups().size(); count > 0 && collectives == nullptr) {
    fail(ErrorCode::kConfiguration,
         "subgraph '{}' has {} collective node(s), but there is no communicator: it runs only beside the "
         "other ranks of its plan",
         name_, count);
  }
  const Layout& plan = layout(aliasing);
  const auto address = [&](const Storage& storage) -> std::byte* {
    switch (storage.kind) {
      case Storage::Kind::kInput: return inputs[storage.index];
      case Storage::Kind::kOutput: return outputs[storage.index];
      case Storage::Kind::kConstant: return constants_.bytes.data() + storage.index;
      case Storage::Kind::kTemporary: return workspace + plan.temporaries[storage.index].offset;
      case Storage::Kind::kNone: break;
    }
    return nullptr;
  };
  const auto value_address = [&](ValueId id) {
    return id.valid() ? address(plan.storage[root(id).index()]) : nullptr;
  };

  BoundRun run;
  run.node_names_ = &node_names_;
  run.graph_ = &graph_;
  run.collectives_ = collectives;
  run.queue_ = queue == nullptr ? queue_ : queue;
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    if (kernels_[n] == nullptr) continue;
    const Node& node = graph_.nodes[n];
    BoundRun::Call call;
    call.kernel = kernels_[n].get();
    call.first_input = run.inputs_.size();
    call.input_count = node.inputs.size();
    call.first_output = run.outputs_.size();
    call.output_count = node.outputs.size();
    call.node = n;
    for (const ValueId id : node.inputs) run.inputs_.push_back(value_address(id));
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const ValueId id = node.outputs[o];
      run.outputs_.push_back(value_address(id));
      if (adds.empty() || !id.valid()) continue;
      const Storage& place = plan.storage[root(id).index()];
      if (place.kind == Storage::Kind::kOutput && adds.at(place.index)) call.accumulate |= uint32_t{1} << o;
    }
    if (plan.kernel_workspace[n] != Planner::kNoTemporary)
      call.workspace = workspace + plan.temporaries[plan.kernel_workspace[n]].offset;
    run.fault_count_ += call.kernel->recordsFaults() ? 1 : 0;
    run.calls_.push_back(call);
  }
  for (const Copy& copy : plan.copies) {
    BoundRun::Call call;
    call.first_input = run.inputs_.size();
    call.first_output = run.outputs_.size();
    call.bytes = copy.bytes;
    if (!run.calls_.empty()) call.node = run.calls_.back().node;
    run.inputs_.push_back(address(copy.from));
    run.outputs_.push_back(address(copy.to));
    run.calls_.push_back(call);
  }
  return run;
}

}  // namespace pipeshard
