#include "onnx_import/prepare/prepare.h"

#include <algorithm>
#include <memory>
#include <variant>

#include <fmt/ranges.h>
#include <onnx/defs/schema.h>

#include "ir/base/error.h"
#include "ir/operators/initializer_role.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/lowering/unknown_operators.h"
#include "onnx_import/prepare/branches.h"
#include "onnx_import/prepare/dimensions.h"
#include "onnx_import/prepare/expand.h"
#include "onnx_import/prepare/inference.h"
#include "onnx_import/prepare/inline_functions.h"
#include "onnx_import/prepare/simplify.h"
#include "onnx_import/prepare/splice.h"
#include "onnx_import/prepare/unroll.h"
#include "onnx_import/prepare/upgrade.h"
#include "onnx_import/row_numbers/box_forms.h"
#include "onnx_import/row_numbers/row_forms.h"

namespace pipeshard {
namespace {

constexpr int kRounds = 64;  // each round makes the graph simpler; more than this is a bug

// An input with a default takes it: it is a weight that an old exporter lists among the inputs.
void adoptDefaults(Graph& graph) {
  std::erase_if(graph.inputs, [&](ValueId id) { return graph.initializers.contains(id); });
}

bool leavesOutAPart(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) {
    if (node.is("Split") && std::ranges::any_of(node.outputs, [](ValueId part) { return !part.valid(); }))
      return true;
    return std::ranges::any_of(node.attributes, [](const auto& attribute) {
      const auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute.second);
      return body != nullptr && leavesOutAPart(**body);
    });
  });
}

// The parts of a Split that nobody reads may have no name. They are parts all the same: where the others
// begin, and what the gradient is 0 for, follows from them.
void nameParts(Graph& graph) {
  if (!leavesOutAPart(graph)) return;
  GraphBuilder builder(graph);
  for (Node& node : graph.nodes) {
    for (auto& [name, attribute] : node.attributes) {
      auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute);
      if (body == nullptr) continue;
      auto named = std::make_shared<Graph>(**body);
      nameParts(*named);
      *body = std::move(named);
    }
    if (!node.is("Split")) continue;
    for (ValueId& part : node.outputs) {
      if (part.valid()) continue;
      part = builder.addValue("unread_part", DataType::kUndefined, {});
      graph.value(part).shape.reset();
    }
  }
}

void foldAll(Graph& graph, int64_t limit_bytes) {
  for (int round = 0; round < kRounds; ++round) {
    const int folded = foldConstants(graph, limit_bytes);
    const int simplified = simplify(graph);
    const int boxes = writeBoxes(graph);
    const int rewritten = boxes + writeWithoutRowNumbers(graph);
    const int unrolled = unrollLoops(graph);
    if (folded == 0 && simplified == 0 && rewritten == 0 && unrolled == 0) return;
    removeDeadCode(graph);
  }
  fail(ErrorCode::kInternal, "folding constants does not come to an end");
}

void expandAll(Graph& graph, const PrepareOptions& options) {
  for (int round = 0; round < kRounds; ++round) {
    // A condition may be found to be constant until nothing else is left to expand.
    if (expandUnsupported(graph, options.supported) == 0 && chooseBranches(graph, options.supported) == 0)
      return;
    foldAll(graph, options.fold_limit_bytes);
  }
  fail(ErrorCode::kInternal, "expanding operators into their ONNX function bodies does not come to an end");
}

// Control flow that has not gone by now stays.
void refuseControlFlow(Graph& graph, const Node& node) {
  std::string obstacle = branchObstacle(graph, node);
  if (obstacle.empty()) obstacle = loopObstacle(graph, node);
  if (!obstacle.empty()) fail(ErrorCode::kBadModel, "{}: {}", describeNode(node), obstacle);
}

// What to do: for a selection by a mask, x[mask], what to write in its place.
std::string_view waysRoundData(const Node& node) {
  if (!node.is("NonZero") && !node.is("Compress"))
    return ". Export the model without the part that makes it, and with what that gives as an input";
  return ". It selects by a mask, as x[mask] does: keep all elements, and leave out of the loss those that "
         "the mask leaves out: labels of -100 (torch.where(mask, labels, -100)), or a mean written as "
         "(loss * mask).sum() / mask.sum()";
}

