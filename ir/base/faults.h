// Faults of one input, collected so that people see all of them and not only the first.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/base/error.h"

namespace pipeshard {

// Runs `check`. What it throws because of input (kConfiguration, kUsage, kBadModel, kMissingInput) is kept,
// with the field before it; other errors pass. Whether it threw nothing.
template <typename F>
bool keepFault(const std::string& field, std::vector<std::string>& faults, const F& check) {
  try {
    check();
    return true;
  } catch (const Error& error) {
    switch (error.code()) {
      case ErrorCode::kConfiguration:
      case ErrorCode::kUsage:
      case ErrorCode::kBadModel:
      case ErrorCode::kMissingInput: break;
      default: throw;
    }
    faults.push_back(field + ": " + error.message());
    return false;
  }
}

// Throws Error(kConfiguration) with all faults, if there are any: one alone as it is, several in a list that
// `what` heads.
void throwFaults(std::string_view what, const std::vector<std::string>& faults);

}  // namespace pipeshard
