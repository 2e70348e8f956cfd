#include "tests/partition/emit/modular_values.h"

#include <algorithm>
#include <stdexcept>

#include "tests/partition/training_builder.h"

namespace pipeshard::modular {
namespace {

// The sizes of the output, or axes.
bool isSetting(const Constant& constant) { return constant.data_type == DataType::kInt64; }

// One output of one node.
class Evaluation {
 public:
  Evaluation(const Graph& graph, const Node& node, size_t output, const Contents& contents)
      : graph_(graph),
        name_(node.op_type + ":" + node.name + ":" + std::to_string(output)),
        shape_(graph.shape(node.outputs[output])),
        node_(node) {
    for (ValueId input : node.inputs) {
      if (!input.valid()) continue;
      const Constant* constant = graph.constant(input);
      const auto known = contents.find(graph.value(input).name);
      if (known != contents.end()) {
        operands_.push_back(known->second);
      } else if (constant != nullptr && isSetting(*constant)) {
        require(
            node.op_type == "ReduceSum" || integerElements(*constant) == shape_,
            describeNode(node) + " reads another shape than that of " + graph.value(node.outputs[0]).name);
      } else if (constant != nullptr && node.is("Mul") && constant->shape.empty() &&
                 input == node.inputs[1]) {
        share_ = numericElements(*constant)[0];
      } else {
        require(constant != nullptr,
                describeNode(node) + " reads '" + graph.value(input).name + "', which is not there");
        operands_.push_back(constantContent(*constant));
      }
    }
  }

  Content update() const {
    std::vector<uint64_t> numbers;
    for (const Content& operand : operands_)
      numbers.insert(numbers.end(), operand.rows.begin(), operand.rows.end());
    return invariant(hashOf(name_, numbers));
  }

  // Of sums and invariant values, which count once: a sum.
  Content sumOfOperands() const {
    const bool sums = has(Kind::kSum);
    Content sum;
    for (Content operand : operands_) {
      if (sums) operand.kind = Kind::kSum;
      if (sum.rows.empty())
        sum = operand;
      else
        addTo(sum, operand);
    }
    return sum;
  }

  // On one device of several a summand of a sum, zero on the others.
  Content kept() const {
    const Constant* keeps = graph_.constant(node_.inputs[0]);
    require(keeps != nullptr && keeps->data_type == DataType::kBool, describeNode(node_) + " is unexpected");
    const Content& whole = operands_.at(1);
    require(whole.kind != Kind::kSplit, describeNode(node_) + " keeps rows");
    return {Kind::kSum, {keeps->bytes[0] == std::byte{0} ? 0 : whole.rows.at(0)}};
  }

  Content run() const {
    const auto batch = batchAxis(shape_);
    const std::optional<size_t> rows = splitRows();
    if (batch) {
      requireNoSums();
      Content result{Kind::kSplit, {}};
      for (size_t row = 0; row < static_cast<size_t>(batch->rows); ++row) result.rows.push_back(rowHash(row));
      require(!rows || static_cast<int64_t>(*rows) == batch->rows,
              describeNode(node_) + " has another number of rows than its operands");
      return result;
    }
    if (share_) {
      require(!rows, describeNode(node_) + " shares a split value");
      requireNoSums();
      return {Kind::kSum, {*share_ * rowHash(0)}};
    }
    if (rows) {
      requireNoSums();
      Content sum{Kind::kSum, {0}};
      for (size_t row = 0; row < *rows; ++row) sum.rows[0] += rowHash(row);
      return sum;
    }
    return has(Kind::kSum) ? linear() : invariant(rowHash(0));
  }

 private:
  bool has(Kind kind) const {
    return std::any_of(operands_.begin(), operands_.end(),
                       [&](const Content& operand) { return operand.kind == kind; });
  }

  void requireNoSums() const {
    require(!has(Kind::kSum), describeNode(node_) + " reads a part of a sum, but is not linear in it");
  }

