// What the user should know of the module's parameters, as notes.
#pragma once

#include <string>
#include <vector>

#include "onnx_import/exporter/module_parameters.h"

namespace pipeshard {

// What became of them in the file: undone transpositions and mergings, tied and unread ones; what a file of
// its exporter does not show of gradients, if it is trained.
std::vector<std::string> moduleNotes(const ModuleParameters& parameters, bool trains = true);

// Of the file's inputs of these names, whose content nothing reads. "" without any.
std::string unreadInputsNote(const std::vector<std::string>& inputs);

// Those that are lost, of a model that is trained nevertheless: by --freeze, or because --train takes what
// the file has in their place. "" without any.
std::string lostNote(const ModuleParameters& parameters);

}  // namespace pipeshard
