#include "runtime/kernels/fusion/fused_kernel.h"

#include <omp.h>

#include <algorithm>
#include <map>

#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

// A few tiles of float32 fit the second cache of any processor, and a kernel's call costs little beside one.
constexpr int64_t kTileElements = 8192;

// How a shape is cut: `axis` into blocks of `block` indices, the last of them of `last`.
struct Tiling {
  Shape shape;
  size_t axis = 0;
  int64_t outer = 1, inner = 1;  // elements of the axes before and behind
  int64_t block = 1, blocks = 1, last = 1;

  explicit Tiling(const Shape& whole) : shape(whole) {
    inner = elementCount(shape) / shape[0];
    while (inner > kTileElements && axis + 1 < shape.size()) {
      outer *= shape[axis];
      inner /= shape[++axis];
    }
    const int64_t size = shape[axis];
    blocks = std::clamp<int64_t>((size * inner + kTileElements - 1) / kTileElements, 1, size);
    block = (size + blocks - 1) / blocks;
    blocks = (size + block - 1) / block;
    last = size - block * (blocks - 1);
  }

  int64_t tiles() const { return outer * blocks; }
  bool isLast(int64_t tile) const { return tile % blocks == blocks - 1; }
  int64_t firstElement(int64_t tile) const {
    return (tile / blocks * shape[axis] + tile % blocks * block) * inner;
  }
  // Of an operand that has as many elements as the group.
  Shape tileShape(int64_t indices) const {
    Shape result{indices};
    result.insert(result.end(), shape.begin() + axis + 1, shape.end());
    return result;
  }
  // Of one that is repeated.
  Shape tileShapeOf(const Shape& operand, int64_t indices) const {
    Shape result = padded(operand);
    result.erase(result.begin(), result.begin() + axis);
    if (result[0] != 1) result[0] = indices;
    return result;
  }
  // Where it begins, by tile.
  std::vector<int64_t> firstElementsOf(const Shape& operand) const {
    const Shape sizes = padded(operand);
    std::vector<int64_t> result(tiles());
    for (int64_t tile = 0; tile < tiles(); ++tile) {
      int64_t stride = 1;
      for (size_t k = axis + 1; k < sizes.size(); ++k) stride *= sizes[k];
      result[tile] = sizes[axis] == 1 ? 0 : tile % blocks * block * stride;
      stride *= sizes[axis];
      int64_t rest = tile / blocks;
      for (size_t k = axis; k-- > 0; rest /= shape[k]) {
        if (sizes[k] != 1) result[tile] += rest % shape[k] * stride;
        stride *= sizes[k];
      }
    }
    return result;
  }

 private:
  Shape padded(const Shape& operand) const {
    Shape result(shape.size() - operand.size(), 1);
    result.insert(result.end(), operand.begin(), operand.end());
    return result;
  }
};

// Where an operand of a node is.
struct Operand {
  enum class Kind : uint8_t { kAbsent, kInput, kOutput, kScratch };
  Kind kind = Kind::kAbsent;
  size_t index = 0;               // of the group's input or output; bytes into a thread's workspace
  int64_t element_bytes = 0;      // 0: the same for all tiles
  std::vector<int64_t> starts{};  // elements, by tile, where it is repeated; else as the tile's
};

struct Step {
  std::unique_ptr<Kernel> whole;  // for tiles of `block` indices
  std::unique_ptr<Kernel> last;   // for those of `last`; nullptr: they are alike
  std::vector<Operand> inputs;
  Operand output;
};

class FusedKernel : public Kernel {
 public:
  FusedKernel(Tiling tiling, std::vector<Step> steps, std::vector<std::pair<int, int>> in_place,
              size_t scratch_bytes)
      : tiling_(std::move(tiling)), steps_(std::move(steps)), in_place_(std::move(in_place)) {
    size_t workspace = 0;
    for (const Step& step : steps_) {
      workspace = std::max(workspace, step.whole->workspaceBytes());
      most_inputs_ = std::max(most_inputs_, step.inputs.size());
    }
    kernel_workspace_ = scratch_bytes;
    bytes_of_thread_ = scratch_bytes + alignedPart(workspace);
    const int64_t elements = tiling_.outer * tiling_.shape[tiling_.axis] * tiling_.inner;
    const int64_t useful = (elements + kBlockElements - 1) / kBlockElements;
    threads_ = std::min({int64_t{omp_get_max_threads()}, useful, tiling_.tiles()});
  }

  size_t workspaceBytes() const override { return bytes_of_thread_ * threads_; }

  bool mayRunInPlace(int input, int output) const override {
    return std::ranges::find(in_place_, std::pair(input, output)) != in_place_.end();
  }

