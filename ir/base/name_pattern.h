// Regular expressions that users give for names. Matched by RE2: the time is linear in the name, the memory
// bounded, whatever the expression (a backtracking matcher takes exponential time on some, or overflows the
// stack).
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace pipeshard {

class NamePattern {
 public:
  enum class Case { kMatters, kIgnored };

  // `given`: how a message calls it, "--group 'norm'". Error(kUsage) where `expression` is none that RE2
  // takes: look-ahead and back-references are not linear, so it has neither.
  NamePattern(const std::string& given, const std::string& expression, Case letters = Case::kMatters);
  NamePattern(NamePattern&&) noexcept;
  NamePattern& operator=(NamePattern&&) noexcept;
  ~NamePattern();

  // Whether a part of the name matches. From any thread.
  bool isFoundIn(std::string_view name) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace pipeshard
