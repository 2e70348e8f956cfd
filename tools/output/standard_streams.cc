#include "tools/output/standard_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace pipeshard {
namespace {

struct Output {
  int descriptor;
  bool is_raw = false;  // prints a control sequence of our own
  // The first bytes of a character of UTF-8 that has not come whole, and how many bytes it lacks.
  std::string begun = {};
  size_t missing = 0;
  int first_error = 0;
  bool is_gone = false;       // who would have seen it: a terminal, the reader of a pipe
  bool is_signalled = false;  // that it is gone was a SIGPIPE to a handler
};

Output standard_output{STDOUT_FILENO};
Output standard_error{STDERR_FILENO};

// Bytes that follow the first one of a character of UTF-8; 0: it is none.
size_t bytesBehind(unsigned char lead) {
  if (lead < 0xC2 || lead > 0xF4) return 0;
  return lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
}

// Whether this may be the second byte: else it were a character that shorter ones say, half of one, or one
// beyond the last.
bool mayBeSecond(unsigned char lead, unsigned char byte) {
  switch (lead) {
    case 0xE0: return byte >= 0xA0 && byte < 0xC0;
    case 0xED: return byte >= 0x80 && byte < 0xA0;
    case 0xF0: return byte >= 0x90 && byte < 0xC0;
    case 0xF4: return byte >= 0x80 && byte < 0x90;
    default: return byte >= 0x80 && byte < 0xC0;
  }
}

// Of characters beyond ASCII: U+0080 to U+009F, which terminals obey; line and paragraph separators; and what
// changes the direction in which the rest of a line is shown, so that a name looks like another one.
bool isControl(std::string_view character) {
  if (character.size() == 2)
    return (character[0] == '\xC2' && character[1] < '\xA0') || character == "\u061C";
  if (character.size() != 3 || character[0] != '\xE2') return false;
  const bool turns = (character >= "\u200E" && character <= "\u200F") ||
                     (character >= "\u2028" && character <= "\u202E") ||
                     (character >= "\u2066" && character <= "\u2069");
  return turns;
}

std::string inHexadecimal(std::string_view bytes) {
  std::string result;
  for (const char c : bytes) result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return result;
}

// What belongs to no character may be a control to a terminal, too. A character whose last bytes are still to
// come is printed with them.
std::string escaped(std::string_view text, Output& output) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const auto lead = static_cast<unsigned char>(output.begun.size() == 1 ? output.begun[0] : 0);
    if (output.missing > 0 && mayBeSecond(lead, byte)) {
      output.begun += c;
      if (--output.missing > 0) continue;
      result += isControl(output.begun) ? inHexadecimal(output.begun) : output.begun;
      output.begun.clear();
      continue;
    }
    result += inHexadecimal(std::exchange(output.begun, {}));
    output.missing = bytesBehind(byte);
    const bool is_plain = byte == '\n' || byte == '\t' || (byte >= 0x20 && byte < 0x7F);
    if (output.missing > 0) {
      output.begun = c;
    } else {
      result += is_plain ? std::string(1, c) : inHexadecimal({&c, 1});
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

// What cannot be written is dropped, and the first reason kept.
void writeAll(Output& output, std::string_view text) {
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
}

// Always takes all.
ssize_t writeTo(void* cookie, const char* data, size_t bytes) {
  Output& output = *static_cast<Output*>(cookie);
  const std::string_view text(data, bytes);
  if (output.is_gone) {
    signalOnce(output);
  } else {
    writeAll(output, output.is_raw ? std::string(text) : escaped(text, output));
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
  for (Output* output : {&standard_output, &standard_error}) {
    if (!output->is_gone) writeAll(*output, inHexadecimal(std::exchange(output->begun, {})));
  }
  return standard_output.first_error;
}

}  // namespace pipeshard
