#include "runtime/data/data_description.h"

#include <charconv>

#include <fmt/format.h>

#include "ir/base/error.h"

namespace pipeshard {

void addPadding(const std::string& text, DataDescription& description) {
  const size_t equals = text.rfind('=');
  double number = 0;
  const char* const end = text.data() + text.size();
  const bool parsed = equals != std::string::npos && equals > 0 && equals + 1 < text.size() &&
                      std::from_chars(text.data() + equals + 1, end, number).ptr == end;
  if (!parsed) fail(ErrorCode::kUsage, "--pad {}: expected INPUT=NUMBER, e.g. --pad input_ids=50256", text);
  if (!description.padding.emplace(text.substr(0, equals), number).second)
    fail(ErrorCode::kUsage, "--pad {}: '{}' is padded twice", text, text.substr(0, equals));
}

std::string printData(const DataDescription& description) {
  std::string text = description.path;
  if (!description.command.empty()) text = fmt::format("what `{}` writes", description.command);
  if (description.path == kStandardInput) text = "standard input";
  if (description.shuffle) text += ", shuffled";
  if (description.shift_labels) text += ", labels shifted";
  if (description.end_of_text >= 0) text += fmt::format(", documents end with {}", description.end_of_text);
  if (description.truncate) text += ", long rows cut";
  for (const auto& [input, number] : description.padding)
    text += fmt::format(", {} padded by {}", input, number);
  if (description.end.drop_last) text += ", the last rows dropped";
  return text;
}

}  // namespace pipeshard
