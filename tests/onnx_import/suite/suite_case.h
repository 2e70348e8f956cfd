// ONNX's backend test suites, as folders: <suite>/<case>/model.onnx with test_data_set_<n>/input_<i>.pb and
// output_<i>.pb; of `light`, files <case>.onnx and <case>_output_0.pb.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard::testing {

// One model with one set of data. Tensors by position of the graph's inputs and outputs.
struct SuiteCase {
  std::string suite;
  std::string name;
  std::filesystem::path model;
  std::vector<Constant> inputs;
  std::vector<Constant> outputs;
  // How far an output may be from what is expected; as ONNX's own runner of these suites has it.
  double relative = 1e-3;
  double absolute = 1e-6;
};

// What cannot be tried, and why: a few words of a short list.
enum class Unsupported { kNone, kStrings, kSequences, kDataDependentShapes, kRandom };
std::string_view describe(Unsupported reason);

// Why the standard says that the model is out of our reach: by its operators and types, not by trying.
Unsupported outOfReach(const std::filesystem::path& model);

// The folders of all cases of a suite, sorted by name.
std::vector<std::filesystem::path> casesOf(const std::filesystem::path& suite);
// The data of one case, one SuiteCase per data set. Throws Error for what cannot be read.
std::vector<SuiteCase> readCases(const std::filesystem::path& folder);

// Whether the model, read, prepared and run node by node, gives the outputs. "" or what is wrong.
std::string runSuiteCase(const SuiteCase& tested);

}  // namespace pipeshard::testing
