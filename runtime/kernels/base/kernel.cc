#include "runtime/kernels/base/kernel.h"

#include "ir/base/error.h"
#include "runtime/kernels/base/widening.h"

namespace pipeshard {

void KernelRegistry::add(std::string domain, std::string op_type, KernelFactory factory) {
  const bool added = factories_.emplace(std::pair(domain, op_type), std::move(factory)).second;
  PIPESHARD_CHECK(added, "two kernels for {}::{}", domain, op_type);
}

bool KernelRegistry::has(const std::string& domain, const std::string& op_type) const {
  return factories_.contains({domain, op_type});
}

std::unique_ptr<Kernel> KernelRegistry::create(const KernelSpec& spec) const {
  PIPESHARD_CHECK(spec.node != nullptr);
  const auto found = factories_.find({spec.node->domain, spec.node->op_type});
  if (found == factories_.end()) {
    fail(ErrorCode::kBadModel, "{}: there is no kernel for this operator on this device",
         describeNode(*spec.node));
  }
  try {
    return found->second(spec);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadModel || other_types_ == OtherTypes::kRefused) throw;
    if (std::unique_ptr<Kernel> kernel = kernels::makeWideningKernel(spec, found->second)) return kernel;
    throw;
  }
}

std::vector<std::string> KernelRegistry::operators() const {
  std::vector<std::string> names;
  for (const auto& [key, factory] : factories_) names.push_back(key.first + "::" + key.second);
  return names;
}

}  // namespace pipeshard
