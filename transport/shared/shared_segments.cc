#include "transport/shared/shared_segments.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "transport/shared/doorbell.h"
#include "transport/shared/mapping.h"
#include "transport/shared/shared_layout.h"

namespace pipeshard {
namespace {

int createSegment(const char* name) {
  // Without MFD_CLOEXEC: workers inherit the descriptors through exec.
  const int descriptor = ::memfd_create(name, MFD_ALLOW_SEALING);
  if (descriptor < 0) {
    const ErrorCode code =
        errno == EMFILE || errno == ENFILE ? ErrorCode::kConfiguration : ErrorCode::kOutOfMemory;
    fail(code, "cannot create a shared memory segment: {}; check `ulimit -n`", std::strerror(errno));
  }
  return descriptor;
}

[[noreturn]] void failDescription(const std::string& description) {
  fail(ErrorCode::kConfiguration,
       "segments '{}' are malformed; expected something like 'control=5,arenas=6:7:8'", description);
}

int takeNumber(const std::string& description, size_t& position) {
  int number = -1;
  const char* begin = description.data() + position;
  const auto [end, error] = std::from_chars(begin, description.data() + description.size(), number);
  if (error != std::errc() || number < 0) failDescription(description);
  position += static_cast<size_t>(end - begin);
  return number;
}

void takeText(const std::string& description, size_t& position, std::string_view text) {
  if (description.compare(position, text.size(), text) != 0) failDescription(description);
  position += text.size();
}

// In the process that uses them, the descriptors go no further: not into programs that a worker may start.
void stopInheriting(int descriptor, const std::string& description) {
  const int flags = ::fcntl(descriptor, F_GETFD);
  if (flags < 0 || ::fcntl(descriptor, F_SETFD, flags | FD_CLOEXEC) < 0) {
    fail(ErrorCode::kConfiguration,
         "segments '{}': descriptor {} is not open in this process; start the worker from the process that "
         "made them",
         description, descriptor);
  }
}

void checkControl(int descriptor, size_t size) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || static_cast<size_t>(status.st_size) < sizeof(shm::ControlHeader)) {
    fail(ErrorCode::kConfiguration, "descriptor {} is not a pipeshard control segment", descriptor);
  }
  const shm::Mapping mapping =
      shm::Mapping::map(descriptor, sizeof(shm::ControlHeader), false, "the control segment's header");
  const auto& header = *reinterpret_cast<const shm::ControlHeader*>(mapping.data());
  if (header.magic != shm::kMagic)
    fail(ErrorCode::kConfiguration, "descriptor {} is not a pipeshard control segment", descriptor);
  if (header.version != shm::kLayoutVersion) {
    fail(ErrorCode::kVersionMismatch,
         "the control segment has layout version {}, this worker speaks {}; install one version everywhere",
         header.version, shm::kLayoutVersion);
  }
  if (header.size != size || header.total_bytes != shm::controlBytes(size) ||
      static_cast<uint64_t>(status.st_size) != header.total_bytes) {
    fail(ErrorCode::kConfiguration,
         "the control segment is for {} ranks and {} bytes, the description names {} arenas", header.size,
         status.st_size, size);
  }
}

}  // namespace

SharedSegments SharedSegments::create(int size) {
  if (size < 1 || size > shm::kMaxRanks) {
    fail(ErrorCode::kConfiguration, "{} workers on one node; shared memory serves 1 to {}", size,
         shm::kMaxRanks);
  }
  SharedSegments result;
  result.control_ = createSegment("pipeshard-control");
  const size_t bytes = shm::controlBytes(size);
  // Sparse: a slot costs memory only once it has been used.
  shm::sizeSegment(result.control_, bytes, "the control segment");
  ::fcntl(result.control_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  const shm::Mapping mapping =
      shm::Mapping::map(result.control_, sizeof(shm::ControlHeader), true, "the control segment's header");
  auto* header = reinterpret_cast<shm::ControlHeader*>(mapping.data());
  *header = {shm::kMagic, shm::kLayoutVersion, static_cast<uint32_t>(size), bytes};
  for (int rank = 0; rank < size; ++rank) result.arenas_.push_back(createSegment("pipeshard-arena"));
  return result;
}

int64_t SharedSegments::communicatorBytes(int size) { return shm::controlBytes(size); }

int64_t SharedSegments::communicatorBytes() const {
  struct stat status {};
  return ::fstat(control_, &status) == 0 ? static_cast<int64_t>(status.st_size) : 0;
}

std::vector<int> SharedSegments::descriptorsIn(const std::string& description) {
  size_t position = 0;
  std::vector<int> descriptors;
  takeText(description, position, "control=");
  descriptors.push_back(takeNumber(description, position));
  takeText(description, position, ",arenas=");
  descriptors.push_back(takeNumber(description, position));
  while (position < description.size()) {
    takeText(description, position, ":");
    descriptors.push_back(takeNumber(description, position));
  }
  return descriptors;
}

SharedSegments SharedSegments::inherit(const std::string& description) {
  SharedSegments parsed;
  std::vector<int> arenas = descriptorsIn(description);
  const int control = arenas.front();
  arenas.erase(arenas.begin());
  if (std::ssize(arenas) > shm::kMaxRanks) failDescription(description);
  stopInheriting(control, description);
  for (const int arena : arenas) stopInheriting(arena, description);
  checkControl(control, arenas.size());
  // Owned only from here on: descriptors of a refused description may belong to somebody else.
  parsed.control_ = control;
  parsed.arenas_ = std::move(arenas);
  return parsed;
}

SharedSegments::SharedSegments(SharedSegments&& other) noexcept
    : control_(std::exchange(other.control_, -1)), arenas_(std::exchange(other.arenas_, {})) {}

SharedSegments& SharedSegments::operator=(SharedSegments&& other) noexcept {
  std::swap(control_, other.control_);
  std::swap(arenas_, other.arenas_);
  return *this;
}

SharedSegments::~SharedSegments() {
  if (control_ >= 0) ::close(control_);
  for (const int arena : arenas_) ::close(arena);
}

std::string SharedSegments::describe(const std::vector<int>& descriptors) {
  return fmt::format("control={},arenas={}", descriptors.at(0),
                     fmt::join(descriptors.begin() + 1, descriptors.end(), ":"));
}

std::string SharedSegments::describe() const {
  std::vector<int> descriptors{control_};
  descriptors.insert(descriptors.end(), arenas_.begin(), arenas_.end());
  return describe(descriptors);
}

int SharedSegments::size() const { return arenas_.size(); }

int SharedSegments::controlDescriptor() const { return control_; }

int SharedSegments::arenaDescriptor(RankId rank) const { return arenas_.at(rank.index()); }

void SharedSegments::markDead(RankId rank) {
  PIPESHARD_CHECK(rank < RankId(size()), "rank {} of {}", rank, size());
  const size_t bytes = shm::laneBytes(arenas_.size()) + shm::mailboxesOffset(arenas_.size());
  const shm::Mapping mapping = shm::Mapping::map(control_, bytes, true, "the control segment's flags");
  for (const shm::Lane lane : {shm::Lane::kFirst, shm::Lane::kSecond}) {
    const shm::ControlView view(mapping.data(), size(), lane);
    view.rank(rank).dead.store(1, std::memory_order_seq_cst);
    for (RankId other : idsBelow<RankId>(size())) shm::ring(view.rank(other));
  }
}

}  // namespace pipeshard
