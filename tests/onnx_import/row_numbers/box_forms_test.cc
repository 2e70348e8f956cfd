// Boxes of a tensor, against what ONNX says of GatherND and ScatterND, element by element.
#include "onnx_import/row_numbers/box_forms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "onnx_import/prepare/evaluator.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

using Numbers = std::vector<int64_t>;

// data at places[0] x places[1] x ..., the axes behind taken whole.
struct Box {
  Shape data;
  std::vector<Numbers> places;

  Shape grid() const {
    Shape shape;
    for (const Numbers& along : places) shape.push_back(std::ssize(along));
    return shape;
  }
  Shape updates() const {
    Shape shape = grid();
    shape.insert(shape.end(), data.begin() + std::ssize(places), data.end());
    return shape;
  }
};

std::string join(const Numbers& numbers) {
  std::string text;
  for (const int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

// Where element `i` of the box lies in the data.
int64_t placeInData(const Box& box, int64_t i) {
  const Shape shape = box.updates();
  int64_t place = 0, stride = 1;
  for (size_t axis = shape.size(); axis-- > 0; i /= shape[axis], stride *= box.data[axis]) {
    int64_t at = i % shape[axis];
    if (axis < box.places.size()) at = box.places[axis][at];
    place += (at < 0 ? at + box.data[axis] : at) * stride;
  }
  return place;
}

// The grid as exporters make it: numbers along each axis, expanded to the whole and put together.
Graph boxGraph(const Box& box, bool is_write, int64_t fold_limit) {
  const Shape grid = box.grid();
  std::string constants =
      "int64[1] last = {-1}, int64[" + std::to_string(grid.size()) + "] sizes = {" + join(grid) + "}";
  std::string body, columns;
  for (size_t axis = 0; axis < grid.size(); ++axis) {
    const std::string n = std::to_string(axis);
    Shape shape(grid.size() - axis, 1);  // [n, 1, 1]: Expand adds the axes before it
    shape[0] = grid[axis];
    constants += ", int64[" + join(shape) + "] n" + n + " = {" + join(box.places[axis]) + "}";
    body += "e" + n + " = Expand(n" + n + ", sizes) c" + n + " = Unsqueeze(e" + n + ", last) ";
    columns += (axis > 0 ? ", c" : "c") + n;
  }
  const std::string x = "float[" + join(box.data) + "] x", part = "float[" + join(box.updates()) + "] ";
  body += "places = Concat <axis = -1> (" + columns + ") ";
  body += is_write ? "y = ScatterND(x, places, u)" : "y = GatherND(x, places)";
  PrepareOptions options;
  options.fold_limit_bytes = fold_limit;
  return prepareModel(
      testing::graphFromText(
          "<ir_version: 10, opset_import: [\"\" : 18]> g (" + x +
          (is_write ? ", " + part + "u) => (float[" + join(box.data) + "] y)" : ") => (" + part + "y)") +
          " <" + constants + "> { " + body + " }"),
      options);
}

std::vector<double> run(const Graph& graph, const std::map<std::string, Constant>& inputs) {
  std::map<ValueId, Constant> known;
  for (const auto& [id, initializer] : graph.initializers) known[id] = std::get<Constant>(initializer);
  for (const ValueId id : graph.inputs) known[id] = inputs.at(graph.value(id).name);
  for (const Node& node : graph.nodes) {
    ConstantInputs given;
    for (const ValueId input : node.inputs) given.push_back(&known.at(input));
    const auto results = evaluateNode(node, given);
    if (!results) return {};
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      EXPECT_EQ(results->at(i).shape, graph.shape(node.outputs[i])) << node.op_type;
      known[node.outputs[i]] = results->at(i);
    }
  }
  return numericElements(known.at(graph.outputs.at(0)));
}

size_t count(const Graph& graph, std::string_view op_type) {
  return std::count_if(graph.nodes.begin(), graph.nodes.end(),
                       [&](const Node& node) { return node.is(op_type); });
}

Constant numbered(const Shape& shape, float first) {
  std::vector<float> elements(elementCount(shape));
  std::iota(elements.begin(), elements.end(), first);
  return makeConstant<float>(shape, elements);
}

void check(const Box& box, bool is_write, int64_t fold_limit) {
  const Graph graph = boxGraph(box, is_write, fold_limit);
  SCOPED_TRACE("data " + join(box.data) + ", box " + join(box.updates()) + (is_write ? ", write" : ", read") +
               ", folds " + std::to_string(fold_limit));
  EXPECT_EQ(count(graph, "ScatterND") + count(graph, "GatherND"), 0u);
  const std::map<std::string, Constant> inputs = {{"x", numbered(box.data, 0)},
                                                  {"u", numbered(box.updates(), 1000)}};
  const std::vector<double> data = numericElements(inputs.at("x"));
  const std::vector<double> updates = numericElements(inputs.at("u"));
  std::vector<double> want = is_write ? data : updates;
  for (int64_t i = 0; i < std::ssize(updates); ++i) {
    if (is_write) want[placeInData(box, i)] = updates[i];
    if (!is_write) want[i] = data[placeInData(box, i)];
  }
  EXPECT_EQ(run(graph, inputs), want);
}

Numbers somePlaces(std::mt19937& random, int64_t size) {
  Numbers all(size);
  std::iota(all.begin(), all.end(), 0);
  if (random() % 2 == 0) std::shuffle(all.begin(), all.end(), random);
  const auto from = static_cast<int64_t>(random() % size);
  const auto length = static_cast<int64_t>(1 + random() % (size - from));
  Numbers places(all.begin() + from, all.begin() + from + length);
  if (random() % 3 == 0) {
    for (int64_t& place : places) place -= size;
  }
  return places;
}

TEST(BoxForms, AreWhatOnnxSays) {
  std::mt19937 random(5);
  for (int round = 0; round < 150; ++round) {
    Box box;
    const size_t rank = 3 + random() % 2;
    for (size_t axis = 0; axis < rank; ++axis) box.data.push_back(1 + random() % 4);
    const size_t depth = 3 + random() % (rank - 2);
    const size_t whole = random() % depth;
    for (size_t axis = 0; axis < depth; ++axis) {
      box.places.push_back(somePlaces(random, box.data[axis]));
      if (axis != whole && random() % 3 != 0) continue;
      box.places.back().resize(box.data[axis]);
      std::iota(box.places.back().begin(), box.places.back().end(), 0);
    }
    for (const bool is_write : {false, true}) {
      for (const int64_t fold_limit : {64, 1 << 20}) check(box, is_write, fold_limit);
    }
  }
}

// causal_mask[:, :, :, :m] = y, as the TorchScript exporter writes the masks of Llama and OPT: m is all of
// the axis, or a part of it.
TEST(BoxForms, AMaskIsWrittenWithoutIndices) {
  const Numbers rows{0, 1, 2, 3}, all{0, 1, 2, 3, 4}, some{0, 1, 2};
  const Graph whole = boxGraph({{4, 1, 5, 5}, {rows, {0}, all, all}}, true, 1 << 20);
  ASSERT_EQ(whole.nodes.size(), 1u);
  EXPECT_TRUE(whole.nodes[0].is("Identity"));
  EXPECT_EQ(whole.value(whole.nodes[0].inputs[0]).name, "u");
  for (const int64_t batch : {1, 4}) {
    const Numbers batch_rows(rows.begin(), rows.begin() + batch);
    const Graph part = boxGraph({{batch, 1, 5, 5}, {batch_rows, {0}, all, some}}, true, 1 << 20);
    ASSERT_EQ(part.nodes.size(), 2u);
    EXPECT_TRUE(part.nodes[0].is("Slice"));
    EXPECT_TRUE(part.nodes[1].is("Concat"));
    EXPECT_EQ(part.nodes[1].intAttribute("axis", 0), 3);
  }
}

// x[:, 1:3] = u where rows are vectors; and others along axis 1.
TEST(BoxForms, ColumnsOfVectorsAreWrittenWithoutRowNumbers) {
  check({{4, 6, 3}, {{0, 1, 2, 3}, {1, 2}}}, true, 1 << 20);
  check({{4, 6, 3}, {{0, 1, 2, 3}, {5, 0, -3}}}, true, 64);
}

// No axis is whole and in order, or a place comes twice.
TEST(BoxForms, OtherPlacesStay) {
  EXPECT_EQ(count(boxGraph({{4, 2, 3}, {{1, 0, 2, 3}, {0}, {1, 2}}}, true, 1 << 20), "ScatterND"), 1u);
  EXPECT_EQ(count(boxGraph({{4, 2, 3}, {{1, 2}, {0}, {1, 2}}}, false, 1 << 20), "GatherND"), 1u);
  EXPECT_EQ(count(boxGraph({{4, 2, 3}, {{0, 1, 2, 3}, {0}, {1, 1}}}, true, 1 << 20), "ScatterND"), 1u);
}

}  // namespace
}  // namespace pipeshard
