// Types and operators of NCCL's collectives: names, sizes, and the sum of what the ranks gave.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <string>
#include <vector>

namespace standin::nccl {

// 0: no type that is known here.
size_t sizeOf(ncclDataType_t type);
std::string nameOf(ncclDataType_t type);
std::string nameOf(ncclRedOp_t op);
bool isKnown(ncclRedOp_t op);

// Element by element, in the order of the ranks, whatever the order in which they came: the same bits always.
std::vector<std::byte> reduce(const std::vector<std::vector<std::byte>>& by_rank, ncclDataType_t type,
                              ncclRedOp_t op);

}  // namespace standin::nccl
