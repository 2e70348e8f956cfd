#include "transport/control/coordinator_search.h"

#include <utility>
#include <vector>

#include "transport/control/control_endpoint.h"

namespace pipeshard {
namespace {

using std::chrono::milliseconds;

// To reach the coordinator, before whoever tries looks at the key file and all else again.
constexpr milliseconds kOneTry{5'000};
constexpr milliseconds kOtherTry{2'000};  // at a further address of its name
constexpr milliseconds kBetweenTries{100};
constexpr milliseconds kBetweenLookUps{1'000};  // of a name that has no address

}  // namespace

std::optional<CoordinatorSearch::Place> CoordinatorSearch::next() {
  has_place_ = false;
  tried_.clear();
  std::optional<JobTicket> ticket;
  if (!options_.key_file.empty()) {
    ticket = readJobTicket(options_.key_file);
    if (!ticket || (refusal_ && ticket->server_public == refused_)) return std::nullopt;
    refusal_.reset();
    tried_ = ticket->server_public;
  }
  endpoint_ = options_.join.empty() ? ticket->endpoint : options_.join;
  has_place_ = true;
  const std::vector<std::string> addresses = addressesOf(endpoint_, why_no_address_);
  if (addresses.empty()) return std::nullopt;
  const size_t number = tries_++ % addresses.size();
  return Place{std::move(ticket), endpoint_, addresses[number], number == 0 ? kOneTry : kOtherTry};
}

void CoordinatorSearch::heed(const Error& error) {
  const bool may_pass =
      error.code() == ErrorCode::kAuthentication || error.code() == ErrorCode::kVersionMismatch;
  if (!may_pass || options_.key_file.empty()) throw;
  if (options_.waits_for_another) {
    refusal_ = error;
    if (!tried_.empty()) refused_ = tried_;
  } else if (errors_++ > 0) {
    throw;
  }
}

void CoordinatorSearch::requireTime() const {
  if (Clock::now() < end_) return;
  const auto waited = options_.wait.count();
  if (refusal_) {
    fail(refusal_->code(), "{}; the key file {} has not changed within {} s", refusal_->message(),
         options_.key_file, waited);
  }
  if (endpoint_.empty()) {
    fail(ErrorCode::kPeerUnavailable,
         "the key file {} has not come within {} s; the coordinator writes it: is it running, and is that a "
         "folder that all hosts share?",
         options_.key_file, waited);
  }
  if (!why_no_address_.empty()) {
    fail(ErrorCode::kPeerUnavailable,
         "no coordinator at {} within {} s: its name has no address on this host ({}); give its address by "
         "--join, or have the coordinator tell one that all hosts know (run --advertise)",
         endpoint_, waited, why_no_address_);
  }
  fail(ErrorCode::kPeerUnavailable,
       "no coordinator answered at {} within {} s; is it running, and does a firewall stand between?",
       endpoint_, waited);
}

std::string CoordinatorSearch::awaited() const {
  if (refusal_) {
    return fmt::format("{}; waiting for a key file {} that has changed", refusal_->message(),
                       options_.key_file);
  }
  if (!has_place_) return fmt::format("waiting for the key file {}", options_.key_file);
  if (why_no_address_.empty()) return fmt::format("waiting for a coordinator at {}", endpoint_);
  return fmt::format("waiting for a coordinator at {}: its name has no address on this host ({})", endpoint_,
                     why_no_address_);
}

milliseconds CoordinatorSearch::pause() const {
  return has_place_ && !why_no_address_.empty() ? kBetweenLookUps : kBetweenTries;
}

}  // namespace pipeshard
