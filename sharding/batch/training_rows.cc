#include "sharding/batch/training_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

[[noreturn]] void refuseForm(const std::string& what, int64_t rows, int64_t base_rows) {
  fail(ErrorCode::kBadModel,
       "the model for {} examples has another form than for {}: {}; cut the batch into parts of equal size "
       "(microbatches that divide it), and leave out a shorter last batch (--drop-last)",
       rows, base_rows, what);
}

void requireSameNodes(const SizedTraining& base, const SizedTraining& other) {
  const auto& a = base.training;
  const auto& b = other.training;
  if (a.graph.nodes.size() != b.graph.nodes.size()) {
    refuseForm(fmt::format("{} nodes, not {}", b.graph.nodes.size(), a.graph.nodes.size()), other.rows,
               base.rows);
  }
  for (size_t n = 0; n < a.graph.nodes.size(); ++n) {
    const Node& x = a.graph.nodes[n];
    const Node& y = b.graph.nodes[n];
    const auto same_presence = [](const std::vector<ValueId>& p, const std::vector<ValueId>& q) {
      return std::equal(p.begin(), p.end(), q.begin(), q.end(),
                        [](ValueId v, ValueId w) { return v.valid() == w.valid(); });
    };
    const bool same = x.domain == y.domain && x.op_type == y.op_type && same_presence(x.inputs, y.inputs) &&
                      same_presence(x.outputs, y.outputs) && a.node_phase[n] == b.node_phase[n] &&
                      a.forward_node[n] == b.forward_node[n];
    if (!same)
      refuseForm(fmt::format("{} in the place of {}", describeNode(y), describeNode(x)), other.rows,
                 base.rows);
  }
}

// value + change per row * (rows - base rows)
int64_t adapted(int64_t at_base, int64_t at_longer, int64_t per_step, int64_t steps) {
  return at_base + (at_longer - at_base) / per_step * steps;
}

class RowAdapter {
 public:
  RowAdapter(const SizedTraining& base, const SizedTraining& longer, int64_t rows)
      : base_(base),
        longer_(longer),
        rows_(rows),
        match_(matchValues(base, longer)),
        result_(base.training) {}

  TrainingGraph run() && {
    for (size_t v = 0; v < base_.training.graph.values.size(); ++v) adaptShape(ValueId(v));
    GraphBuilder builder(result_.graph);
    for (size_t n = 0; n < result_.graph.nodes.size(); ++n) {
      for (size_t i = 0; i < result_.graph.nodes[n].inputs.size(); ++i) adaptInput(builder, n, i);
    }
    verifyTrainingGraph(result_);
    return std::move(result_);
  }

 private:
  int64_t steps() const { return rows_ - base_.rows; }
  int64_t perStep() const { return longer_.rows - base_.rows; }

  Shape adaptedShape(const Shape& at_base, const Shape& at_longer) const {
    Shape shape;
    for (size_t axis = 0; axis < at_base.size(); ++axis)
      shape.push_back(adapted(at_base[axis], at_longer[axis], perStep(), steps()));
    return shape;
  }

  void adaptShape(ValueId id) {
    const Graph& a = base_.training.graph;
    if (a.initializers.contains(id) || !match_[id.index()].valid()) return;
    result_.graph.value(id).shape =
        adaptedShape(a.shape(id), longer_.training.graph.shape(match_[id.index()]));
  }

  // A constant that differs between the two sizes is replaced where it is used: other uses may have another
  // size.
  void adaptInput(GraphBuilder& builder, size_t node, size_t position) {
    const ValueId id = base_.training.graph.nodes[node].inputs[position];
    if (!id.valid() || base_.training.graph.constant(id) == nullptr) return;
    const ValueId other = longer_.training.graph.nodes[node].inputs[position];
    const Constant& at_base = *base_.training.graph.constant(id);
    const Constant* at_longer = longer_.training.graph.constant(other);
    if (at_longer == nullptr || at_longer->data_type != at_base.data_type ||
        at_longer->shape.size() != at_base.shape.size()) {
      refuseForm(fmt::format("{} reads something else", describeNode(base_.training.graph.nodes[node])),
                 longer_.rows, base_.rows);
    }
    if (at_base == *at_longer) return;
    ValueId& replacement = replacements_[{id, other}];
    if (!replacement.valid()) {
      replacement = builder.addConstant(base_.training.graph.value(id).name,
                                        adaptedConstant(at_base, *at_longer, node));
    }
    result_.graph.nodes[node].inputs[position] = replacement;
  }

