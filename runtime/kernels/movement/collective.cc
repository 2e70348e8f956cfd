// Collectives inside a subgraph. A communicator moves equally long dense blocks, one per member; the members'
// parts of an axis may be uneven and lie apart, so that the kernels pack them into blocks as long as the
// longest, and unpack what they get.
#include <algorithm>

#include "ir/base/ids_format.h"
#include "runtime/kernels/base/copy_elements.h"
#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/strided_copy.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

using Kind = CollectiveCall::Kind;

// The ranges of an axis of a tensor, one per member, as blocks of `block` elements each: range i, dense, then
// zeros.
class Blocks {
 public:
  Blocks() = default;
  Blocks(const Shape& tensor, size_t axis, const std::vector<int64_t>& sizes, size_t block) : block_(block) {
    const Shape strides = rowMajorStrides(tensor);
    int64_t begin = 0;
    int64_t at = 0;
    for (int64_t size : sizes) {
      Shape part = tensor;
      part[axis] = size;
      pack_.push_back(
          makeStridedCopy(copyAxes(part, strides, rowMajorStrides(part)), begin * strides[axis], at));
      unpack_.push_back(
          makeStridedCopy(copyAxes(part, rowMajorStrides(part), strides), at, begin * strides[axis]));
      filled_.push_back(elementCount(part));
      begin += size;
      at += block;
    }
    const bool even =
        std::all_of(filled_.begin(), filled_.end(), [&](size_t count) { return count == block; });
    is_tensor_ = even && (sizes.size() == 1 || splitAtAxis(tensor, axis).outer == 1);
  }

  // The tensor's memory is that of the blocks already.
  bool isTensor() const { return is_tensor_; }
  size_t count() const { return is_tensor_ ? 0 : block_ * filled_.size(); }

  template <typename T>
  void pack(DeviceQueue* queue, const T* tensor, T* blocks) const {
    for (size_t i = 0; i < pack_.size(); ++i) {
      copyElements(queue, pack_[i], bitsOf(tensor), bitsOf(blocks));
      fillElements(queue, static_cast<int64_t>(block_ - filled_[i]), Bits<T>(0),
                   bitsOf(blocks + i * block_ + filled_[i]));
    }
  }
  template <typename T>
  void unpack(DeviceQueue* queue, const T* blocks, T* tensor) const {
    for (const StridedCopy& copy : unpack_) copyElements(queue, copy, bitsOf(blocks), bitsOf(tensor));
  }

 private:
  size_t block_ = 0;
  std::vector<StridedCopy> pack_, unpack_;
  std::vector<size_t> filled_;  // elements of each block
  bool is_tensor_ = false;
};

// One tensor as blocks and the other as well: what the communicator gets and gives is in `input` and
// `output`.
template <typename T>
class CollectiveKernel : public Kernel {
 public:
  CollectiveKernel(const CollectiveCall& call, Blocks input, Blocks output)
      : call_(call),
        input_(std::move(input)),
        output_(std::move(output)),
        output_begin_(alignedPart(input_.count() * sizeof(T))) {}

  void run(const KernelArguments& arguments) override {
    PIPESHARD_CHECK(arguments.collectives != nullptr, "a collective over group {} runs without collectives",
                    call_.group);
    auto* scratch = static_cast<std::byte*>(arguments.workspace);
    CollectiveCall call = call_;
    call.input = arguments.inputs[0];
    call.output = arguments.outputs[0];
    if (!input_.isTensor()) {
      auto* blocks = reinterpret_cast<T*>(scratch);
      input_.pack(arguments.queue, input<T>(arguments, 0), blocks);
      call.input = blocks;
    }
    if (!output_.isTensor()) call.output = scratch + output_begin_;
    arguments.collectives->call(call);
    if (!output_.isTensor())
      output_.unpack(arguments.queue, static_cast<const T*>(call.output), output<T>(arguments, 0));
  }
  size_t workspaceBytes() const override { return output_begin_ + alignedPart(output_.count() * sizeof(T)); }
  bool mayRunInPlace(int, int) const override { return call_.kind == Kind::kAllReduce; }
  GroupId collectiveGroup() const override { return call_.group; }
  size_t collectiveMembers() const override { return call_.members; }
  size_t collectiveBytes() const override { return call_.inputBytes() + call_.outputBytes(); }

