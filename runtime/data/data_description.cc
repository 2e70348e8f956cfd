#include "runtime/data/data_description.h"

#include <fmt/format.h>

namespace pipeshard {

std::string printData(const DataDescription& description) {
  std::string text = description.path;
  if (!description.command.empty()) text = fmt::format("what `{}` writes", description.command);
  if (description.path == kStandardInput) text = "standard input";
  if (description.shuffle) text += ", shuffled";
  if (description.shift_labels) text += ", labels shifted";
  if (description.end.drop_last) text += ", the last rows dropped";
  return text;
}

}  // namespace pipeshard
