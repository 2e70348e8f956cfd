#include "transport/control/job_keys.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string_view>

#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/json_reader.h"

namespace pipeshard {
namespace {

constexpr int kTicketVersion = 1;
constexpr size_t kKeyText = 40;
constexpr off_t kMaxTicketBytes = 64 << 10;
constexpr std::string_view kZ85 =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

std::array<std::string, 2> makePair() {
  std::array<char, kKeyText + 1> public_key{};
  std::array<char, kKeyText + 1> secret_key{};
  if (::zmq_curve_keypair(public_key.data(), secret_key.data()) != 0) {
    fail(ErrorCode::kConfiguration, "control: this ZeroMQ cannot make keys ({}); it must be built with CURVE",
         std::strerror(errno));
  }
  return {public_key.data(), secret_key.data()};
}

// Closes its descriptor; removes the file unless it was renamed.
struct Temporary {
  std::string path;
  int descriptor = -1;
  bool renamed = false;
  ~Temporary() {
    if (descriptor >= 0) ::close(descriptor);
    if (!renamed) ::unlink(path.c_str());
  }
};

[[noreturn]] void failWriting(const std::string& path) {
  fail(ErrorCode::kDiskFull, "cannot write the key file {}: {}", path, std::strerror(errno));
}

[[noreturn]] void failMalformed(const std::string& path, std::string_view what) {
  fail(ErrorCode::kAuthentication,
       "{} is not a key file of pipeshard ({}); copy the file that the coordinator wrote", path, what);
}

std::string readAll(int descriptor, const std::string& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0)
    fail(ErrorCode::kAuthentication, "cannot look at the key file {}: {}", path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) failMalformed(path, "not a plain file");
  if (status.st_uid != ::geteuid()) {
    fail(ErrorCode::kAuthentication,
         "the key file {} belongs to user {}, not to user {} who runs this; copy it and `chmod 600` the copy",
         path, status.st_uid, ::geteuid());
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    fail(ErrorCode::kAuthentication,
         "the key file {} has mode {:o}: other users may use it and join the job; `chmod 600 {}`", path,
         status.st_mode & 07777U, path);
  }
  if (status.st_size > kMaxTicketBytes) failMalformed(path, fmt::format("{} bytes", status.st_size));
  std::string text(status.st_size, '\0');
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = ::read(descriptor, text.data() + have, text.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) failMalformed(path, "cannot be read to its end");
    have += static_cast<size_t>(got);
  }
  return text;
}

}  // namespace

JobKeys makeJobKeys() {
  const auto server = makePair();
  const auto client = makePair();
  return {server[0], server[1], client[0], client[1]};
}

bool isJobKey(const std::string& text) {
  std::array<uint8_t, 32> bytes{};
  const bool is_z85 =
      std::all_of(text.begin(), text.end(), [](char c) { return kZ85.find(c) != std::string_view::npos; });
  return text.size() == kKeyText && is_z85 && ::zmq_z85_decode(bytes.data(), text.c_str()) != nullptr;
}

std::string clientKeysText(const ClientKeys& keys) {
  return fmt::format("{} {} {}", keys.server_public, keys.client_public, keys.client_secret);
}

ClientKeys parseClientKeys(const std::string& text) {
  std::istringstream stream(text);
  ClientKeys keys;
  std::string rest;
  stream >> keys.server_public >> keys.client_public >> keys.client_secret;
  if (!isJobKey(keys.server_public) || !isJobKey(keys.client_public) || !isJobKey(keys.client_secret) ||
      stream >> rest) {
    fail(
        ErrorCode::kAuthentication,
        "what came as the keys of a job does not hold three keys of 40 characters; the process that starts a "
        "worker hands them over");
  }
  return keys;
}

void writeJobTicket(const std::string& path, const JobTicket& ticket) {
  const nlohmann::json object = {
      {"pipeshard_ticket", kTicketVersion},    {"job", ticket.job_id},
      {"generation", ticket.generation},       {"endpoint", ticket.endpoint},
      {"server_public", ticket.server_public}, {"client_public", ticket.client_public},
      {"client_secret", ticket.client_secret}};
  const std::string text = object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  Temporary temporary{path + ".XXXXXX"};
  // mkostemp makes it with mode 0600, whatever the umask, under a name that nobody can have prepared.
  temporary.descriptor = ::mkostemp(temporary.path.data(), O_CLOEXEC);
  if (temporary.descriptor < 0) {
    temporary.renamed = true;
    failWriting(path);
  }
  for (size_t written = 0; written < text.size();) {
    const ssize_t count = ::write(temporary.descriptor, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) failWriting(path);
    written += static_cast<size_t>(count);
  }
  if (::rename(temporary.path.c_str(), path.c_str()) != 0) failWriting(path);
  temporary.renamed = true;
}

void removeJobTicket(const std::string& path, const std::string& job_id) noexcept {
  try {
    const std::optional<JobTicket> ticket = readJobTicket(path);
    if (ticket && ticket->job_id == job_id) ::unlink(path.c_str());
  } catch (const std::exception&) {
    // What cannot be read was not written by this job.
  }
}

std::optional<JobTicket> readJobTicket(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0 && (errno == ENOENT || errno == ESTALE)) return std::nullopt;
  if (descriptor < 0)
    fail(ErrorCode::kAuthentication, "cannot read the key file {}: {}", path, std::strerror(errno));
  Temporary file{path, descriptor, true};
  Json object;
  try {
    object = parseJson(readAll(descriptor, path), "it");
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfiguration) throw;
    failMalformed(path, error.message());
  }
  if (!object.is_object() || !object.contains("pipeshard_ticket"))
    failMalformed(path, "no JSON object with \"pipeshard_ticket\"");
  if (object["pipeshard_ticket"] != kTicketVersion) {
    fail(ErrorCode::kVersionMismatch,
         "the key file {} has version {}, this pipeshard reads {}; install one version everywhere", path,
         object["pipeshard_ticket"].dump(), kTicketVersion);
  }
  const auto text = [&](const char* key) {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_string()) failMalformed(path, fmt::format("no \"{}\"", key));
    return found->get<std::string>();
  };
  if (!object.contains("generation") || !object["generation"].is_number_unsigned())
    failMalformed(path, "no \"generation\"");
  JobTicket ticket{text("job"),           object["generation"].get<uint64_t>(),
                   text("endpoint"),      text("server_public"),
                   text("client_public"), text("client_secret")};
  for (const std::string* key : {&ticket.server_public, &ticket.client_public, &ticket.client_secret}) {
    if (!isJobKey(*key)) failMalformed(path, "a key does not have 40 characters of Z85");
  }
  return ticket;
}

}  // namespace pipeshard
