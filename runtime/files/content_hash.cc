#include "runtime/files/content_hash.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include <fmt/format.h>
#include <xxhash.h>

#include "ir/base/error.h"
#include "runtime/files/posix_file.h"

namespace pipeshard {

struct RunningHash::State {
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state{XXH3_createState(), &XXH3_freeState};
};

RunningHash::RunningHash() : state_(std::make_unique<State>()) { XXH3_64bits_reset(state_->state.get()); }

RunningHash::~RunningHash() = default;

void RunningHash::add(const void* data, size_t bytes) {
  XXH3_64bits_update(state_->state.get(), data, bytes);
}

uint64_t RunningHash::value() const { return XXH3_64bits_digest(state_->state.get()); }

std::string hashText(uint64_t hash) { return fmt::format("{:016x}", hash); }

std::optional<uint64_t> hashFromText(std::string_view text) {
  uint64_t hash = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 16) return std::nullopt;
  return hash;
}

uint64_t contentHash(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

uint64_t contentHashOfFile(const std::string& path, const std::atomic<bool>* stop) {
  constexpr uint64_t kAtOnce = 1 << 20;
  const Descriptor file = openForReading(path);
  const uint64_t bytes = fileBytes(file, path);
  std::vector<std::byte> buffer(std::min(kAtOnce, bytes));
  RunningHash hash;
  for (uint64_t done = 0; done < bytes; done += buffer.size()) {
    if (stop != nullptr && stop->load()) fail(ErrorCode::kRequeue, "reading {} was ended", path);
    buffer.resize(std::min(kAtOnce, bytes - done));
    readExactly(file, done, buffer, path);
    hash.add(buffer.data(), buffer.size());
  }
  return hash.value();
}

}  // namespace pipeshard
