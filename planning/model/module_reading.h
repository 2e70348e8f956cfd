// From the graph of a file to the module that was exported: what the exporter has changed is undone.
//
// Planning reads a file for what it trains, `export` reads it again to write it with other weights. Both do
// it here, so that a parameter has one name in plans, checkpoints and the model that is taken home.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ir/graph/graph.h"
#include "ir/plan/given_options.h"
#include "onnx_import/exporter/module_parameters.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/forms/model_form.h"

namespace pipeshard {

// How the file is read: large weights stay in it, those in Constant nodes are initializers.
ReadOptions planningReadOptions(const std::string& external_data_root);
// Reads it so, and brings in the integers that passes compute with (inlineIntegers): indices, sizes, masks.
Graph readForPlanning(const std::string& path, const ReadOptions& options);

enum class ModulePurpose : uint8_t {
  kPlan,    // the graph becomes what a plan computes
  kExport,  // the graph is written again: inputs, outputs, modes and the way of gradients stay
};

struct RestoreOptions {
  ReduceOptions form;
  ModulePurpose purpose = ModulePurpose::kPlan;
  // Of kPlan alone:
  ModuleMode mode = ModuleMode::kAsExported;
  bool trains = true;          // weights are updated
  bool keeps_refusal = false;  // a model that is only looked at (refuseOrKeep)
};

struct RestoredModule {
  ReducedForm reduced;
  ModuleParameters parameters;
  std::vector<std::string> smoothing;  // notes on cross-entropies (restoreCrossEntropies)
  // Of kPlan alone:
  Graph joint;                     // the reduced form as the file computes it; empty: it has one output
  std::vector<std::string> notes;  // what else was found, in the order of the passes
  std::string refusal;             // why planning refuses it (refuseOrKeep)
};

// The passes over a graph as read, up to the names of its parameters. Weights that are not in the file come
// behind (given_weights.h). Errors are those of the passes (onnx_import/exporter, onnx_import/forms).
RestoredModule restoreModule(Graph& graph, const RestoreOptions& options);

// A model that is only looked at (`keeps`) keeps the first reason why planning refuses it: `refusal` gets the
// error's message. Otherwise what `check` throws goes on.
void refuseOrKeep(bool keeps, std::string& refusal, const std::function<void()>& check);

}  // namespace pipeshard
