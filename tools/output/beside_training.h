// Writing beside training (log, JSON): a disk that is full must not end hours of work.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "ir/base/error.h"

namespace pipeshard {

class BesideTraining {
 public:
  // Hears of the first failure, at once.
  explicit BesideTraining(std::function<void(const std::string&)> notice) : notice_(std::move(notice)) {}

  // Calls `write`, unless it has failed before: what could not be written whole is not added to.
  template <typename Write>
  void attempt(Write&& write) {
    if (failure_) return;
    try {
      write();
    } catch (const Error& error) {
      failure_ = error;
      if (notice_) notice_(fmt::format("warning: {}; training goes on without it", error.message()));
    }
  }
  // At the end of a run: Error, with the code of the failure, if there was one.
  void requireWhole() const {
    if (failure_) fail(failure_->code(), "the steps are done, but {}", failure_->message());
  }

 private:
  std::function<void(const std::string&)> notice_;
  std::optional<Error> failure_;
};

}  // namespace pipeshard