[[noreturn]] void failUnknown(const Graph& graph, const Node& node, const Value& value) {
  const auto* schema =
      onnx::OpSchemaRegistry::Instance()->GetSchema(node.op_type, node.opset_version, node.domain);
  const std::string where = describeNode(node);
  if (schema == nullptr) {
    // What ONNX Runtime writes for the processor that it runs on.
    const bool for_one_machine = node.domain == "com.microsoft.nchwc";
    fail(ErrorCode::kBadModel,
         "{}: the operator is neither in ONNX (opset {} of domain '{}') nor a function of the model; {}",
         where, node.opset_version, node.domain.empty() ? "ai.onnx" : node.domain,
         for_one_machine ? "take the exporter's file, or have ONNX Runtime optimise it with "
                           "ORT_ENABLE_EXTENDED, which leaves such layouts out"
                         : "export the model without it");
  }
  if (isUnknownOperator(graph, node)) {
    fail(ErrorCode::kBadModel,
         "{}: operator {}::{} is not supported; export the model without it, or train a part of it that does "
         "not need it: --loss KIND:VALUE,LABELS names any value of the file",
         where, node.domain, node.op_type);
  }
  if (!value.opaque_type.empty()) {
    fail(ErrorCode::kBadModel,
         "{}: its output '{}' is no dense tensor (a sequence, optional or sparse tensor), which pipeshard "
         "does not support",
         where, value.name);
  }
  fail(ErrorCode::kBadModel,
       "{}: the shape of its output '{}' ({}{}) depends on data, not only on the shapes of the inputs; "
       "pipeshard needs static shapes{}",
       where, value.name, dataTypeName(value.data_type),
       value.shape ? shapeToString(*value.shape) : " of unknown rank", waysRoundData(node));
}

// Optional outputs that nobody reads need no shape: they go.
void omitUnreadOutputs(Graph& graph) {
  std::vector<bool> read(graph.values.size(), false);
  for (ValueId id : graph.outputs) read[id.index()] = true;
  for (const Node& node : graph.nodes) {
    for (ValueId id : node.inputs) {
      if (id.valid()) read[id.index()] = true;
    }
    std::vector<std::string> captures;
    collectCaptures(node, captures);
    for (const std::string& name : captures) {
      const ValueId id = findValue(graph, name);
      if (id.valid()) read[id.index()] = true;
    }
  }
  for (Node& node : graph.nodes) {
    for (size_t i = 1; i < node.outputs.size(); ++i) {
      const ValueId id = node.outputs[i];
      if (id.valid() && !read[id.index()] && !hasStaticType(graph.value(id))) node.outputs[i] = ValueId();
    }
    while (!node.outputs.empty() && !node.outputs.back().valid()) node.outputs.pop_back();
  }
}

// A limit like the reader's holds after binding and inference too.
void checkSize(const Value& value, uint64_t limit, const std::string& what) {
  if (static_cast<uint64_t>(elementCount(*value.shape)) <= limit) return;
  fail(ErrorCode::kBadModel, "{} '{}' has the shape {}, which is more than {} elements; check the dimensions",
       what, value.name, shapeToString(*value.shape), limit);
}

// What ONNX's inference does not look at: a product of sizes that do not fit, a bias that does not.
void checkGemm(const Graph& graph, const Node& node) {
  if (!node.is("Gemm") || node.inputs.size() < 2) return;
  const Shape& a = graph.shape(node.inputs[0]);
  const Shape& b = graph.shape(node.inputs[1]);
  const Shape& y = graph.shape(node.outputs[0]);
  const bool matrices = a.size() == 2 && b.size() == 2 && y.size() == 2;
  const size_t inner_a = node.intAttribute("transA", 0) != 0 ? 0 : 1;
  const size_t inner_b = node.intAttribute("transB", 0) != 0 ? 1 : 0;
  if (!matrices || a[inner_a] != b[inner_b]) {
    fail(ErrorCode::kBadModel,
         "{}: its inputs {} and {} cannot be multiplied (transA {}, transB {}): found {} and {} elements "
         "to sum over",
         describeNode(node), shapeToString(a), shapeToString(b), node.intAttribute("transA", 0),
         node.intAttribute("transB", 0), matrices ? a[inner_a] : -1, matrices ? b[inner_b] : -1);
  }
  if (node.inputs.size() < 3 || !node.inputs[2].valid()) return;
  const Shape& c = graph.shape(node.inputs[2]);
  bool fits = c.size() <= 2;
  for (size_t k = 1; fits && k <= c.size(); ++k)
    fits = c[c.size() - k] == 1 || c[c.size() - k] == y[y.size() - k];
  if (fits) return;
  fail(ErrorCode::kBadModel,
       "{}: its third input, '{}' {}, does not fit its output {}; expected a shape that "
       "broadcasts to it",
       describeNode(node), graph.value(node.inputs[2]).name, shapeToString(c), shapeToString(y));
}

