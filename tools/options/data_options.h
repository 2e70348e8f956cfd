// The options that say what is trained on, which `plan`, `run` and `validate` share.
#pragma once

#include <CLI/CLI.hpp>

#include "runtime/data/data_description.h"

namespace pipeshard {

// A file or folder, and the order and the end of its rows: all that decides how many steps an epoch has.
void addDataOptions(CLI::App& command, DataDescription& data);

// A program that gives batches, instead. Of commands that read them.
void addLoaderOptions(CLI::App& command, DataDescription& data);

}  // namespace pipeshard
