#include "runtime/identity/identity_reader.h"

#include <utility>

#include <fmt/format.h>

#include "ir/base/amounts.h"

namespace pipeshard {
namespace {

constexpr std::chrono::seconds kFirstNotice{2};
constexpr std::chrono::seconds kNextNotice{5};

}  // namespace

IdentityReader::IdentityReader(IdentityRequest request)
    : request_(std::move(request)), next_notice_(std::chrono::steady_clock::now() + kFirstNotice) {
  thread_ = std::thread([this] { read(); });
}

IdentityReader::~IdentityReader() {
  progress_.stop.store(true);
  if (thread_.joinable()) thread_.join();
}

void IdentityReader::read() {
  try {
    identity_ = readJobIdentity(request_, &progress_);
  } catch (...) {
    failure_ = std::current_exception();
  }
  done_.store(true);
}

JobIdentity IdentityReader::take() {
  thread_.join();
  if (failure_) std::rethrow_exception(failure_);
  return std::move(identity_);
}

std::optional<std::string> IdentityReader::takeNotice() {
  const auto now = std::chrono::steady_clock::now();
  if (isDone() || now < next_notice_) return std::nullopt;
  next_notice_ = now + kNextNotice;
  return fmt::format("comparing files with other hosts: {} of {}", formatBytes(progress_.bytes_done.load()),
                     formatBytes(progress_.bytes_in_all.load()));
}

}  // namespace pipeshard
