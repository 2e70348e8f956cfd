#include "tools/output/standard_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
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
  bool is_gone = false;  // who would have seen it: a terminal, the reader of a pipe
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

// Always takes all: what cannot be written is dropped, and the first reason kept.
ssize_t writeTo(void* cookie, const char* data, size_t bytes) {
  Output& output = *static_cast<Output*>(cookie);
  if (output.is_gone) return static_cast<ssize_t>(bytes);  // and no second SIGPIPE
  const std::string text =
      output.is_raw ? std::string(data, bytes) : escaped(std::string_view(data, bytes), output);
  for (size_t done = 0; done < text.size();) {
    const ssize_t got = ::write(output.descriptor, text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      ::pollfd writable{output.descriptor, POLLOUT, 0};
      ::poll(&writable, 1, -1);
      continue;
    }
    if (got < 0) {
      output.is_gone = errno == EPIPE;
      const bool is_error = errno != EIO && errno != ENXIO && errno != EPIPE;  // a terminal's; a pipe's
      if (is_error && output.first_error == 0) output.first_error = errno;
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
