#include "runtime/data/stored_array.h"

#include <filesystem>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "runtime/data/array_files.h"
#include "runtime/data/npz_arrays.h"
#include "runtime/data/number_table.h"
#include "runtime/data/onnx_test_data.h"
#include "runtime/data/token_file.h"

namespace pipeshard {

std::unique_ptr<ArrayStore> openArrays(const DataDescription& description,
                                       const std::vector<ProgramInput>& inputs, const RowLengths& lengths) {
  const std::string& path = description.path;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    fail(ErrorCode::kMissingInput, "there is no data file {}", path);
  if (tokenTypeOf(path) != DataType::kUndefined) return openTokenFile(description, lengths);
  if (description.shift_labels || description.end_of_text >= 0) {
    fail(ErrorCode::kUsage, "{} goes with a file of tokens (.u16, .bin, .u32); {} is none",
         description.shift_labels ? "--shift-labels" : "--end-of-text", path);
  }
  if (isOnnxTestData(path)) {
    std::vector<const ProgramInput*> given;
    for (const ProgramInput& input : inputs) {
      if (!input.drawn) given.push_back(&input);
    }
    return openOnnxTestData(path, given);
  }
  if (std::filesystem::is_directory(path, ignored)) return openNpyFolder(path);
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".npz") return openNpzArrays(path, description.unpacked_descriptor);
  if (extension == ".safetensors") return openSafetensorsArrays(path);
  if (extension == ".csv") return openCsvTable(path);
  if (extension == ".jsonl") return openJsonLines(path, lengths);
  fail(ErrorCode::kUsage,
       "--data {}: what it holds is known by its name, which ends in .npz, .safetensors, .u16, .bin, .u32 "
       "(tokens), .csv or .jsonl, or is a folder of .npy files or of ONNX test data",
       path);
}

std::string describeUnused(const ArrayStore& store, const std::vector<ProgramInput>& inputs) {
  return describeUnused(store.unused(), inputs);
}

std::string describeUnused(std::vector<std::string> unused, const std::vector<ProgramInput>& inputs) {
  constexpr size_t kMostNamed = 6;
  if (unused.empty()) return "";
  for (std::string& name : unused) {
    if (name.empty()) name = "''";  // a column of row numbers, as pandas writes it
  }
  std::vector<std::string> names;
  for (const ProgramInput& input : inputs) {
    if (!input.drawn) names.push_back(input.name);
  }
  return fmt::format("no input takes {}; the model's inputs are {}", listed(unused, kMostNamed),
                     listed(names, kMostNamed));
}

}  // namespace pipeshard
