#include <memory>

#include <fmt/format.h>

#include "ir/base/amounts.h"
#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "planning/trained/trained_model.h"
#include "tools/commands.h"

namespace pipeshard {
namespace {

struct ExportCommand {
  std::string checkpoint;
  std::string model;
  std::string tensors;
  TrainedModelRequest request;

  int run() {
    if (model.empty() && tensors.empty())
      fail(ErrorCode::kUsage, "export: name a file: -o trained.onnx, or --safetensors FILE");
    if (request.moving_average && request.training_info)
      fail(ErrorCode::kUsage, "export: training goes on from the parameters, not from --ema; leave one out");
    if (tensors.empty() && !request.tied.empty())
      fail(ErrorCode::kUsage, "export: --tied names tensors of the file that --safetensors writes; add it");
    if (request.in_inference_mode && model.empty())
      fail(ErrorCode::kUsage, "export: --mode is of the model that -o writes; add it");
    if (request.training_info && model.empty())
      fail(ErrorCode::kUsage, "export: --training-info is of the model that -o writes; add it");
    if (request.in_inference_mode && request.training_info)
      fail(ErrorCode::kUsage,
           "export: --training-info is of a model that is trained on, not of one in evaluation mode; leave "
           "one out");
    for (const std::string& path : {model, tensors}) {
      if (!path.empty()) requireWritable(path);
    }
    const auto notice = [](const std::string& text) { fmt::print(stderr, "{}\n", text); };
    const std::optional<Checkpoint> found = newestGoodCheckpoint(checkpoint, notice);
    if (!found)
      fail(ErrorCode::kMissingInput,
           "there is no checkpoint in {}; `pipeshard run --checkpoint {}` makes one", checkpoint, checkpoint);
    TrainedModelSummary summary;
    if (!model.empty()) summary = writeTrainedModel(*found, request, model);
    if (!tensors.empty()) summary = writeTrainedTensors(*found, request, tensors);
    for (const std::string& note : summary.notes) fmt::print("note: {}\n", note);
    fmt::print("step {}: {}{} ({} elements){} of {}\n", found->step,
               request.moving_average ? "the moving averages of " : "",
               counted(summary.parameters, "trained parameter"), summary.elements,
               summary.statistics > 0
                   ? fmt::format(" and {}", counted(summary.statistics, "running statistic"))
                   : "",
               found->directory);
    if (!model.empty())
      fmt::print("model: {}{}\n", model,
                 summary.data_path.empty() ? "" : fmt::format(" (weights in {})", summary.data_path));
    if (!tensors.empty()) fmt::print("tensors: {}\n", tensors);
    return 0;
  }
};

}  // namespace

CommandFunction addExportCommand(CLI::App& app) {
  auto command = std::make_shared<ExportCommand>();
  CLI::App* sub = app.add_subcommand(
      "export", "The trained model: the .onnx file that was planned, with a checkpoint's weights");
  sub->add_option("CHECKPOINT", command->checkpoint,
                  "A folder of checkpoints (the newest good one is taken), or one of them")
      ->required();
  sub->add_option("-o,--output", command->model, "Write the model here")->type_name("FILE.onnx");
  sub->add_option("--safetensors", command->tensors,
                  "Write the module's parameters and buffers here, by its own names (load_state_dict)")
      ->type_name("FILE");
  sub->add_option_function<std::vector<std::string>>(
         "--tied",
         [command](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) addTiedNames(text, command->request);
         },
         "Of --safetensors: a tensor also under other names of the module, which the model's file does not\n"
         "tell as nothing is called by them (T5: lm_head.weight=shared.weight); repeat for several")
      ->type_name("NAME=NAME[,NAME...]")
      ->allow_extra_args(false);
  sub->add_option_function<std::string>(
         "--mode",
         [command](const std::string& mode) { command->request.in_inference_mode = mode == "evaluation"; },
         "Of -o: batch normalizations and dropouts as the planned file has them, or in inference mode, "
         "without\n"
         "the outputs that are updated running statistics (default as-exported)")
      ->check(CLI::IsMember(std::vector<std::string>{"as-exported", "evaluation"}));
  sub->add_flag(
      "--training-info", command->request.training_info,
      "Also write how the model was trained into the .onnx file: loss, parameters, optimizer and its states "
      "(TrainingInfoProto)");
  sub->add_flag(
      "--ema", command->request.moving_average,
      "The moving averages of the trained parameters in their place, which a plan with --ema keeps");
  sub->add_option("--model", command->request.model,
                  "Where the planned model's file is now, if it has been moved or copied since; its weights "
                  "beside it")
      ->type_name("FILE.onnx");
  sub->add_option("--external-data-root", command->request.external_data_root, "As given to `plan`")
      ->type_name("DIR");
  sub->footer(
      "Example: pipeshard run gpt2.plan --steps 100 --checkpoint saved && pipeshard export saved -o "
      "trained.onnx");
  return [command] { return command->run(); };
}

}  // namespace pipeshard
