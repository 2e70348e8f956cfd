// What `validate` found, kept in the plan directory (validation.json), so that `report` can show it again.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/validation/validate.h"

namespace pipeshard {

inline constexpr const char* kValidationFileName = "validation.json";
inline constexpr const char* kTraceFileName = "trace.json";  // beside it: what the ranks did meanwhile

// Losses, comparisons, memory of the ranks, times of the last step. Same input, same bytes.
std::string validationToJson(const ValidationReport& report);
// Error(kConfiguration) for what is none.
ValidationReport validationFromJson(std::string_view text);

// Nothing where the directory has none. Errors name the file.
std::optional<ValidationReport> readValidation(const std::string& plan_directory);

}  // namespace pipeshard
