// What a lowering computes beforehand is a constant of the model: as large as sizes in a file say, but not
// larger than memory stands.
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard::testing {
namespace {

// One node, whose operator has no kernel.
void prepare(const std::string& inputs, const std::string& constants, const std::string& node) {
  PrepareOptions options;
  options.supported = [](const Node&) { return false; };
  prepareModel(graphFromText(fmt::format(R"(<ir_version: 10, opset_import: ["" : 20]>
    g ({}) => (float[] y) <{}> {{ [large] y = {} }})",
                                         inputs, constants, node)),
               options);
}

void expectRefused(const std::string& inputs, const std::string& constants, const std::string& node) {
  EXPECT_ERROR(prepare(inputs, constants, node), ErrorCode::kBadModel, "large", "it would become a table [",
               "make its images, signals or lists smaller");
}

TEST(LargeTables, OfImagesAreRefused) {
  expectRefused("float[1,1,5000,5000] x, float[1,1,1,1] w, float[1,2,5000,5000] o", "",
                "DeformConv <kernel_shape = [1, 1]> (x, w, o)");
  expectRefused("float[1,2,3] x", "int64[4] s = {1, 1, 3000, 3000}", "AffineGrid (x, s)");
  expectRefused("float[1,1,10000,10000] x", "",
                "LpPool <kernel_shape = [5000, 5000], dilations = [2, 2]> (x)");
  expectRefused("float[1,4900,1] x", "int64[2] i = {70, 70}, int64[2] b = {70, 70}", "Col2Im (x, i, b)");
  expectRefused("float[1,1,5000] x", "int64[3] s = {1, 1, 10000}", "Resize <mode = \"linear\"> (x, , , s)");
  expectRefused("float[1,1,5000,5000] x, int64[1,1,5000,5000] i", "",
                "MaxUnpool <kernel_shape = [1, 1]> (x, i)");
}

TEST(LargeTables, OfSignalsAreRefused) {
  expectRefused("float[1,3000,1] x", "", "DFT (x)");
  expectRefused("float[1,10000,1] x", "int64 step = {1}, int64 length = {5000}",
                "STFT <onesided = 1> (x, step, , length)");
  expectRefused("float[20000000,1] x, int64[1] l", "", "ReverseSequence (x, l)");
}

}  // namespace
}  // namespace pipeshard::testing
