#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ir/base/amounts.h"
#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "onnx_import/autodiff/parameters.h"
#include "onnx_import/autodiff/update.h"
#include "planning/model/forward_model.h"
#include "planning/model/inspection.h"
#include "planning/model/module_notes.h"
#include "planning/model/operator_support.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/options/plan_options.h"
#include "tools/report/text_table.h"

namespace pipeshard {
namespace {

std::string supportText(const OperatorSupport& entry) {
  if (!entry.kernel) return "no CPU kernel: cannot run";
  std::string text;
  if (!entry.gradient) text += "no gradient (fine unless a parameter's gradient passes it)";
  if (!entry.factor_rule) text += std::string(text.empty() ? "" : "; ") + "no factor rule: runs replicated";
  return text.empty() ? "full" : text;
}

// Of operators that work on activations: how many compute in which type.
std::string typesText(const MixedNodes& mixed, DataType narrow) {
  const auto count = [](size_t number) { return number == 0 ? std::string("-") : std::to_string(number); };
  std::vector<std::vector<std::string>> rows = {
      {"on activations", std::string(dataTypeName(narrow)), "float32"}};
  for (const auto& [op, types] : mixed.operators) {
    if (types.narrow + types.float32 > 0) rows.push_back({op, count(types.narrow), count(types.float32)});
  }
  rows.push_back({"all", count(mixed.all.narrow), count(mixed.all.float32)});
  return fmt::format(
      "{}\n{} operators on inputs or weights alone: float32; {} casts of activations per microbatch, {} of "
      "weights per step\n--keep-float32 REGEX keeps operators in float32 (docs/precision.md)\n",
      formatTable(rows), mixed.all.apart, mixed.casts, mixed.weight_casts);
}

nlohmann::ordered_json toJson(const MixedNodes& mixed) {
  nlohmann::ordered_json json = {{"apart", mixed.all.apart},
                                 {"casts", mixed.casts},
                                 {"weight_casts", mixed.weight_casts},
                                 {"operators", nlohmann::ordered_json::array()}};
  for (const auto& [op, types] : mixed.operators) {
    if (types.narrow + types.float32 > 0)
      json["operators"].push_back({{"operator", op}, {"narrow", types.narrow}, {"float32", types.float32}});
  }
  return json;
}

nlohmann::ordered_json toJson(const ForwardModel& model, const ModelTotals& totals,
                              const std::vector<OperatorSupport>& support, const std::string& refusal) {
  nlohmann::ordered_json json;
  if (!refusal.empty()) json["cannot_be_trained"] = refusal;
  json["dimensions"] = model.dimensions;
  if (!model.length_dimension.empty())
    json["lengths"] = {{"dimension", model.length_dimension}, {"shorter", model.shorter_lengths}};
  json["parameters"] = totals.parameters;
  json["parameter_bytes"] = totals.parameter_bytes;
  json["activation_bytes"] = totals.activation_bytes;
  json["forward_flops"] = totals.flops;
  json["loss"] = lossName(model);
  json["outputs"] = model.outputs;
  json["form"] = modelFormName(model.form.form);
  for (const OperatorSupport& entry : support) {
    json["operators"].push_back({{"operator", entry.op},
                                 {"count", entry.count},
                                 {"kernel", entry.kernel},
                                 {"gradient", entry.gradient},
                                 {"factor_rule", entry.factor_rule}});
  }
  if (model.mixed) json["mixed_precision"] = toJson(*model.mixed);
  return json;
}

// What is trained, or why nothing is, and the notes that planning gives.
void printTrained(const ForwardModel& model, const std::string& refusal) {
  if (refusal.empty()) {
    fmt::print("{}\n", trainedSummary(model.graph, model.loss));
    if (const std::string note = lostNote(model.parameters); !note.empty()) fmt::print("note: {}\n", note);
  } else {
    fmt::print("cannot be trained as it is: {}\n", refusal);
    for (const LostParameter& lost : model.parameters.lost)
      fmt::print("cannot be trained: {} ({})\n", lost.name, lost.reason);
  }
  for (const std::string& note : model.notes) fmt::print("note: {}\n", note);
  for (const std::string& note : parameterNotes(model.graph, model.loss)) fmt::print("note: {}\n", note);
  for (const NearMiss& missed : model.missed_patterns)
    fmt::print("no {}, left as it is: {}: {}\n", patternName(missed.kind), missed.node, missed.reason);
}

void printVerdict(const std::string& asked, const Verdict& verdict) {
  fmt::print("{}: {}{}\n", asked, verdict.kind == Verdict::Kind::kRefused ? "refused: " : "", verdict.text);
}

// `refusal` stands above, and is not told again.
void printVerdicts(const ForwardModel& model, const std::string& refusal) {
  ModelVerdicts verdicts = judgeModel(model, refusal);
  if (verdicts.training.kind == Verdict::Kind::kRefused && !refusal.empty())
    verdicts.training.text = "cannot be trained as it is (above)";
  printVerdict("training", verdicts.training);
  if (verdicts.microbatches) printVerdict("microbatches", *verdicts.microbatches);
}

struct InspectCommand {
  PlanOptions options;
  std::string json;

