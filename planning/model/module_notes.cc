#include "planning/model/module_notes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/counted.h"

namespace pipeshard {

std::vector<std::string> moduleNotes(const ModuleParameters& parameters, bool trains) {
  std::vector<std::string> notes;
  if (parameters.transposed > 0) {
    notes.push_back(
        fmt::format("{} that the exporter's optimizer has stored transposed, trained as such under {} own {}",
                    counted(parameters.transposed, "parameter"), parameters.transposed == 1 ? "its" : "their",
                    parameters.transposed == 1 ? "name" : "names"));
  }
  if (!parameters.nameless.empty()) {
    notes.push_back(
        fmt::format("matrices whose names in the module are not in the file, trained under the exporter's "
                    "names, as they are stored (of a Linear: transposed): {}",
                    listed(parameters.nameless, 6)));
  }
  if (!parameters.recurrent.empty()) {
    notes.push_back(
        fmt::format("weights of recurrent layers, trained as the exporter has folded them (gates in ONNX's "
                    "order, both biases in one tensor), and written so under its names: {}",
                    listed(parameters.recurrent, 6)));
  }
  if (parameters.separated > 0) {
    notes.push_back(fmt::format("{} that the exporter's optimizer had merged with equal ones, apart again",
                                counted(parameters.separated, "parameter")));
  }
  constexpr const char* kTold =
      "a file exported with do_constant_folding=False, or with dynamo=True, tells which they are";
  if (!parameters.taken_as_one.empty()) {
    notes.push_back(
        fmt::format("equal matrices, trained as one, which their modules seem to share, as other things in "
                    "them differ or are shared; {}: {}",
                    kTold, listed(parameters.taken_as_one, 6)));
  }
  if (!parameters.untold.empty()) {
    notes.push_back(fmt::format(
        "equal matrices, trained apart, as of copies of a module; if the module shares them, this "
        "is wrong; {}: {}",
        kTold, listed(parameters.untold, 6)));
  }
  if (parameters.statistics > 0) {
    notes.push_back(fmt::format("{} that the exporter's optimizer had merged with equal tensors, apart again",
                                counted(parameters.statistics, "running statistic")));
  }
  if (parameters.zero_biases > 0) {
    notes.push_back(fmt::format(
        "{} that the exporter's optimizer had left out, as zero, made again",
        parameters.zero_biases == 1 ? "1 bias" : fmt::format("{} biases", parameters.zero_biases)));
  }
  if (parameters.unfolded > 0) {
    notes.push_back(fmt::format("{} that the exporter's optimizer had folded into constants, made again",
                                counted(parameters.unfolded, "parameter")));
  }
  if (!parameters.tied.empty()) {
    notes.push_back(
        fmt::format("tied again, as the file has a transposed copy: {}", fmt::join(parameters.tied, ", ")));
  }
  if (!parameters.padded.empty()) {
    notes.push_back(
        fmt::format("the row of padding_idx is trained like any other, which PyTorch does not (the file does "
                    "not show the lookup): {}",
                    fmt::join(parameters.padded, ", ")));
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
                    fmt::join(parameters.unread, ", ")));
  }
  if (parameters.torchscript && !parameters.keras && trains) {
    notes.emplace_back(
        "files of the TorchScript exporter do not show detach(), no_grad() and padding_idx: where the module "
        "has one, gradients go through it that PyTorch stops (torch.onnx.export's default shows them)");
  }
  return notes;
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
