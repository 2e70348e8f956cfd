#include "planning/model/module_reading.h"

#include <utility>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "onnx_import/exporter/converter_traps.h"
#include "onnx_import/exporter/cross_entropies.h"
#include "onnx_import/exporter/detached_values.h"
#include "onnx_import/exporter/embedding_bag.h"
#include "onnx_import/exporter/exporter_traps.h"
#include "onnx_import/exporter/mistaken_calls.h"
#include "onnx_import/exporter/module_mode.h"
#include "onnx_import/exporter/no_grad_regions.h"
#include "onnx_import/format/initializer_bytes.h"
#include "onnx_import/loss/loss_weights.h"

namespace pipeshard {
namespace {

// Larger weights stay in the .onnx file and are read by those that need them.
constexpr uint64_t kInlineWeightBytes = 4096;
constexpr uint64_t kInlineIntegerBytes = 65536;

void noteStanding(int normalizations, std::vector<std::string>& notes) {
  if (normalizations == 0) return;
  notes.push_back(
      fmt::format("the running statistics of {} stay as they are: the file has no momentum for them "
                  "(PyTorch's momentum=None), or computes them of others (InstanceNorm)",
                  counted(normalizations, "batch normalization")));
}

void noteModes(const ChangedModes& changed, std::vector<std::string>& notes) {
  if (changed.normalizations + changed.dropouts == 0) {
    notes.emplace_back("--mode training changes nothing: nothing in the file is in inference mode");
    return;
  }
  notes.push_back(fmt::format("put into training mode, which the file does not have: {}, {}",
                              counted(changed.normalizations, "batch normalization"),
                              counted(changed.dropouts, "dropout")));
  noteStanding(changed.standing, notes);
  if (changed.in_evaluation > 0) {
    const bool one = changed.in_evaluation == 1;
    notes.push_back(fmt::format("{} {} in evaluation mode, as the module had {}",
                                counted(changed.in_evaluation, "batch normalization"), one ? "stays" : "stay",
                                one ? "it" : "them"));
  }
}

// Where the file computes another thing than the module did.
void noteUnlikeModule(const Graph& graph, const RestoreOptions& options, RestoredModule& module) {
  refuseOrKeep(options.keeps_refusal, module.refusal, [&] { refuseMistakenCalls(graph, options.trains); });
  std::vector<std::string>& notes = module.notes;
  for (std::string& note : exporterTraps(graph)) notes.push_back(std::move(note));
  for (std::string& note : converterTraps(graph)) notes.push_back(std::move(note));
  if (const std::vector<std::string> changed = changedBuffers(graph); !changed.empty()) {
    notes.push_back(
        fmt::format("the module's forward pass changes buffers, which the file does not: {} stay as they are",
                    listed(changed, 6)));
  }
}

// Where the module lets no gradient pass.
void stopGradients(Graph& graph, const RestoreOptions& options, RestoredModule& module) {
  std::vector<std::string>& notes = module.notes;
  int detached = 0;
  refuseOrKeep(options.keeps_refusal, module.refusal, [&] { detached = stopAtDetachedValues(graph); });
  if (detached > 0) {
    notes.push_back(
        fmt::format("{} detached, as in the module: no gradient passes", counted(detached, "value")));
  }
  if (const int ungraded = stopAfterNoGrad(graph); ungraded > 0) {
    notes.push_back(fmt::format("{} computed under torch.no_grad(), as in the module: no gradient passes",
                                counted(ungraded, "value")));
  }
}

// What planning does between the form and the parameters. Nothing here renames a weight, so an export, which
// writes the file's own operators, does without.
void readAsTrained(Graph& graph, const RestoreOptions& options, RestoredModule& module) {
  // A copy first: the gradients that the file has were computed in its own mode, and with nothing stopped.
  if (graph.outputs.size() > 1) module.joint = graph;

  // The mode before the traps, which tell what is still in inference mode.
  if (options.trains) noteStanding(standingNormalizations(graph), module.notes);
  if (options.mode == ModuleMode::kTraining) noteModes(setTrainingMode(graph), module.notes);

  // Both the traps and stopAtDetachedValues find merged values by a node's call and that of the node before
  // it. Between the two stopAfterNoGrad puts a node without a call: it comes last.
  noteUnlikeModule(graph, options, module);
  stopGradients(graph, options, module);
  hideWholeRows(graph);
}

}  // namespace

ReadOptions planningReadOptions(const std::string& external_data_root) {
  ReadOptions read;
  read.external_data_root = external_data_root;
  read.inline_weight_bytes = kInlineWeightBytes;
  read.lift_constant_nodes = true;
  return read;
}

Graph readForPlanning(const std::string& path, const ReadOptions& options) {
  Graph graph = readModel(path, options);
  inlineIntegers(graph, kInlineIntegerBytes);
  return graph;
}

void refuseOrKeep(bool keeps, std::string& refusal, const std::function<void()>& check) {
  if (!keeps) return check();
  try {
    check();
  } catch (const Error& error) {
    if (refusal.empty()) refusal = error.message();
  }
}

RestoredModule restoreModule(Graph& graph, const RestoreOptions& options) {
  RestoredModule module;

  // Calls that the exporter has written otherwise. Bags of embeddings before restoreParameters, which does
  // not find a table that a loop reads; cross-entropies before `joint` is copied, which has the same loss
  // then.
  takeEmbeddingBags(graph);
  module.smoothing = restoreCrossEntropies(graph);

  // The form before all that follows: a file's own update is no part of the module. An export keeps that
  // update; it asks for the inputs that are weights.
  if (options.purpose == ModulePurpose::kExport) {
    Graph reduced = graph;
    module.reduced = reduceForm(reduced, options.form);
  } else {
    module.reduced = reduceForm(graph, options.form);
    readAsTrained(graph, options, module);
  }

  // Last, since it changes what nodes read and adds nodes: traps and stops compare the exporter's marks with
  // what the file has.
  module.parameters = restoreParameters(graph);
  takeConstants(graph);  // by the names that weights have now
  takeLossWeights(graph);
  return module;
}

}  // namespace pipeshard
