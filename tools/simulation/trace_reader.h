// Traces read back from the files that tools/simulation/trace_file.h writes: what `run --trace` recorded, for
// the report.
#pragma once

#include <string>
#include <string_view>

#include "ir/trace/trace_event.h"

namespace pipeshard {

// The first trace in the file whose source is `source`; of files with one trace, that one. Names of ranks,
// events, waiting, memory and background come back as they were; numbers of messages do not (they are arrows
// there). Events of no duration come back 1 ns long. Errors: kMissingInput, kConfiguration (naming the file)
// for what is no such file; also where a slice of computing does not say what its work is, as older files.
Trace readTrace(const std::string& path, std::string_view source = "measured");
Trace traceFromJson(std::string_view text, std::string_view source = "measured");

}  // namespace pipeshard