// A table that is read behind its end, such as that of positions where a sequence is longer than the model
// takes. Indices that data give are checked when they are read (input_range.h).
void checkGather(const Graph& graph, const Node& node) {
  if (!node.is("Gather")) return;
  const Constant* indices = graph.constant(node.inputs[1]);
  if (indices == nullptr) return;
  const Shape& table = graph.shape(node.inputs[0]);
  const int64_t axis = node.intAttribute("axis", 0);
  const int64_t rows = table.at(axis < 0 ? axis + std::ssize(table) : axis);
  for (const int64_t index : integerElements(*indices)) {
    if (index >= -rows && index < rows) continue;
    throw Contradiction(Contradiction::Of::kSizes,
                        fmt::format("{}: it reads row {} of '{}', which has {}", describeNode(node), index,
                                    graph.value(node.inputs[0]).name, rows));
  }
}

// Versions that this ONNX library does not know yet mean nobody knows what.
void checkOpset(const Graph& graph) {
  const auto imported = graph.opset_imports.find("");
  const int newest = onnx::OpSchemaRegistry::DomainToVersionRange::Instance().Map().at("").second;
  if (imported == graph.opset_imports.end() || imported->second <= newest) return;
  fail(ErrorCode::kBadModel,
       "the model is of opset {}; pipeshard knows those up to {}: export it with opset_version={} or less",
       imported->second, newest, newest);
}

void checkStatic(Graph& graph, const PrepareOptions& options) {
  for (ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    if (!hasStaticType(input)) {
      fail(ErrorCode::kBadModel,
           "input '{}' has no {}; pipeshard needs tensors of known type and rank as inputs", input.name,
           input.opaque_type.empty() ? "known type and shape" : "dense tensor type");
    }
    checkSize(input, options.tensor_elements, "input");
  }
  for (const Node& node : graph.nodes) {
    if (options.supported && !options.supported(node)) refuseControlFlow(graph, node);
    for (ValueId id : node.outputs) {
      if (!id.valid()) continue;
      if (!hasStaticType(graph.value(id))) failUnknown(graph, node, graph.value(id));
      checkSize(graph.value(id), options.tensor_elements, describeNode(node) + ": its output");
    }
    checkGemm(graph, node);
    checkGather(graph, node);
  }
}

// Where nobody has said so: "with batch = 1 and N = 16, chosen as nobody gave a size (--dim batch=N ..)".
void tellChosenSizes(const PrepareOptions& options, Error& error) {
  std::vector<std::string> sizes, names;
  for (const std::string& name : options.chosen) {
    const auto size = options.dimensions.find(name);
    if (size == options.dimensions.end()) continue;
    sizes.push_back(fmt::format("{} = {}", name, size->second));
    names.push_back(fmt::format("--dim {}=N", name));
  }
  if (sizes.empty() || error.code() != ErrorCode::kBadModel) return;
  error.addContext(fmt::format("with {}, chosen as nobody gave a size ({} gives another)",
                               fmt::join(sizes, " and "), fmt::join(names, " ")));
}

bool isOfNode(const Contradiction& found, const Node& node) {
  return found.message().starts_with(describeNode(node));
}

