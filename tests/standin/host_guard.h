// Pinned memory that an operation of a stream writes or reads: until the host has waited for it, the host
// does not touch what is written, nor write what is read. Its pages are protected meanwhile, so that any host
// code is seen that does, with no compiler's help. Only with STANDIN_WAITS in the environment (waits.h): a
// system call on a protected page fails, where a GPU would let it pass. Internal to the stand-in; all calls
// under its lock (lines.h).
#pragma once

#include <cstddef>
#include <string>

#include "tests/standin/lines.h"

namespace standin {

// `op` has been given. `write`: it writes the memory, else it reads it.
void guard(const void* begin, size_t bytes, bool write, const Running& op);
// The host knows that all operations up to its clock are done.
void openUntil(const Clock& host);

// An operation is at work on this memory.
class AtWork {
 public:
  AtWork(const void* begin, size_t bytes);
  ~AtWork();
  AtWork(const AtWork&) = delete;
  AtWork& operator=(const AtWork&) = delete;

 private:
  const void* begin_;
  size_t bytes_;
};

}  // namespace standin
