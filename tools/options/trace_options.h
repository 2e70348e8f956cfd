// --trace and --trace-steps, of the commands that run jobs.
//
//   TraceOptions trace;
//   trace.add(*sub);                     // declares them
//   trace.apply(job);                    // before runJob: what is recorded comes into trace.trace
//   trace.requireSpace(job);             // where the job is known: the disk has room for it
//   const TraceWriter writer(trace);     // writes the file at the end of its scope, also when runJob throws
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "ir/trace/trace_event.h"
#include "runtime/job/job.h"

namespace pipeshard {

struct TraceOptions {
  std::string file;  // "": none is written
  int64_t steps = 20;
  Trace trace;

  // Must outlive parsing.
  void add(CLI::App& command);
  // Records when a file was asked for, or `always`. Error when the file cannot be written (requireWritable).
  void apply(JobSpec& job, bool always = false);
  // Error(kDiskFull) with the value where the file's disk has less than a trace of the job's last steps takes
  // at least (a part of what long names take). Nothing where no file was asked for.
  void requireSpace(const JobSpec& job) const;
  // The file, if one was asked for and something was recorded. Errors: as writeOutputFile.
  void write() const;
};

class TraceWriter {
 public:
  explicit TraceWriter(const TraceOptions& options) : options_(options) {}
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;
  // Of a job that failed: what is there is written; that this fails, too, is said and changes nothing.
  ~TraceWriter();
  // Of one that did not. Errors as TraceOptions::write.
  void finish();

 private:
  const TraceOptions& options_;
  bool finished_ = false;
};

}  // namespace pipeshard
