// A group of operators as one (group_chains.h): a short program whose instructions are the operators' own
// kernels, made for a few rows, and whose registers are blocks of rows that stay in a core's cache.
//
//   u = Mul(x, s);  v = Add(u, b);  y = Gelu(v)      x, y [512,768], s [], b [768]
//   a task: 10 rows of x -> register 0 -> register 1 -> 10 rows of y; 52 tasks on all threads
//
// Every element is computed by the same kernel's loop as without the group, so all bits are the same; what
// lies between the operators is never in memory.
#pragma once

#include <memory>

#include "runtime/kernels/base/kernel.h"

namespace pipeshard::kernels {

// Of the node that groupChains makes. Errors as KernelRegistry::create of its operators.
std::unique_ptr<Kernel> makeChainKernel(const KernelSpec& spec, const KernelRegistry& registry);

}  // namespace pipeshard::kernels
