// What is true of an operator, whoever asks: a row of one table (operator_table.cc) for every operator that
// has a kernel, a factor rule or a gradient rule. An operator is added with its row; passes ask the row and
// list no names. What really treats one operator in its own way names it: a kernel, a factor or gradient
// rule, the evaluation of constants, an exchange form, a condition on attributes.
//
//   operatorFacts(node).view == View::kSameBytes        Reshape, Squeeze, ...: no kernel need run
//   operatorFacts("", "Where").additive.contains(1)     true: linear in its second and third input together
//
// Two columns where one would seem enough say two things: a Cast keeps its elements, a CastLike only passes
// them on; Expand reads a shape (shape_inputs), and it is the shape of its output (sizes_input).
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"

namespace pipeshard {

// Positions of inputs. Those from 31 on are in the set together, or none is.
class InputSet {
 public:
  constexpr InputSet() = default;
  constexpr InputSet(std::initializer_list<int> inputs) {
    for (int input : inputs) bits_ |= uint32_t{1} << input;
  }
  static constexpr InputSet from(int first) { return InputSet(~uint32_t{0} << first); }
  constexpr bool contains(size_t input) const { return (bits_ >> (input < 31 ? input : 31) & 1) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  friend constexpr bool operator==(InputSet, InputSet) = default;

 private:
  constexpr explicit InputSet(uint32_t bits) : bits_(bits) {}
  uint32_t bits_ = 0;
};

// Whether the output is the first input, shown otherwise.
enum class View : uint8_t {
  kNone,
  kSameBytes,   // under another shape, or another name
  kOtherOrder,  // its axes in another order: products read that without a copy
};

// When a kernel may add its result to what is there (Kernel::mayAccumulate).
enum class AddsUp : uint8_t {
  kNever,
  kAlways,
  kOneProduct,   // of matrices, not of many
  kWithoutBias,  // if there is no third input
};

// What a kernel needs beside inputs and outputs, as planning foresees it (sharding/pricing/kernel_memory.h).
enum class Workspace : uint8_t {
  kNone,
  kConvolution,         // packed weights, and one row of input and output
  kConvolutionWeights,  // for the gradient of weights: the image, and a piece of the others
};

// What an operator computes in under mixed precision, if it works on activations
// (onnx_import/precision/mixed_precision.h).
enum class MixedPrecision : uint8_t {
  kByWork,   // contractions, convolutions and elementwise work: narrow; reductions: float32; movement: as
             // its input is
  kNarrow,   // reads and gives the narrow type; sums inside it are float32's
  kFloat32,  // a small error of its input is a large one of its output
};

struct OperatorFacts {
  std::string_view domain = "";  // "": ONNX's own
  std::string_view op_type = "";
  WorkClass work = WorkClass::kElementwise;  // what its time follows from
  bool has_kernel = false;  // of the CPU; what another device lacks, it refuses when a program is loaded

  // Types
  MixedPrecision mixed = MixedPrecision::kByWork;
  InputSet own_types = {};  // floats whose type need not be the first input's

  // Elements
  View view = View::kNone;
  InputSet keeps = {};   // the first output has every element of these inputs, and nothing happens to it
  InputSet passes = {};  // the first output may have elements of these, not all or not as they were

  // Arguments
  InputSet shape_inputs = {};         // sizes, axes, places: to be known before a run, the same for any cut
  int sizes_input = -1;               // the sizes of the first output; a device gives its own
  InputSet unread_inputs = {};        // whose shape or type is read, and no element
  bool has_optional_outputs = false;  // those behind the first are made for a backward pass alone
  std::string_view float32_attribute = "";  // the type of an output; float32 where it is left out
  InputSet float32_inputs = {};             // float32 whatever type the others have

  // Sums: a partial sum at these inputs makes a partial sum of the output. Conditions on types and attributes
  // are in sharding/spmd/linearity.cc.
  InputSet additive = {};         // of all of them together, whatever the attributes: an addition, a choice
  InputSet linear = {};           // of each of them alone
  InputSet linear_together = {};  // of all of them together, by attributes
  int added_input = -1;           // added once to what is linear: a bias

  // Memory of kernels, as planning foresees it: said of too few operators, too much is foreseen.
  InputSet overwrites = {};  // the first output may take the place of one of these, if it has as many bytes
  AddsUp adds_up = AddsUp::kNever;
  Workspace workspace = Workspace::kNone;

  // Weights
  InputSet layer_weights = {};  // where layers have their weights, whose floats are trained
  InputSet settings = {};       // limits, masks, numbers: no weights

  // Kinds that passes look for
  bool multiplies_matrices = false;  // first input and second
  bool looks_up = false;             // takes rows by index, or adds to them
  bool normalizes_rows = false;      // over the last axes
  bool is_random = false;            // gives other numbers a second time
  bool is_update = false;            // an optimizer's: weights, their states, what they follow from
  bool takes_labels = false;         // a loss whose second input is numbers of classes
  bool is_quantized = false;         // reads or makes numbers of few bits, which scales give their meaning
};

// The row; of an operator that has none, facts that claim nothing.
const OperatorFacts& operatorFacts(std::string_view domain, std::string_view op_type);
inline const OperatorFacts& operatorFacts(const Node& node) {
  return operatorFacts(node.domain, node.op_type);
}

// The node's output is its first input under another shape or name, if types and sizes agree.
inline bool isView(const Node& node) { return operatorFacts(node).view == View::kSameBytes; }

// A Transpose of matrices, the last two axes; of an input whose shape is known.
bool swapsLastTwoAxes(const Graph& graph, const Node& node);

// There is a kernel for the operator (which may still refuse types and attributes).
inline bool hasKernel(const Node& node) { return operatorFacts(node).has_kernel; }

// A batch normalisation in training mode: by the moments of its own batch, which its running ones follow.
inline bool normalizesByBatch(const Node& node) {
  return node.is("BatchNormalization") && node.intAttribute("training_mode", 0) != 0;
}

}  // namespace pipeshard
