// The rows of the next step, read by a thread while a step runs.
#pragma once

#include <memory>

#include "runtime/data/data.h"

namespace pipeshard {

// What `source` gives. The first step of every size is read as it is asked for, which
// shows what every step asks for; from then on, where reading takes long enough for a second thread to be
// worthwhile (half a millisecond a step), a step finds its rows in memory, as much as all reads of one
// step take (at most kMostPrefetched bytes; what is beyond is read when it is asked for). Steps that do not
// follow each other are read as they are asked for, too. An error of a read comes out of the fill() that
// asks for it. One thread at a time calls fill().
std::unique_ptr<DataSource> prefetch(std::unique_ptr<DataSource> source);

inline constexpr size_t kMostPrefetched = size_t{1} << 30;

}  // namespace pipeshard
