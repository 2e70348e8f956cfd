#include "planning/model/module_notes.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/counted.h"

namespace pipeshard {
namespace {

constexpr size_t kFewNames = 6;
constexpr size_t kAllNames = SIZE_MAX;

// What became of so many parameters ({0}: "2 parameters"; {1}: "their own names"), or of these ({0}: names,
// at most `most` of them).
struct ParameterNote {
  int ModuleParameters::*count = nullptr;
  const char* one = nullptr;
  const char* several = nullptr;
  std::vector<std::string> ModuleParameters::*names = nullptr;
  size_t most = kAllNames;
  const char* sentence = nullptr;
};

constexpr ParameterNote countNote(int ModuleParameters::*count, const char* one, const char* several,
                                  const char* sentence) {
  return {count, one, several, nullptr, 0, sentence};
}

constexpr ParameterNote nameNote(std::vector<std::string> ModuleParameters::*names, size_t most,
                                 const char* sentence) {
  return {nullptr, nullptr, nullptr, names, most, sentence};
}

constexpr const char kOne[] = "parameter", kSeveral[] = "parameters";

// In the order in which they are told.
constexpr ParameterNote kParameterNotes[] = {
    countNote(&ModuleParameters::transposed, kOne, kSeveral,
              "{0} that the exporter's optimizer has stored transposed, trained as such under {1}"),
    nameNote(&ModuleParameters::nameless, kFewNames,
             "matrices whose names in the module are not in the file, trained under the exporter's names, as "
             "they are stored (of a Linear: transposed): {0}"),
    nameNote(&ModuleParameters::recurrent, kFewNames,
             "weights of recurrent layers, trained as the exporter has folded them (gates in ONNX's order, "
             "both biases in one tensor), and written so under its names: {0}"),
    countNote(&ModuleParameters::separated, kOne, kSeveral,
              "{0} that the exporter's optimizer had merged with equal ones, apart again"),
    nameNote(&ModuleParameters::taken_as_one, kFewNames,
             "equal matrices, trained as one, which their modules seem to share, as other things in them "
             "differ or are shared; a file exported with do_constant_folding=False, or with dynamo=True, "
             "tells which they are: {0}"),
    nameNote(&ModuleParameters::untold, kFewNames,
             "equal matrices, trained apart, as of copies of a module; if the module shares them, this is "
             "wrong; a file exported with do_constant_folding=False, or with dynamo=True, tells which they "
             "are: {0}"),
    countNote(&ModuleParameters::statistics, "running statistic", "running statistics",
              "{0} that the exporter's optimizer had merged with equal tensors, apart again"),
    countNote(&ModuleParameters::zero_biases, "bias", "biases",
              "{0} that the exporter's optimizer had left out, as zero, made again"),
    countNote(&ModuleParameters::unfolded, kOne, kSeveral,
              "{0} that the exporter's optimizer had folded into constants, made again"),
    nameNote(&ModuleParameters::tied, kAllNames, "tied again, as the file has a transposed copy: {0}"),
    nameNote(&ModuleParameters::padded, kAllNames,
             "the row of padding_idx is trained like any other, which PyTorch does not (the file does not "
             "show the lookup): {0}"),
};

// "" where none are concerned.
std::string textOf(const ParameterNote& note, const ModuleParameters& parameters) {
  if (note.names != nullptr) {
    const std::vector<std::string>& names = parameters.*note.names;
    return names.empty() ? "" : fmt::format(fmt::runtime(note.sentence), listed(names, note.most));
  }
  const int count = parameters.*note.count;
  if (count == 0) return "";
  return fmt::format(fmt::runtime(note.sentence),
                     fmt::format("{} {}", count, count == 1 ? note.one : note.several),
                     count == 1 ? "its own name" : "their own names");
}

}  // namespace

std::vector<std::string> moduleNotes(const ModuleParameters& parameters, bool trains) {
  std::vector<std::string> notes;
  for (const ParameterNote& note : kParameterNotes) {
    std::string text = textOf(note, parameters);
    if (!text.empty()) notes.push_back(std::move(text));
  }
  if (!parameters.other_names.empty()) {
    std::vector<std::string> names;
    for (const TiedName& other : parameters.other_names)
      names.push_back(fmt::format("{} ({})", other.name, other.parameter));
    notes.push_back(
        fmt::format("other names of tied parameters, trained as one: {}", fmt::join(names, ", ")));
  }
  if (!parameters.unread.empty()) {
    notes.push_back(
        fmt::format("never read by the forward pass, so that training leaves them as they are: {} (or names "
                    "of a tied parameter that no call goes by, like T5's shared.weight: that one is trained, "
                    "and `export --tied` writes it under them, too)",
                    listed(parameters.unread, kFewNames)));
  }
  if (parameters.torchscript && !parameters.keras && trains) {
    notes.emplace_back(
        "files of the TorchScript exporter do not show detach(), no_grad() and padding_idx: where the module "
        "has one, gradients go through it that PyTorch stops (torch.onnx.export's default shows them)");
  }
  return notes;
}

std::string unreadInputsNote(const std::vector<std::string>& inputs) {
  if (inputs.empty()) return "";
  return fmt::format(
      "inputs whose content nothing reads: {} (if the module does: an example call that passes one tensor "
      "for two arguments makes the exporter take one for both)",
      fmt::join(inputs, ", "));
}

std::string lostNote(const ModuleParameters& parameters) {
  constexpr size_t kMost = 6;
  if (parameters.lost.empty()) return "";
  std::vector<std::string> names;
  for (const LostParameter& lost : parameters.lost) names.push_back(lost.name);
  return fmt::format("not in the file as the module has them, and not trained as such: {}",
                     listed(names, kMost));
}

}  // namespace pipeshard
