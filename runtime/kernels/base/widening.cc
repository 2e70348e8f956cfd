#include "runtime/kernels/base/widening.h"

#include <algorithm>
#include <cstring>

#include "ir/base/convert.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

bool isNarrowFloat(DataType type) {
  return type == DataType::kFloat16 || type == DataType::kBfloat16 || type == DataType::kFloat8E4M3FN ||
         type == DataType::kFloat8E4M3FNUZ || type == DataType::kFloat8E5M2 ||
         type == DataType::kFloat8E5M2FNUZ || type == DataType::kFloat4E2M1 || type == DataType::kFloat8E8M0;
}

bool isOtherInteger(DataType type) {
  return (isInteger(type) && type != DataType::kInt64) || type == DataType::kInt4 || type == DataType::kUint4;
}

// What elements become; the type itself where they stay.
DataType wideType(DataType type, DataType integers) {
  if (!isNarrowFloat(type) && !isOtherInteger(type)) return type;
  const DataType wide = isNarrowFloat(type) ? DataType::kFloat32 : integers;
  return canConvert(type, wide) && canConvert(wide, type) ? wide : type;
}

Constant converted(const Constant& constant, DataType type) {
  Constant wide{type, constant.shape, std::vector<std::byte>(byteCount(type, constant.shape))};
  convertElements(constant.data_type, constant.bytes.data(), type, wide.bytes.data(),
                  elementCount(constant.shape));
  return wide;
}

// The node, its inputs and its outputs in wide types.
struct WideSpec {
  Node node;
  std::vector<Constant> constants;
  KernelSpec spec;
  bool changed = false;
};

// Attributes that name a type ("to", "dtype") or hold an element follow.
void widenAttributes(const KernelSpec& spec, DataType integers, Node& node) {
  for (const char* name : {"to", "dtype", "output_dtype"}) {
    const auto found = node.attributes.find(name);
    if (found == node.attributes.end() || !std::holds_alternative<int64_t>(found->second)) continue;
    const auto type = static_cast<DataType>(std::get<int64_t>(found->second));
    if (spec.outputs.empty() || spec.outputs[0].data_type != type) continue;
    found->second = static_cast<int64_t>(wideType(type, integers));
  }
  for (auto& [name, attribute] : node.attributes) {
    auto* constant = std::get_if<Constant>(&attribute);
    if (constant == nullptr) continue;
    const DataType type = wideType(constant->data_type, integers);
    if (type != constant->data_type) *constant = converted(*constant, type);
  }
}

std::unique_ptr<WideSpec> widened(const KernelSpec& spec, DataType integers) {
  auto wide = std::make_unique<WideSpec>();
  wide->node = *spec.node;
  widenAttributes(spec, integers, wide->node);
  wide->spec = spec;
  wide->spec.node = &wide->node;
  wide->constants.reserve(spec.inputs.size());
  const auto widen = [&](TensorSpec& tensor) {
    const DataType type = wideType(tensor.data_type, integers);
    if (type == tensor.data_type) return;
    wide->changed = true;
    if (tensor.constant != nullptr) {
      wide->constants.push_back(converted(*tensor.constant, type));
      tensor.constant = &wide->constants.back();
    }
    tensor.data_type = type;
  };
  for (TensorSpec& tensor : wide->spec.inputs) widen(tensor);
  for (TensorSpec& tensor : wide->spec.outputs) widen(tensor);
  return wide;
}

// Where a tensor is in the workspace, if it is not the caller's own.
struct Place {
  DataType narrow = DataType::kUndefined;
  DataType wide = DataType::kUndefined;
  int64_t count = 0;
  size_t offset = 0;
  bool converts() const { return narrow != wide; }
};

