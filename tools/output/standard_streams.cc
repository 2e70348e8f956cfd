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
  bool is_raw = false;      // prints a control sequence of our own
  bool after_lead = false;  // of the two bytes of a control character beyond ASCII, the first was printed
  int first_error = 0;
};

Output standard_output{STDOUT_FILENO};
Output standard_error{STDERR_FILENO};

constexpr unsigned char kLead = 0xC2;  // in UTF-8, of U+0080 to U+00BF

std::string escaped(std::string_view text, Output& output) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain = byte == '\n' || byte == '\t' || (byte >= 0x20 && byte != 0x7F);
    const bool is_beyond_ascii = output.after_lead && byte >= 0x80 && byte < 0xA0;
    output.after_lead = byte == kLead;
    if (is_plain && !is_beyond_ascii) {
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
      const bool is_gone = errno == EIO || errno == ENXIO;  // a terminal's
      if (!is_gone && output.first_error == 0) output.first_error = errno;
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
