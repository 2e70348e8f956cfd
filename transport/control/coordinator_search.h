// Where a daemon finds its coordinator, which may not be there yet: the address that it was given, or that of
// the key file, which may not be there yet either, be half copied, or be that of a job that is over.
//
//   CoordinatorSearch search({.key_file = "job.key", .wait = 300s});
//   while (true) {
//     try {
//       if (auto place = search.next()) ...ControlClient::connect(place->address, ..., place->time); done...
//     } catch (const Error& error) {
//       search.heed(error);
//     }
//     search.requireTime();
//     ...say search.awaited(), sleep for search.pause()...
//   }
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "ir/base/error.h"
#include "transport/control/job_keys.h"

namespace pipeshard {

struct CoordinatorSearchOptions {
  std::string join = {};      // "tcp://HOST:PORT"; "": that of the key file
  std::string key_file = {};  // "": there is none, and `join` is given
  std::chrono::seconds wait{300};
  // A key file that was refused is not the last word: a coordinator that is started again writes another, and
  // who copies it by hand comes later.
  bool waits_for_another = false;
};

// Used by one thread.
class CoordinatorSearch {
 public:
  // One try.
  struct Place {
    std::optional<JobTicket> ticket;  // nothing: without keys
    std::string endpoint;             // as it was said
    std::string address;              // likewise, with one of the addresses of its name
    std::chrono::milliseconds time;   // for the try
  };

  explicit CoordinatorSearch(CoordinatorSearchOptions options)
      : options_(std::move(options)), end_(Clock::now() + options_.wait) {}

  // Where to try now: of a name with several addresses, one after the other. Nothing: there is no key file,
  // or still the one that was refused, or the name has no address. Errors as readJobTicket. May wait for the
  // resolver, some seconds.
  std::optional<Place> next();
  // Within a handler, of an error of next() or of joining at what it gave. Throws it again where waiting does
  // not help: all but kAuthentication and kVersionMismatch with a key file, and the second of those, unless
  // another file is waited for.
  void heed(const Error& error);
  // When the time is over: Error(kPeerUnavailable) that says what was missing; that of the refusal, where
  // another key file has not come.
  void requireTime() const;
  // "waiting for ...", for people.
  std::string awaited() const;
  std::chrono::milliseconds pause() const;  // to the next try

 private:
  using Clock = std::chrono::steady_clock;

  CoordinatorSearchOptions options_;
  Clock::time_point end_;
  std::string endpoint_;        // "": not known yet
  std::string why_no_address_;  // of its name; "": it has one
  bool has_place_ = false;      // at the last look
  size_t tries_ = 0;
  int errors_ = 0;
  std::string tried_;    // the server's public key in the file that was read last; "": it cannot be read
  std::string refused_;  // likewise, in that which was refused
  std::optional<Error> refusal_;
};

}  // namespace pipeshard
