// A test hook: which waits a process makes, and one of them left out. STANDIN_WAITS names a file that gets a
// line for every wait; STANDIN_DROP=RANK:K leaves out the K-th of the worker of this rank. A wait that orders
// nothing that is not ordered without it is *implied*.
#pragma once

#include <string>

namespace standin {

bool waitsAreWatched();
// A wait is asked for. True: it is left out.
bool isDropped(const std::string& what, bool implied);

// The same of the barriers of kernels, by source line: STANDIN_BARRIERS names a file that gets "FILE:LINE" of
// each that a thread comes to first; STANDIN_DROP_BARRIER=FILE:LINE leaves it out, in all kernels that have
// it.
bool isBarrierDropped(const char* file, unsigned line);

}  // namespace standin
