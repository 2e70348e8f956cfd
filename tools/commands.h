// The subcommands. Each add* declares its options on the app and returns the function that runs it (the exit
// code is its result); state shared with the options lives as long as that function.
#pragma once

#include <functional>

#include <CLI/CLI.hpp>

namespace pipeshard {

using CommandFunction = std::function<int()>;

CommandFunction addInspectCommand(CLI::App& app);
CommandFunction addPlanCommand(CLI::App& app);
CommandFunction addExplainCommand(CLI::App& app);
CommandFunction addSimulateCommand(CLI::App& app);
CommandFunction addValidateCommand(CLI::App& app);
CommandFunction addRunCommand(CLI::App& app);
CommandFunction addCheckpointCommand(CLI::App& app);
CommandFunction addExportCommand(CLI::App& app);
CommandFunction addProfileCommand(CLI::App& app);
CommandFunction addPipeDreamCommand(CLI::App& app);
CommandFunction addReportCommand(CLI::App& app);
CommandFunction addClusterCommand(CLI::App& app);
CommandFunction addTokensCommand(CLI::App& app);
CommandFunction addNodeCommand(CLI::App& app);
CommandFunction addWorkerCommand(CLI::App& app);  // hidden: what the coordinator starts

}  // namespace pipeshard