  void run(const KernelArguments& arguments) override {
    forEachBlock(threads_, true, [&](int64_t thread) {
      std::byte* workspace = static_cast<std::byte*>(arguments.workspace) + thread * bytes_of_thread_;
      std::vector<const void*> inputs(most_inputs_);
      const int64_t end = (thread + 1) * tiling_.tiles() / threads_;
      for (int64_t tile = thread * tiling_.tiles() / threads_; tile < end; ++tile)
        runTile(arguments, tile, workspace, inputs);
    });
  }

 private:
  void runTile(const KernelArguments& arguments, int64_t tile, std::byte* workspace,
               std::vector<const void*>& inputs) const {
    const int64_t first = tiling_.firstElement(tile);
    const bool is_last = tiling_.isLast(tile);
    const auto place = [&](const Operand& operand) -> const std::byte* {
      const int64_t start = operand.starts.empty() ? first : operand.starts[tile];
      switch (operand.kind) {
        case Operand::Kind::kInput:
          return static_cast<const std::byte*>(arguments.inputs[operand.index]) +
                 start * operand.element_bytes;
        case Operand::Kind::kOutput:
          return static_cast<const std::byte*>(arguments.outputs[operand.index]) +
                 start * operand.element_bytes;
        case Operand::Kind::kScratch: return workspace + operand.index;
        case Operand::Kind::kAbsent: break;
      }
      return nullptr;
    };
    for (const Step& step : steps_) {
      for (size_t i = 0; i < step.inputs.size(); ++i) inputs[i] = place(step.inputs[i]);
      void* output = const_cast<std::byte*>(place(step.output));
      KernelArguments own;
      own.inputs = {inputs.data(), step.inputs.size()};
      own.outputs = {&output, 1};
      own.workspace = workspace + kernel_workspace_;
      own.queue = arguments.queue;
      (is_last && step.last ? step.last : step.whole)->run(own);
    }
  }

  Tiling tiling_;
  std::vector<Step> steps_;
  std::vector<std::pair<int, int>> in_place_;
  size_t kernel_workspace_ = 0, bytes_of_thread_ = 0;
  size_t most_inputs_ = 0;
  int64_t threads_ = 1;
};

// Places of a thread's workspace, of one tile each, in use until their last reader has read.
class Scratch {
 public:
  size_t take(size_t bytes) {
    for (size_t i = 0; i < free_.size(); ++i) {
      if (free_[i].second != bytes) continue;
      const size_t offset = free_[i].first;
      free_.erase(free_.begin() + i);
      return offset;
    }
    const size_t offset = total_;
    total_ += bytes;
    return offset;
  }
  void giveBack(size_t offset, size_t bytes) { free_.emplace_back(offset, bytes); }
  size_t bytes() const { return total_; }

 private:
  std::vector<std::pair<size_t, size_t>> free_;
  size_t total_ = 0;
};

class Maker {
 public:
  Maker(const Graph& graph, const FusedGroup& group, std::span<const ValueId> roots,
        const KernelRegistry& kernels)
      : graph_(graph),
        group_(group),
        roots_(roots),
        kernels_(kernels),
        tiling_(group.shape),
        count_(elementCount(group.shape)) {
    for (size_t i = 0; i < group.inputs.size(); ++i) places_[group.inputs[i]] = {Operand::Kind::kInput, i};
    for (size_t o = 0; o < group.outputs.size(); ++o) places_[group.outputs[o]] = {Operand::Kind::kOutput, o};
    for (size_t s = 0; s < group.nodes.size(); ++s) {
      for (const ValueId id : graph.nodes[group.nodes[s]].inputs) {
        if (id.valid()) last_reader_[root(id)] = s;
      }
    }
  }

  std::unique_ptr<Kernel> make() {
    std::vector<Step> steps;
    for (size_t s = 0; s < group_.nodes.size(); ++s) steps.push_back(makeStep(s));
    std::vector<std::pair<int, int>> in_place;
    for (size_t o = 0; o < group_.outputs.size(); ++o) addInPlace(o, steps, in_place);
    return std::make_unique<FusedKernel>(tiling_, std::move(steps), std::move(in_place), scratch_.bytes());
  }

 private:
  ValueId root(ValueId id) const { return roots_[id.index()]; }
  const Node& nodeOf(size_t step) const { return graph_.nodes[group_.nodes[step]]; }

  Step makeStep(size_t s) {
    const Node& node = nodeOf(s);
    Step step;
    step.whole = kernelFor(node, tiling_.block);
    if (tiling_.last != tiling_.block) step.last = kernelFor(node, tiling_.last);
    for (const ValueId id : node.inputs) step.inputs.push_back(operand(id));
    const ValueId made = node.outputs[0];
    if (!places_.contains(made)) {
      const size_t bytes = tileBytes(made);
      const std::optional<size_t> taken = placeOfInput(s, *step.whole, bytes);
      places_[made] = {Operand::Kind::kScratch, taken ? *taken : scratch_.take(bytes)};
    }
    step.output = operand(made);
    giveBackInputs(s, step.output);
    return step;
  }

