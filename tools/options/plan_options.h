// The options of planning, as texts, and the request that they mean.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "planning/request/plan_request.h"

namespace pipeshard {

// What is a text on the command line and a value in the request. Everything else the options write into
// `request` at once.
struct PlanOptions {
  PlanRequest request;
  std::vector<std::string> dimensions;  // "batch=8"
  std::string loss;
  std::map<std::string, std::vector<std::string>> given;  // GivenOptions by flag, those that are there
  std::string recomputation = "never";
  std::string method;
  std::string stages;  // "": by defaultStages
  std::optional<std::string> schedule;
  std::string balance;
  std::string submeshes;
  std::string logical_meshes;
  std::string mesh;
  std::vector<std::string> shard;  // "w1=S0,R"
  std::string cluster = "1x1";
  std::string profile;  // as chooseProfile takes it
};

// Declares the options on a subcommand; they must outlive parsing.
void addModelOptions(CLI::App& command, PlanOptions& options);
void addPlanOptions(CLI::App& command, PlanOptions& options);
// --precision alone, for a command that has the model's options and plans nothing.
void addPrecisionOption(CLI::App& command, PlanOptions& options);
// What a stage file looks like, for the end of --help.
const char* stageFileHelp();

// What addModelOptions has declared; reads no profile and no cluster. Errors: kUsage, naming the option.
PlanRequest modelRequest(const PlanOptions& options);
// The request, complete. Errors: kUsage, kMissingInput, kConfiguration, naming the option.
PlanRequest planRequest(const PlanOptions& options);

}  // namespace pipeshard
