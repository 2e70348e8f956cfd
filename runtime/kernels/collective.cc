// Collectives inside a subgraph: the kernel only hands its tensor to what binds the subgraph to other ranks.
#include "runtime/kernels/families.h"
#include "runtime/kernels/support.h"

namespace pipeshard::kernels {
namespace {

class AllReduceKernel : public Kernel {
 public:
  AllReduceKernel(int group, const TensorSpec& tensor)
      : group_(group), type_(tensor.data_type), count_(static_cast<size_t>(elementCount(tensor.shape))) {}

  void run(const KernelArguments& arguments) override {
    PIPESHARD_CHECK(arguments.collectives != nullptr, "AllReduce over group {} runs without collectives", group_);
    arguments.collectives->allReduceSum(group_, type_, arguments.inputs[0], arguments.outputs[0], count_);
  }
  bool mayRunInPlace(int, int) const override { return true; }
  std::optional<int> collectiveGroup() const override { return group_; }

 private:
  int group_;
  DataType type_;
  size_t count_;
};

std::unique_ptr<Kernel> allReduce(const KernelSpec& spec) {
  checkArity(spec, 1, 1);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  const std::string reduction = spec.node->stringAttribute("reduction", "sum");
  if (reduction != "sum") refuse(spec, "reduction is \"{}\"; \"sum\" is supported", reduction);
  const int64_t group = spec.node->intAttribute("group", -1);
  if (group < 0 || group > INT32_MAX) refuse(spec, "attribute group must be an index into the program's groups");
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0",
                                 [&](auto) { return std::make_unique<AllReduceKernel>(static_cast<int>(group), spec.inputs[0]); });
}

}  // namespace

void addCollectiveKernels(KernelRegistry& registry) { registry.add(std::string(kPipeshardDomain), "AllReduce", allReduce); }

}  // namespace pipeshard::kernels
