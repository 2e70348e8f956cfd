#include "runtime/data/data_description.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"

namespace pipeshard {

std::string describeTooFew(const StepMakeup& parts, int64_t examples, int64_t of_step) {
  const std::string text = fmt::format("{} {} fewer than the {} of a step", counted(examples, "example"),
                                       examples == 1 ? "is" : "are", of_step);
  if (examples < 1 || parts.microbatches == 0) return text;
  const int64_t of_update = std::max<int64_t>(1, of_step / parts.updates);
  const int64_t of_microbatch = std::max<int64_t>(1, of_update / parts.microbatches);
  if (parts.updates > 1 && examples >= of_update)
    return fmt::format("{}; plan with --window {}", text, examples / of_update);
  if (!parts.batch_dimension.empty()) {
    return fmt::format("{}; plan with --dim {}={}{}", text, parts.batch_dimension, examples,
                       parts.updates > 1 ? " --window 1" : "");
  }
  if (parts.updates == 1 && parts.microbatches > 1 && examples >= of_microbatch)
    return fmt::format("{}; plan with --microbatches {}", text, examples / of_microbatch);
  return text + "; the batch of the model's file has one size, so more are needed";
}

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
