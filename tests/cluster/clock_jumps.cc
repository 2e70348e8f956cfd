// A wall clock that jumps: loaded before other libraries (LD_PRELOAD), every clock that tells the time of day
// is an hour ahead or behind by turns, from half a second to the next, in every process. Deadlines made of
// such a clock end at once or never. For clock_test.sh.
#include <dlfcn.h>
#include <sys/time.h>

#include <ctime>

namespace {

using GetTime = int (*)(clockid_t, timespec*);

int realTime(clockid_t clock, timespec* out) {
  static const auto next = reinterpret_cast<GetTime>(::dlsym(RTLD_NEXT, "clock_gettime"));
  return next(clock, out);
}

// Seconds. All processes jump together, as they do where somebody sets the clock.
time_t jump() {
  timespec since_boot{};
  realTime(CLOCK_MONOTONIC, &since_boot);
  return since_boot.tv_nsec < 500'000'000 ? 3600 : -3600;
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* out) {
  const int result = realTime(clock, out);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += jump();
  return result;
}

extern "C" int gettimeofday(timeval* out, void*) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  *out = {now.tv_sec, static_cast<suseconds_t>(now.tv_nsec / 1000)};
  return 0;
}

extern "C" time_t time(time_t* out) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}