class WideningKernel : public Kernel {
 public:
  WideningKernel(std::unique_ptr<Kernel> kernel, const KernelSpec& narrow, const KernelSpec& wide)
      : kernel_(std::move(kernel)), name_(describeNode(*narrow.node)) {
    total_ = alignedPart(kernel_->workspaceBytes());
    for (size_t i = 0; i < narrow.inputs.size(); ++i)
      inputs_.push_back(placeOf(narrow.inputs[i], wide.inputs[i]));
    for (size_t i = 0; i < narrow.outputs.size(); ++i)
      outputs_.push_back(placeOf(narrow.outputs[i], wide.outputs[i]));
  }

  void run(const KernelArguments& arguments) override {
    auto* workspace = static_cast<std::byte*>(arguments.workspace);
    std::vector<const void*> inputs(arguments.inputs.begin(), arguments.inputs.end());
    std::vector<void*> outputs(arguments.outputs.begin(), arguments.outputs.end());
    for (size_t i = 0; i < inputs.size() && i < inputs_.size(); ++i) {
      if (inputs[i] == nullptr || !inputs_[i].converts()) continue;
      checkFits(inputs_[i], inputs[i]);
      convertTensor(arguments.queue, inputs_[i].narrow, inputs[i], inputs_[i].wide,
                    workspace + inputs_[i].offset, inputs_[i].count);
      inputs[i] = workspace + inputs_[i].offset;
    }
    for (size_t i = 0; i < outputs.size() && i < outputs_.size(); ++i) {
      if (outputs[i] != nullptr && outputs_[i].converts()) outputs[i] = workspace + outputs_[i].offset;
    }
    kernel_->run({inputs, outputs, workspace, arguments.collectives, arguments.accumulate, arguments.queue,
                  arguments.fault});
    for (size_t i = 0; i < outputs.size() && i < outputs_.size(); ++i) {
      if (outputs[i] == nullptr || !outputs_[i].converts()) continue;
      convertTensor(arguments.queue, outputs_[i].wide, outputs[i], outputs_[i].narrow, arguments.outputs[i],
                    outputs_[i].count);
    }
  }

  size_t workspaceBytes() const override { return total_; }
  bool mayAccumulate(int output) const override {
    return !outputs_.at(output).converts() && kernel_->mayAccumulate(output);
  }
  bool recordsFaults() const override { return kernel_->recordsFaults(); }
  void throwFault(const DataFault& fault) const override { kernel_->throwFault(fault); }

 private:
  Place placeOf(const TensorSpec& narrow, const TensorSpec& wide) {
    Place place{narrow.data_type, wide.data_type, 0, total_};
    if (!place.converts()) return place;
    place.count = elementCount(narrow.shape);
    total_ += alignedPart(byteCount(wide.data_type, wide.shape));
    return place;
  }

  void checkFits(const Place& place, const void* content) const {
    if (place.narrow != DataType::kUint64) return;
    for (int64_t i = 0; i < place.count; ++i) {
      uint64_t element = 0;
      std::memcpy(&element, static_cast<const std::byte*>(content) + i * sizeof(element), sizeof(element));
      if (element <= static_cast<uint64_t>(INT64_MAX)) continue;
      fail(ErrorCode::kBadModel, "{}: the uint64 number {} is too large for pipeshard's kernels", name_,
           element);
    }
  }

  std::unique_ptr<Kernel> kernel_;
  std::string name_;
  std::vector<Place> inputs_;
  std::vector<Place> outputs_;
  size_t total_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> makeWideningKernel(const KernelSpec& spec, const KernelFactory& factory) {
  for (const DataType integers : {DataType::kInt64, DataType::kFloat64}) {
    const std::unique_ptr<WideSpec> wide = widened(spec, integers);
    if (!wide->changed) return nullptr;
    try {
      std::unique_ptr<Kernel> kernel = factory(wide->spec);
      if (kernel->collectiveGroup().valid()) return nullptr;  // devices would have to agree
      return std::make_unique<WideningKernel>(std::move(kernel), spec, wide->spec);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kBadModel) throw;
    }
  }
  return nullptr;
}

}  // namespace pipeshard::kernels