 private:
  CollectiveCall call_;
  Blocks input_, output_;
  size_t output_begin_;  // in the workspace
};

CollectiveCall makeCall(const KernelSpec& spec, Kind kind) {
  CollectiveCall call;
  call.kind = kind;
  checkArity(spec, 1, 1);
  call.type = spec.inputs[0].data_type;
  checkOutputType(spec, 0, call.type);
  const int64_t group = spec.node->intAttribute("group", -1);
  if (group < 0 || group > INT32_MAX)
    refuse(spec, "attribute group must be an index into the program's groups");
  call.group = GroupId(group);
  if (kind != Kind::kAllReduce && kind != Kind::kReduceScatter) return call;
  const std::string reduction = spec.node->stringAttribute("reduction", "sum");
  if (reduction == "max") {
    call.reduction = Reduction::kMax;
  } else if (reduction == "min") {
    call.reduction = Reduction::kMin;
  } else if (reduction != "sum") {
    refuse(spec, "reduction is \"{}\"; \"sum\", \"max\" and \"min\" are supported", reduction);
  }
  return call;
}

// An axis of a tensor that is whole on one side and this member's part of it on the other.
struct CutAxis {
  size_t axis = 0;
  std::vector<int64_t> sizes;  // of all members' parts
  int64_t longest = 0;
};

CutAxis cutAxis(const KernelSpec& spec, const char* axis_name, const char* sizes_name, const Shape& whole,
                const Shape& part) {
  CutAxis cut;
  if (!spec.node->hasAttribute(axis_name)) refuse(spec, "attribute {} is missing", axis_name);
  cut.axis = checkedAxis(spec, spec.node->intAttribute(axis_name, 0), whole.size());
  cut.sizes = spec.node->intsAttribute(sizes_name);
  if (cut.sizes.empty())
    refuse(spec, "attribute {} must hold the size of every member's part of axis {}", sizes_name, cut.axis);
  int64_t sum = 0;
  for (int64_t size : cut.sizes) {
    if (size < 0 || size > whole[cut.axis])
      refuse(spec, "{} holds {} for an axis of {}", sizes_name, size, whole[cut.axis]);
    sum += size;
  }
  if (sum != whole[cut.axis])
    refuse(spec, "{} add up to {}; axis {} has {}", sizes_name, sum, cut.axis, whole[cut.axis]);
  if (std::find(cut.sizes.begin(), cut.sizes.end(), part[cut.axis]) == cut.sizes.end())
    refuse(spec, "axis {} has {} here, which is none of {}", cut.axis, part[cut.axis], sizes_name);
  cut.longest = *std::max_element(cut.sizes.begin(), cut.sizes.end());
  return cut;
}

// The two shapes differ along the given axes at most.
void checkOtherAxes(const KernelSpec& spec, std::initializer_list<size_t> axes) {
  Shape expected = spec.inputs[0].shape;
  if (spec.outputs[0].shape.size() == expected.size()) {
    for (size_t axis : axes) expected[axis] = spec.outputs[0].shape[axis];
  }
  checkOutputShape(spec, 0, expected);
}

void checkRanks(const KernelSpec& spec) {
  if (spec.inputs[0].shape.size() == spec.outputs[0].shape.size()) return;
  refuse(spec, "input and output have the shapes {} and {}; they must have equally many axes",
         shapeToString(spec.inputs[0].shape), shapeToString(spec.outputs[0].shape));
}

// A tensor as the only block, of at least its own length.
Blocks alone(const Shape& tensor, size_t block) {
  Shape padded = tensor;
  padded.insert(padded.begin(), 1);
  return Blocks(padded, 0, {1}, block);
}

size_t blockOf(Shape part, const CutAxis& cut) {
  part[cut.axis] = cut.longest;
  return elementCount(part);
}

template <typename Body>
std::unique_ptr<Kernel> withReducible(const KernelSpec& spec, Body&& body) {
  if (isHalf(spec.inputs[0].data_type)) return body(uint16_t{});  // the communicator adds
  return withType<float, double, int32_t, int64_t>(spec, spec.inputs[0].data_type, "input 0",
                                                   std::forward<Body>(body));
}

