// NCCL's library, loaded when ranks are to reach each other by it: the module needs it for nothing else.
#pragma once

#include <nccl.h>

#include <string>

namespace pipeshard {

struct NcclLibrary {
  std::string name;  // "NCCL 2.28.9"
  decltype(&::ncclGetUniqueId) getUniqueId = nullptr;
  decltype(&::ncclGetErrorString) getErrorString = nullptr;
  decltype(&::ncclGetLastError) getLastError = nullptr;
  decltype(&::ncclCommInitRankConfig) commInitRankConfig = nullptr;
  decltype(&::ncclCommSplit) commSplit = nullptr;
  decltype(&::ncclCommGetAsyncError) commGetAsyncError = nullptr;
  decltype(&::ncclCommFinalize) commFinalize = nullptr;
  decltype(&::ncclCommDestroy) commDestroy = nullptr;
  decltype(&::ncclCommAbort) commAbort = nullptr;
  decltype(&::ncclGroupStart) groupStart = nullptr;
  decltype(&::ncclGroupEnd) groupEnd = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) recv = nullptr;
  decltype(&::ncclAllReduce) allReduce = nullptr;
  decltype(&::ncclAllGather) allGather = nullptr;
  decltype(&::ncclReduceScatter) reduceScatter = nullptr;
};

// Error(kConfiguration) saying what was looked for: no library, or one without a function that is needed.
const NcclLibrary& ncclLibrary();

}  // namespace pipeshard
