#include "runtime/job/job.h"

#include <signal.h>

namespace pipeshard {

JobInterrupted::JobInterrupted(int signal)
    : Error(ErrorCode::kRequeue, fmt::format("stopped by {}", signal == SIGINT    ? "SIGINT"
                                                              : signal == SIGTERM ? "SIGTERM"
                                                                                  : "SIGHUP")),
      signal_(signal) {}

}  // namespace pipeshard