std::unique_ptr<Kernel> allReduce(const KernelSpec& spec) {
  CollectiveCall call = makeCall(spec, Kind::kAllReduce);
  const Shape& shape = spec.inputs[0].shape;
  checkOutputShape(spec, 0, shape);
  call.count = elementCount(shape);
  return withReducible(spec, [&](auto zero) -> std::unique_ptr<Kernel> {
    return std::make_unique<CollectiveKernel<decltype(zero)>>(call, alone(shape, call.count),
                                                              alone(shape, call.count));
  });
}

std::unique_ptr<Kernel> allGather(const KernelSpec& spec) {
  CollectiveCall call = makeCall(spec, Kind::kAllGather);
  checkRanks(spec);
  const CutAxis cut = cutAxis(spec, "axis", "sizes", spec.outputs[0].shape, spec.inputs[0].shape);
  checkOtherAxes(spec, {cut.axis});
  call.members = cut.sizes.size();
  call.count = blockOf(spec.inputs[0].shape, cut);
  return withElementSize(spec, call.type, "input 0", [&](auto zero) -> std::unique_ptr<Kernel> {
    return std::make_unique<CollectiveKernel<decltype(zero)>>(
        call, alone(spec.inputs[0].shape, call.count),
        Blocks(spec.outputs[0].shape, cut.axis, cut.sizes, call.count));
  });
}

std::unique_ptr<Kernel> reduceScatter(const KernelSpec& spec) {
  CollectiveCall call = makeCall(spec, Kind::kReduceScatter);
  checkRanks(spec);
  const CutAxis cut = cutAxis(spec, "axis", "sizes", spec.inputs[0].shape, spec.outputs[0].shape);
  checkOtherAxes(spec, {cut.axis});
  call.members = cut.sizes.size();
  call.count = blockOf(spec.outputs[0].shape, cut);
  return withReducible(spec, [&](auto zero) -> std::unique_ptr<Kernel> {
    return std::make_unique<CollectiveKernel<decltype(zero)>>(
        call, Blocks(spec.inputs[0].shape, cut.axis, cut.sizes, call.count),
        alone(spec.outputs[0].shape, call.count));
  });
}

std::unique_ptr<Kernel> allToAll(const KernelSpec& spec) {
  CollectiveCall call = makeCall(spec, Kind::kAllToAll);
  checkRanks(spec);
  const Shape& before = spec.inputs[0].shape;
  const Shape& after = spec.outputs[0].shape;
  const CutAxis gathered = cutAxis(spec, "axis", "sizes", after, before);
  const CutAxis cut = cutAxis(spec, "to_axis", "to_sizes", before, after);
  if (gathered.axis == cut.axis) refuse(spec, "axis and to_axis are both {}", cut.axis);
  if (gathered.sizes.size() != cut.sizes.size())
    refuse(spec, "sizes has {} entries and to_sizes {}; both have one per member", gathered.sizes.size(),
           cut.sizes.size());
  checkOtherAxes(spec, {gathered.axis, cut.axis});
  call.members = cut.sizes.size();
  Shape block = before;
  block[gathered.axis] = gathered.longest;
  call.count = blockOf(block, cut);
  return withElementSize(spec, call.type, "input 0", [&](auto zero) -> std::unique_ptr<Kernel> {
    return std::make_unique<CollectiveKernel<decltype(zero)>>(
        call, Blocks(before, cut.axis, cut.sizes, call.count),
        Blocks(after, gathered.axis, gathered.sizes, call.count));
  });
}

}  // namespace

void addCollectiveKernels(KernelRegistry& registry) {
  const auto add = [&](Kind kind, const KernelFactory& factory) {
    registry.add(std::string(kPipeshardDomain), std::string(collectiveName(kind)), factory);
  };
  add(Kind::kAllReduce, allReduce);
  add(Kind::kAllGather, allGather);
  add(Kind::kReduceScatter, reduceScatter);
  add(Kind::kAllToAll, allToAll);
}

}  // namespace pipeshard::kernels
