// Traces as files for people's viewers: Chrome's trace format in JSON, which ui.perfetto.dev and
// chrome://tracing open.
//
// A process per trace and rank ("simulated rank 0"). Its threads: compute; transfers (receives and
// collectives: what was waiting for the peer, and the rest, as parts inside); background, where a part of the
// work runs beside compute; sends. What overlaps on a track gets another of the same name. An arrow goes from
// each send to its receive; memory is a counter. Times are microseconds with three decimals: exact. Events of
// no duration are drawn 1 ns long, so that arrows have something to point at.
#pragma once

#include <span>
#include <string>

#include "ir/trace/trace_event.h"

namespace pipeshard {

// Same input, same bytes. Several traces lie over each other on one clock (predicted and measured). Throws
// what verifyTrace throws.
std::string tracesToJson(std::span<const Trace> traces);

}  // namespace pipeshard