  // Of a model that cannot be prepared what the file says is shown before the error.
  static ForwardModel load(const PlanRequest& request, Progress& progress) {
    try {
      return loadForward(request, AskedStages(), [&](const std::string& phase) { progress.phase(phase); });
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kBadModel) {
        const std::vector<std::string> lines = declaredValues(request);
        progress.clear();
        if (!lines.empty()) fmt::print("{}\n  {}\n", request.model_path, fmt::join(lines, "\n  "));
      }
      throw;
    }
  }

  int run() {
    PlanRequest request = modelRequest(options);
    request.microbatches = 1;
    request.any_sizes = true;
    request.allow_missing_weights = true;
    Progress progress;
    const ForwardModel model = load(request, progress);
    const std::string refusal = trainingRefusal(model, request.given);
    const std::vector<std::string> groups =
        refusal.empty() ? groupNotes(model.graph, model.groups) : std::vector<std::string>();
    const ModelTotals totals = countTotals(model);
    const std::vector<OperatorSupport> support = operatorSupport(model.graph);
    fmt::print("{}: {}, opset {}, {} nodes\n  {}\n", request.model_path, modelFormName(model.form.form),
               model.graph.opset_imports.at(""), model.graph.nodes.size(), model.form.why);
    for (ValueId input : model.graph.inputs) {
      const Value& value = model.graph.value(input);
      const auto axis = model.batch_axes.find(value.name);
      fmt::print("  input {} {}{}{}\n", value.name, dataTypeName(value.data_type),
                 shapeToString(*value.shape),
                 value.drawn                      ? ", drawn in every step"
                 : axis != model.batch_axes.end() ? fmt::format(", batch on axis {}", axis->second)
                                                  : "");
    }
    if (!model.length_dimension.empty())
      fmt::print("  lengths {} = {}, shown, and {}\n", model.length_dimension,
                 model.dimensions.at(model.length_dimension), fmt::join(model.shorter_lengths, ", "));
    for (const std::string& name : model.outputs) {
      const Value& value = model.graph.value(findValue(model.graph, name));
      fmt::print("  output {} {}{}\n", name, dataTypeName(value.data_type), shapeToString(*value.shape));
    }
    fmt::print("  loss {}\n", lossName(model));
    if (model.optimizer) fmt::print("  optimizer {}\n", optimizerToString(model.optimizer->spec));
    if (model.imported) {
      const ImportedBackward& backward = model.imported->backward;
      fmt::print(
          "  backward pass in the file: {} operators, {} gradients; it is made anew, validate compares the "
          "gradients\n",
          backward.operators, backward.gradients.size());
    }
    fmt::print("parameters {} ({}), forward {}, activations {}\n", totals.parameters,
               formatBytes(totals.parameter_bytes), formatFlops(totals.flops),
               formatBytes(totals.activation_bytes));
    printTrained(model, refusal);
    for (const std::string& note : groups) fmt::print("note: {}\n", note);
    fmt::print("\n");
    std::vector<std::vector<std::string>> rows = {{"operator", "nodes", "support"}};
    for (const OperatorSupport& entry : support)
      rows.push_back({entry.op, std::to_string(entry.count), supportText(entry)});
    fmt::print("{}\n", formatTable(rows));
    if (model.mixed) fmt::print("{}\n", typesText(*model.mixed, request.given.precision));
    printVerdicts(model, refusal);
    if (!json.empty()) writeTextFile(json, toJson(model, totals, support, refusal).dump(2) + "\n");
    return 0;
  }
};

}  // namespace

CommandFunction addInspectCommand(CLI::App& app) {
  auto command = std::make_shared<InspectCommand>();
  CLI::App* sub = app.add_subcommand(
      "inspect", "Show what is in a model: inputs, parameters, FLOPs, operators and what is unsupported");
  sub->add_option("MODEL", command->options.request.model_path, "The .onnx file")->required();
  addModelOptions(*sub, command->options);
  addPrecisionOption(*sub, command->options);
  sub->add_option("--json", command->json, "Also write the result to this file")->type_name("FILE");
  return [command] { return command->run(); };
}

}  // namespace pipeshard