// ONNX has the operator for float32 and not for float64 (Celu, RotaryEmbedding).
bool lacksFloat64(const Node& node) {
  const auto* schema =
      onnx::OpSchemaRegistry::Instance()->GetSchema(node.op_type, node.opset_version, node.domain);
  if (schema == nullptr || schema->inputs().empty()) return false;
  const auto& types = schema->inputs().front().GetTypes();
  const auto has = [&](const char* type) {
    return std::ranges::any_of(types, [&](const std::string* known) { return *known == type; });
  };
  return has("tensor(float)") && !has("tensor(double)");
}

// With the sizes that it may be due to; where none is to blame, nobody is sent to look for another.
[[noreturn]] void failByContradiction(const Graph& graph, bool ranks_may_follow_sizes,
                                      const Contradiction& found) {
  const bool by_size = found.of() == Contradiction::Of::kSizes ||
                       (found.of() == Contradiction::Of::kRanks && ranks_may_follow_sizes);
  const auto lacks_float64 = [&](const Node& node) { return isOfNode(found, node) && lacksFloat64(node); };
  if (found.of() == Contradiction::Of::kTypes && std::ranges::any_of(graph.nodes, lacks_float64)) {
    fail(ErrorCode::kBadModel,
         "{}; ONNX has this operator for float32, not for float64: plan it with --precision float32",
         found.message());
  }
  fail(ErrorCode::kBadModel, "{}{}", found.message(),
       by_size
           ? givenSizes(graph)
           : "; no size mends that. Where an exporter has written the node so, write that part of the model "
             "with other operations, or try PyTorch's other exporter (dynamo=True or dynamo=False)");
}

// Steps 2 to 5, and what they say of each other.
void makeStatic(Graph& graph, const PrepareOptions& options) {
  upgradeOperators(graph);
  foldAll(graph, options.fold_limit_bytes);
  keepLayerWeights(graph);
  if (options.supported) expandAll(graph, options);
  if (adoptImportedOpset(graph)) {
    foldAll(graph, options.fold_limit_bytes);
    if (options.supported) expandAll(graph, options);
    adoptImportedOpset(graph);
  }
}

// A fault that twice the chosen sizes do not change a letter of has nothing to do with them. `as_read`:
// before sizes were bound.
bool mayFollowChosenSizes(Graph as_read, PrepareOptions options, const Error& fault) {
  for (const std::string& name : options.chosen) {
    const auto size = options.dimensions.find(name);
    if (size != options.dimensions.end()) size->second *= 2;
  }
  try {
    bindDimensions(as_read, options.dimensions, options.chosen);
    makeStatic(as_read, options);
  } catch (const Error& other) {
    return other.message() != fault.message();
  }
  return true;
}

// `as_read`: before sizes were bound, where some were chosen.
void makeStaticOrTell(const Graph& as_read, Graph& graph, const PrepareOptions& options) {
  try {
    makeStatic(graph, options);
  } catch (const Contradiction&) {
    throw;  // it knows what sizes have to do with it
  } catch (Error& error) {
    if (!options.chosen.empty() && mayFollowChosenSizes(as_read, options, error))
      tellChosenSizes(options, error);
    throw;
  }
}

}  // namespace

Graph prepareModel(Graph graph, const PrepareOptions& options) {
  checkOpset(graph);
  adoptDefaults(graph);
  // Initializers that are no inputs, functions and metadata of nodes all exist from this version on.
  graph.ir_version = std::max<int64_t>(graph.ir_version, 10);
  inlineFunctions(graph, ImportLimits().inlined_nodes,
                  [](const Function& function) { return function.domain == kPipeshardDomain; });
  nameParts(graph);
  const bool ranks_may_follow_sizes = ranksMayFollowSizes(graph);  // as it is in the file
  const Graph as_read = options.chosen.empty() ? Graph() : graph;
  bindDimensions(graph, options.dimensions, options.chosen);
  try {
    makeStaticOrTell(as_read, graph, options);
    omitUnreadOutputs(graph);
    removeDeadCode(graph);
    checkStatic(graph, options);
  } catch (const Contradiction& found) {
    failByContradiction(graph, ranks_may_follow_sizes, found);
  }
  forgetGivenSizes(graph);
  verifyGraph(graph);
  return graph;
}

}  // namespace pipeshard
