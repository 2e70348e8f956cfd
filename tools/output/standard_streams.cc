#include "tools/output/standard_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <string>

#include <fmt/format.h>

namespace pipeshard {
namespace {

struct Output {
  int descriptor;
  bool is_raw = false;     // prints a control sequence of our own
  unsigned char lead = 0;  // of a character of UTF-8 whose first bytes were printed
  int missing = 0;         // its other bytes
  int first_error = 0;
  bool is_gone = false;       // who would have seen it: a terminal, the reader of a pipe
  bool is_signalled = false;  // that it is gone was a SIGPIPE to a handler
};

Output standard_output{STDOUT_FILENO};
Output standard_error{STDERR_FILENO};

// In UTF-8, of U+0080 to U+00BF; those up to U+009F are controls.
constexpr unsigned char kLeadOfControls = 0xC2;

// Bytes that follow the first one of a character of UTF-8; 0: it is none.
int bytesBehind(unsigned char lead) {
  if (lead < 0xC2 || lead > 0xF4) return 0;
  return lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
}

// Bytes beyond ASCII that belong to no character may be controls to a terminal, too.
bool isPlain(unsigned char byte, Output& output) {
  if (byte >= 0x80 && byte < 0xC0) {
    if (output.missing == 0) return false;
    --output.missing;
    return output.lead != kLeadOfControls || byte >= 0xA0;
  }
  output.lead = byte;
  output.missing = bytesBehind(byte);
  if (byte >= 0xC0) return output.missing > 0;
  return byte == '\n' || byte == '\t' || (byte >= 0x20 && byte != 0x7F);
}

std::string escaped(std::string_view text, Output& output) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (isPlain(byte, output)) {
      result += c;
    } else {
      result += fmt::format("\\x{:02x}", byte);
    }
  }
  return result;
}

// Whether somebody wants to hear of SIGPIPE: a job that ends when nobody reads what it says.
bool isPipeSignalHandled() {
  struct sigaction action {};
  return ::sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler != SIG_DFL &&
         action.sa_handler != SIG_IGN;
}

// As ::write, but without a handler SIGPIPE does not end the process: files that are written after what is
// printed are written, too.
ssize_t writeWithoutEnd(int descriptor, const char* data, size_t bytes) {
  if (isPipeSignalHandled()) return ::write(descriptor, data, bytes);
  sigset_t pipe_signal, before;
  ::sigemptyset(&pipe_signal);
  ::sigaddset(&pipe_signal, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  const ssize_t got = ::write(descriptor, data, bytes);
  const int error = errno;
  constexpr timespec kNoWait{};
  if (got < 0 && error == EPIPE) ::sigtimedwait(&pipe_signal, nullptr, &kNoWait);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return got;
}

// A handler hears once that who would have seen it is gone; also one that came after it was noticed.
void signalOnce(Output& output) {
  if (output.is_signalled || !isPipeSignalHandled()) return;
  output.is_signalled = true;
  ::raise(SIGPIPE);
}

// Always takes all: what cannot be written is dropped, and the first reason kept.
ssize_t writeTo(void* cookie, const char* data, size_t bytes) {
  Output& output = *static_cast<Output*>(cookie);
  if (output.is_gone) {
    signalOnce(output);
    return static_cast<ssize_t>(bytes);
  }
  const std::string text =
      output.is_raw ? std::string(data, bytes) : escaped(std::string_view(data, bytes), output);
  for (size_t done = 0; done < text.size();) {
    const ssize_t got = writeWithoutEnd(output.descriptor, text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      ::pollfd writable{output.descriptor, POLLOUT, 0};
      ::poll(&writable, 1, -1);
      continue;
    }
    if (got < 0) {
      const int error = errno;
      output.is_gone = error == EPIPE;
      output.is_signalled = output.is_gone && isPipeSignalHandled();           // by the write itself
      const bool is_error = error != EIO && error != ENXIO && error != EPIPE;  // a terminal's; a pipe's
      if (is_error && output.first_error == 0) output.first_error = error;
      break;
    }
    done += static_cast<size_t>(got);
  }
  return static_cast<ssize_t>(bytes);
}

std::FILE* guarded(Output& output, int buffering) {
  cookie_io_functions_t functions{};
  functions.write = writeTo;
  std::FILE* stream = ::fopencookie(&output, "w", functions);
  if (stream != nullptr) std::setvbuf(stream, nullptr, buffering, BUFSIZ);
  return stream;
}

}  // namespace

void guardStandardStreams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) < 0 && errno == EBADF) ::open("/dev/null", O_RDWR);  // the lowest free
  }
  if (std::FILE* stream = guarded(standard_output, ::isatty(STDOUT_FILENO) == 1 ? _IOLBF : _IOFBF))
    stdout = stream;
  if (std::FILE* stream = guarded(standard_error, _IONBF)) stderr = stream;
}

void printControl(std::FILE* stream, std::string_view text) {
  std::fflush(stream);
  Output& output = stream == stdout ? standard_output : standard_error;
  output.is_raw = true;
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
  output.is_raw = false;
}

int finishStandardStreams() {
  std::fflush(stdout);
  return standard_output.first_error;
}

}  // namespace pipeshard
