#include "ir/base/name_pattern.h"

#include <re2/re2.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

RE2::Options optionsFor(NamePattern::Case letters) {
  RE2::Options options;
  options.set_log_errors(false);  // the error says it
  options.set_case_sensitive(letters == NamePattern::Case::kMatters);
  return options;
}

// What other matchers take and RE2 does not.
const char* hintAt(RE2::ErrorCode code) {
  const bool is_known_elsewhere = code == RE2::ErrorBadPerlOp || code == RE2::ErrorRepeatArgument ||
                                  code == RE2::ErrorBadEscape || code == RE2::ErrorRepeatOp;
  return is_known_elsewhere ? " (the syntax is RE2's: no look-ahead, no back-references)" : "";
}

}  // namespace

struct NamePattern::Compiled {
  Compiled(const std::string& text, Case letters) : expression(text, optionsFor(letters)) {}

  RE2 expression;
};

NamePattern::NamePattern(const std::string& given, const std::string& expression, Case letters)
    : compiled_(std::make_unique<Compiled>(expression, letters)) {
  const RE2& compiled = compiled_->expression;
  if (!compiled.ok()) {
    fail(ErrorCode::kUsage, "{} is no regular expression: {}{}", given, compiled.error(),
         hintAt(compiled.error_code()));
  }
}

NamePattern::NamePattern(NamePattern&&) noexcept = default;
NamePattern& NamePattern::operator=(NamePattern&&) noexcept = default;
NamePattern::~NamePattern() = default;

bool NamePattern::isFoundIn(std::string_view name) const {
  return RE2::PartialMatch(re2::StringPiece(name.data(), name.size()), compiled_->expression);
}

}  // namespace pipeshard
