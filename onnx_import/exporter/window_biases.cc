#include "onnx_import/exporter/window_biases.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "onnx_import/format/initializer_bytes.h"

namespace pipeshard {
namespace {

// Biases of a square window, for each pair of its places: [pairs,heads], or [heads,places,places] with or
// without a 1 before.
struct Window {
  int64_t side = 0;  // places are side * side
  int64_t heads = 0;
  bool by_pair = false;

  int64_t pairs() const { return side * side * side * side; }
  int64_t differences() const { return (2 * side - 1) * (2 * side - 1); }
  // Where a constant has the number of a pair and head.
  int64_t place(int64_t pair, int64_t head) const {
    return by_pair ? pair * heads + head : head * pairs() + pair;
  }
};

// x with x * x == n, or 0.
int64_t rootOf(int64_t n) {
  const int64_t root = std::llround(std::sqrt(static_cast<double>(n)));
  return root * root == n ? root : 0;
}

std::optional<Window> windowOf(const Shape& shape) {
  const size_t rank = shape.size();
  Window window;
  if (rank == 2) {
    window = {rootOf(rootOf(shape[0])), shape[1], true};
  } else if ((rank == 3 || (rank == 4 && shape[0] == 1)) && shape[rank - 1] == shape[rank - 2]) {
    window = {rootOf(shape[rank - 1]), shape[rank - 3], false};
  }
  return window.side > 0 && window.heads > 0 ? std::optional(window) : std::nullopt;
}

// By pair of places: the table's row, one for each difference of rows and columns.
std::vector<int64_t> rowsOfPairs(int64_t side) {
  std::vector<int64_t> rows;
  for (int64_t from = 0; from < side * side; ++from) {
    for (int64_t to = 0; to < side * side; ++to) {
      const int64_t down = from / side - to / side + side - 1, right = from % side - to % side + side - 1;
      rows.push_back(down * (2 * side - 1) + right);
    }
  }
  return rows;
}

// Nothing where two pairs of a row differ.
std::optional<std::vector<std::byte>> tableOf(const Window& window, const std::vector<int64_t>& rows,
                                              const std::vector<std::byte>& bytes, int64_t element_bytes) {
  std::vector<std::byte> table(window.differences() * window.heads * element_bytes);
  std::vector<bool> known(window.differences());
  for (int64_t pair = 0; pair < std::ssize(rows); ++pair) {
    for (int64_t head = 0; head < window.heads; ++head) {
      const auto from = bytes.begin() + window.place(pair, head) * element_bytes;
      const auto to = table.begin() + (rows[pair] * window.heads + head) * element_bytes;
      if (known[rows[pair]] && !std::equal(from, from + element_bytes, to)) return std::nullopt;
      std::copy(from, from + element_bytes, to);
    }
    known[rows[pair]] = true;
  }
  return table;
}

bool hasSwinsNames(const Fold& fold) {
  return fold.parameters[0].ends_with("relative_position_bias_table") && fold.buffers.size() == 1 &&
         fold.buffers[0].ends_with("relative_position_index") && fold.count("index") == 1 &&
         fold.hasOnly({"index", "view", "reshape", "permute", "clone", "contiguous", "unsqueeze"});
}

}  // namespace

bool unfoldWindowBiases(Unfolding& unfolding, size_t reader, ValueId constant, const Fold& fold) {
  Graph& graph = unfolding.graph();
  const Shape shape = graph.shape(constant);
  const std::optional<Window> window = windowOf(shape);
  if (!window || !hasSwinsNames(fold)) return false;
  const DataType type = graph.dataType(constant);
  const std::optional<std::vector<std::byte>> bytes = initializerBytes(graph, constant);
  if (!bytes) return false;
  const std::vector<int64_t> rows = rowsOfPairs(window->side);
  std::optional<std::vector<std::byte>> table =
      tableOf(*window, rows, *bytes, static_cast<int64_t>(dataTypeSize(type)));
  if (!table) return false;
  const Shape own = {window->differences(), window->heads};
  const ValueId parameter =
      unfolding.addParameter(fold.parameters[0], type, own, Constant{type, own, std::move(*table)});
  graph.initializers.erase(constant);
  unfolding.addBefore(reader, [&](ReplacementWriter& writer) {
    const std::vector<ValueId> inputs = {parameter, writer.integers(rows)};
    const std::map<std::string, Attribute> of_rows = {{"axis", int64_t{0}}};
    if (window->by_pair) return writer.addTo(constant, "Gather", inputs, of_rows);
    const ValueId pairs = writer.add("Gather", inputs, type, of_rows);
    const ValueId by_head = writer.add("Transpose", {pairs}, type, {{"perm", std::vector<int64_t>{1, 0}}});
    writer.addTo(constant, "Reshape", {by_head, writer.integers(shape)});
  });
  return true;
}

}  // namespace pipeshard
