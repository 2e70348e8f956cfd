#include "tools/options/data_options.h"

#include "tools/options/option_checks.h"

namespace pipeshard {

void addDataOptions(CLI::App& command, DataDescription& data) {
  command
      .add_option(
          "--data", data.path,
          "An array per model input (.npz, .safetensors, a folder of .npy, .csv, .jsonl, a folder of\n"
          "ONNX test data) or tokens (.u16, .u32, .bin); what is longer than the batch gives the next\n"
          "steps. - : standard input, as --data-command (default: synthetic)")
      ->type_name("FILE|DIR|-");
  command.add_flag("--shuffle", data.shuffle, "Take the examples in another order in every epoch, by --seed");
  command.add_flag("--shift-labels", data.shift_labels,
                   "Of tokens: labels are one token behind the ids, for a model that does not shift them");
  command
      .add_option("--end-of-text", data.end_of_text,
                  "Of tokens: this one ends a document, and no sequence has tokens of two (`tokens "
                  "--end-of-text`\nnames it); rows that are shorter than the model's are padded")
      ->type_name("ID")
      ->check(CLI::Range(int64_t{0}, int64_t{UINT32_MAX}));
  command.add_flag("--drop-last", data.end.drop_last,
                   "Leave out the examples of a file that do not fill a batch");
  command.add_flag("--truncate", data.truncate,
                   "Cut examples that are longer than the longest sequences of a plan for several lengths");
  command
      .add_option_function<std::vector<std::string>>(
          "--pad",
          [&data](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) addPadding(text, data);
          },
          "What an input has behind a sequence that is shorter than its batch; repeat for several\n"
          "(default: masks 0, labels the one that the loss ignores, others 0)")
      ->type_name("INPUT=NUMBER")
      ->allow_extra_args(false);
}

void addLoaderOptions(CLI::App& command, DataDescription& data) {
  command
      .add_option("--data-command", data.command,
                  "Instead of --data: a shell command that writes batches to its standard output, each as a\n"
                  "length and safetensors (docs/data.md); {step} in it is how many steps are done already")
      ->excludes("--data")
      ->type_name("COMMAND");
  command
      .add_option_function<int>(
          "--data-timeout", [&data](int seconds) { data.loader_timeout = std::chrono::seconds(seconds); },
          "Longest wait for the next batch of --data-command or --data - (default: 2 minutes)")
      ->type_name("SECONDS")
      ->check(positiveWhole());
}

}  // namespace pipeshard