  // A share of the batch grows with the rows, what divides a mean by them shrinks, and a product of both
  // stays, but for rounding. Any other number is refused: two sizes do not tell what it is at a third.
  double adaptedNumber(double at_base, double at_longer, DataType type, size_t node) const {
    const auto base = static_cast<double>(base_.rows), longer = static_cast<double>(longer_.rows),
               rows = static_cast<double>(rows_);
    const double tolerance = std::min(isHalf(type) ? 1e-2 : 1e-5, 0.25 / longer);
    const auto same = [&](double x, double y) {
      return std::abs(x - y) <= tolerance * std::max(std::abs(x), std::abs(y));
    };
    if (same(at_base, at_longer)) return at_base;
    if (same(at_base / base, at_longer / longer)) return at_base / base * rows;
    if (same(at_base * base, at_longer * longer)) return at_base * base / rows;
    refuseForm(fmt::format("{} reads the number {}, not {}, and what it is for {} is not known",
                           describeNode(base_.training.graph.nodes[node]), at_longer, at_base, rows_),
               longer_.rows, base_.rows);
  }

  Constant adaptedConstant(const Constant& a, const Constant& b, size_t node) const {
    if (a.shape != b.shape) return firstRows(a, adaptedShape(a.shape, b.shape));
    Constant result = a;
    if (isFloatingPoint(a.data_type)) {
      const std::vector<double> x = numericElements(a);
      const std::vector<double> y = numericElements(b);
      for (size_t i = 0; i < x.size(); ++i) {
        writeElement(result, i, makeScalar(a.data_type, adaptedNumber(x[i], y[i], a.data_type, node)));
      }
    } else if (a.data_type == DataType::kInt64 || a.data_type == DataType::kInt32) {
      const std::vector<int64_t> x = integerElements(a);
      const std::vector<int64_t> y = integerElements(b);
      for (size_t i = 0; i < x.size(); ++i) {
        const int64_t value = adapted(x[i], y[i], perStep(), steps());
        writeElement(result, i, makeScalar(a.data_type, static_cast<double>(value)));
      }
    } else {
      refuseForm(fmt::format("{} reads another constant", describeNode(base_.training.graph.nodes[node])),
                 longer_.rows, base_.rows);
    }
    return result;
  }

  static void writeElement(Constant& constant, size_t index, const Constant& scalar) {
    std::memcpy(constant.bytes.data() + index * scalar.bytes.size(), scalar.bytes.data(),
                scalar.bytes.size());
  }

  // All examples of such a constant are equal (sharding/batch/time_axis.h).
  static Constant firstRows(const Constant& whole, const Shape& shape) {
    Constant part{whole.data_type, shape, {}};
    size_t axis = 0;
    while (axis < shape.size() && shape[axis] == whole.shape[axis]) ++axis;
    const size_t inner = rowMajorStrides(whole.shape)[axis] * dataTypeSize(whole.data_type);
    const size_t block = inner * whole.shape[axis];
    const size_t taken = inner * shape[axis];
    for (size_t start = 0; start < whole.bytes.size(); start += block) {
      const auto first = whole.bytes.begin() + start;
      part.bytes.insert(part.bytes.end(), first, first + taken);
    }
    return part;
  }

  const SizedTraining base_;
  const SizedTraining longer_;
  const int64_t rows_;
  const std::vector<ValueId> match_;  // base to longer
  TrainingGraph result_;
  std::map<std::pair<ValueId, ValueId>, ValueId> replacements_;  // by the constant in base and in longer
};

}  // namespace

std::vector<ValueId> matchValues(const SizedTraining& base, const SizedTraining& other) {
  requireSameNodes(base, other);
  const Graph& a = base.training.graph;
  const Graph& b = other.training.graph;
  std::unordered_map<std::string_view, ValueId> names;
  for (size_t v = 0; v < b.values.size(); ++v) names.emplace(b.values[v].name, ValueId(v));
  std::vector<ValueId> result(a.values.size());
  for (size_t v = 0; v < a.values.size(); ++v) {
    const auto found = names.find(a.values[v].name);
    if (found != names.end()) result[v] = found->second;
  }
  for (size_t n = 0; n < a.nodes.size(); ++n) {
    const std::vector<ValueId>& outputs = a.nodes[n].outputs;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].valid()) result[outputs[i].index()] = b.nodes[n].outputs[i];
    }
    const std::vector<ValueId>& inputs = a.nodes[n].inputs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].valid() || a.constant(inputs[i]) != nullptr ||
          result[inputs[i].index()] == b.nodes[n].inputs[i])
        continue;
      refuseForm(fmt::format("{} reads other values", describeNode(b.nodes[n])), other.rows, base.rows);
    }
  }
  return result;
}

TrainingGraph trainingOfRows(const SizedTraining& base, const SizedTraining& longer, int64_t rows) {
  PIPESHARD_CHECK(rows >= 1 && rows < base.rows && base.rows < longer.rows, "{} rows from {} and {}", rows,
                  base.rows, longer.rows);
  return RowAdapter(base, longer, rows).run();
}

}  // namespace pipeshard