  std::optional<size_t> splitRows() const {
    std::optional<size_t> rows;
    for (const Content& operand : operands_) {
      if (operand.kind != Kind::kSplit) continue;
      require(!rows || *rows == operand.rows.size(),
              describeNode(node_) + " reads different numbers of rows");
      rows = operand.rows.size();
    }
    return rows;
  }

  // Of the operator, one row of the split operands, and the invariant ones.
  uint64_t rowHash(size_t row) const {
    std::vector<uint64_t> numbers;
    for (const Content& operand : operands_) {
      if (operand.kind == Kind::kSum) continue;
      numbers.push_back(operand.rows.at(operand.kind == Kind::kSplit ? row : 0));
    }
    return hashOf(name_, numbers);
  }

  Content linear() const {
    Content result{Kind::kSum, {0}};
    const uint64_t others = rowHash(0);
    for (size_t i = 0; i < operands_.size(); ++i) {
      if (operands_[i].kind == Kind::kSum)
        result.rows[0] += operands_[i].rows.at(0) * (hashOf("factor", {others, i}) | 1);
    }
    return result;
  }

  const Graph& graph_;
  const std::string name_;  // the same in every cut of the graph
  const Shape& shape_;
  const Node& node_;
  std::vector<Content> operands_;
  std::optional<uint64_t> share_;
};

}  // namespace

void require(bool condition, const std::string& message) {
  if (!condition) throw std::runtime_error(message);
}

uint64_t hashOf(const std::string& name, const std::vector<uint64_t>& operands) {
  uint64_t hash = std::hash<std::string>()(name);
  for (uint64_t operand : operands) {
    hash = (hash ^ (operand + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2))) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 33;
  }
  return hash;
}

Content invariant(uint64_t number) { return {Kind::kInvariant, {number}}; }

std::optional<BatchAxis> batchAxis(const Shape& shape) {
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const bool merged = shape.size() == 2;
    if (shape.size() == 1 || (merged ? axis > 0 : shape[axis] >= kTokens)) continue;
    const int64_t per_row = merged ? kTokens : 1;
    require(shape[axis] % per_row == 0, shapeToString(shape) + " cuts a row");
    return BatchAxis{static_cast<int>(axis), per_row, shape[axis] / per_row};
  }
  return std::nullopt;
}

void requireFits(const Content& content, const Shape& shape, const std::string& name) {
  const auto batch = batchAxis(shape);
  const bool fits = batch ? content.kind == Kind::kSplit && std::ssize(content.rows) == batch->rows
                          : content.kind != Kind::kSplit && content.rows.size() == 1;
  require(fits, "'" + name + "' of shape " + shapeToString(shape) + " gets " +
                    std::to_string(content.rows.size()) + " rows of another kind");
}

Content constantContent(const Constant& constant) {
  const uint64_t number = hashOf("constant", {static_cast<uint64_t>(numericElements(constant).at(0) * 1024)});
  const auto batch = batchAxis(constant.shape);
  if (!batch) return invariant(hashOf("size", {number, static_cast<uint64_t>(elementCount(constant.shape))}));
  return {Kind::kSplit, std::vector<uint64_t>(batch->rows, number)};
}

void addTo(Content& sum, const Content& part) {
  require(sum.kind == part.kind && sum.rows.size() == part.rows.size(),
          "values of different kinds are added");
  for (size_t i = 0; i < sum.rows.size(); ++i) sum.rows[i] += part.rows[i];
}

void evaluate(const Graph& graph, const Node& node, bool update, Contents& contents) {
  for (size_t output = 0; output < node.outputs.size(); ++output) {
    require(node.domain != kPipeshardDomain, describeNode(node) + " is not needed by rows");
    if (!node.outputs[output].valid()) continue;
    const Evaluation evaluation(graph, node, output, contents);
    Content content = update                    ? evaluation.update()
                      : node.op_type == "Sum"   ? evaluation.sumOfOperands()
                      : node.op_type == "Where" ? evaluation.kept()
                                                : evaluation.run();
    requireFits(content, graph.shape(node.outputs[output]), graph.value(node.outputs[output]).name);
    contents[graph.value(node.outputs[output]).name] = std::move(content);
  }
}

}  // namespace pipeshard::modular