  size_t tileBytes(ValueId id) const {
    return alignedPart(tiling_.block * tiling_.inner * dataTypeSize(graph_.dataType(id)));
  }

  // Of an operand in the workspace that nobody reads later and the result may overwrite.
  std::optional<size_t> placeOfInput(size_t s, const Kernel& kernel, size_t bytes) const {
    const Node& node = nodeOf(s);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!node.inputs[i].valid() || !kernel.mayRunInPlace(i, 0)) continue;
      const ValueId from = root(node.inputs[i]);
      const Operand& place = places_.at(from);
      if (place.kind == Operand::Kind::kScratch && last_reader_.at(from) == s && tileBytes(from) == bytes &&
          std::ranges::count(node.inputs, from, [&](ValueId id) { return id.valid() ? root(id) : id; }) == 1)
        return place.index;
    }
    return std::nullopt;
  }

  void giveBackInputs(size_t s, const Operand& output) {
    std::vector<ValueId> done;
    for (const ValueId id : nodeOf(s).inputs) {
      if (!id.valid() || std::ranges::find(done, root(id)) != done.end()) continue;
      const Operand& place = places_.at(root(id));
      done.push_back(root(id));
      if (place.kind != Operand::Kind::kScratch || last_reader_.at(root(id)) != s) continue;
      if (output.kind == Operand::Kind::kScratch && output.index == place.index) continue;
      scratch_.giveBack(place.index, tileBytes(root(id)));
    }
  }

  Operand operand(ValueId id) const {
    if (!id.valid()) return {};
    Operand result = places_.at(root(id));
    const int64_t own = elementCount(graph_.shape(id));
    result.element_bytes = own == 1 && count_ != 1 ? 0 : dataTypeSize(graph_.dataType(id));
    if (own != 1 && own != count_) result.starts = tiling_.firstElementsOf(graph_.shape(id));
    return result;
  }

  std::unique_ptr<Kernel> kernelFor(const Node& node, int64_t indices) const {
    KernelSpec spec;
    spec.node = &node;
    const auto describe = [&](ValueId id) {
      if (!id.valid()) return TensorSpec{};
      const Shape& shape = graph_.shape(id);
      const int64_t own = elementCount(shape);
      if (own == count_) return TensorSpec{graph_.dataType(id), tiling_.tileShape(indices), nullptr};
      if (own == 1) return TensorSpec{graph_.dataType(id), {}, isGiven(id) ? nullptr : graph_.constant(id)};
      return TensorSpec{graph_.dataType(id), tiling_.tileShapeOf(shape, indices), nullptr};
    };
    for (const ValueId id : node.inputs) spec.inputs.push_back(describe(id));
    for (const ValueId id : node.outputs) spec.outputs.push_back(describe(id));
    return kernels_.create(spec);
  }

  // The bound buffer decides what it is, whatever the graph has for it.
  bool isGiven(ValueId id) const {
    return std::ranges::any_of(graph_.inputs, [&](ValueId given) { return given == root(id); });
  }

  // Output `o` may take the place of an input that no node reads behind the one that makes it. That one may
  // read it if its kernel runs in place.
  void addInPlace(size_t o, const std::vector<Step>& steps, std::vector<std::pair<int, int>>& pairs) const {
    const ValueId made = group_.outputs[o];
    size_t maker = 0;
    while (root(nodeOf(maker).outputs[0]) != made) ++maker;
    for (size_t i = 0; i < group_.inputs.size(); ++i) {
      const ValueId input = group_.inputs[i];
      if (elementCount(graph_.shape(input)) != count_ || last_reader_.at(input) > maker ||
          dataTypeSize(graph_.dataType(input)) != dataTypeSize(graph_.dataType(made)))
        continue;
      bool may = true;
      const std::vector<ValueId>& read = nodeOf(maker).inputs;
      for (size_t k = 0; k < read.size(); ++k) {
        if (read[k].valid() && root(read[k]) == input) may = may && steps[maker].whole->mayRunInPlace(k, 0);
      }
      if (may) pairs.emplace_back(i, o);
    }
  }

  const Graph& graph_;
  const FusedGroup& group_;
  std::span<const ValueId> roots_;
  const KernelRegistry& kernels_;
  Tiling tiling_;
  int64_t count_;
  std::map<ValueId, Operand> places_;      // by root
  std::map<ValueId, size_t> last_reader_;  // by root: step
  Scratch scratch_;
};

}  // namespace

std::unique_ptr<Kernel> makeFusedKernel(const Graph& graph, const FusedGroup& group,
                                        std::span<const ValueId> roots, const KernelRegistry& kernels) {
  return Maker(graph, group, roots, kernels).make();
}

}  // namespace pipeshard::kernels
