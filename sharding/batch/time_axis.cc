#include "sharding/batch/time_axis.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ir/base/error.h"
#include "ir/operators/initializer_role.h"
#include "sharding/batch/time_compare.h"
#include "sharding/batch/time_kinds.h"
#include "sharding/batch/time_rewrite.h"
#include "sharding/spmd/linearity.h"

namespace pipeshard {

namespace {

// Walks the nodes that the loss needs once, in order, and says of every value what its parts are to the whole
// (TimeFacts). Nodes are added to the graph again as they are, or changed; the others stay, unlooked at. When
// a node is processed, its inputs have their facts. In turn:
//   1. An input of which every microbatch has its own (statistics of a batch) is refused.
//   2. A constant whose content depends on the batch's size is replaced by that of the whole batch.
//   3. A mean loss over split inputs becomes a sum and a division; both are processed in its place.
//   4. Sums among the inputs: a node that is linear in them, and reads nothing split, gives a sum. Elsewhere
//      sums that batch inputs alone decide are replaced by their totals, which a prologue computes. If a sum
//      is left, the node must be linear in that (shareInvariants shares out what is added to it), or is
//      refused.
//   5. Split inputs: what the factor rule says along the cut. A mean is scaled by rows / batch.
//   6. None of these: the outputs are the same in every microbatch.
// Where the model is known for another number of rows, every kind is compared with how the shapes differ.
//
//   2 of 4 rows, x [2,3]: y = Relu(x) is split along axis 0; ReduceMean(y) gives m.part, the mean of 6
//   elements, and m = m.part * 0.5 is a sum: the two m together are the mean of all 12.
class TimeAxisPass {
 public:
  TimeAxisPass(Graph& graph, const BatchShare& share) : graph_(graph), builder_(graph), share_(share) {
    if (share.other != nullptr) other_ = OtherBatch(graph, share);
  }

  TimeAxisResult run(const WantedValues& wanted, const std::vector<BatchInput>& inputs) {
    setSources(wanted, inputs);
    setGrowingConstants();
    const std::vector<std::pair<ValueId, std::vector<std::string>>> symbols = nameGrowingAxes();
    std::vector<ValueId> results = wanted.outputs;
    if (wanted.loss.valid()) results.push_back(wanted.loss);
    if (const Node* node = other_.numberedElsewhere(graph_, results)) {
      refuseTimeCut(
          *node,
          fmt::format("it reads or writes rows of the batch by their numbers, and a part of {} has others",
                      share_.rows));
    }
    const std::vector<bool> needed = ancestorsOf(graph_, results);
    std::vector<Node> old = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (size_t n = 0; n < old.size(); ++n) {
      if (needed[n]) {
        process(std::move(old[n]));
      } else {
        graph_.nodes.push_back(std::move(old[n]));
      }
    }
    for (const auto& [value, names] : symbols) graph_.value(value).symbols = names;
    if (wanted.loss.valid()) checkLoss(wanted.loss);
    for (const ValueId output : wanted.outputs) checkOutput(output);
    if (!totals_.empty()) {
      separatePrologue(builder_, results, totals_, facts_);
      freezeForPrologue(graph_, totals_, wanted.constants);
    }
    TimeAxisResult result;
    for (const TimeFacts& facts : facts_) result.kinds.push_back(facts.kind);
    result.totals = std::move(totals_);
    result.loss = wanted.loss;
    return result;
  }

 private:
  using Kind = TimeKind::Kind;

  TimeFacts& facts(ValueId value) {
    coverValues();
    return facts_[value.index()];
  }
  // Those that a rewrite has added, too.
  void coverValues() {
    while (facts_.size() < graph_.values.size()) {
      facts_.emplace_back();
      facts_.back().batch_only = graph_.constant(ValueId(facts_.size() - 1)) != nullptr;
    }
  }
  bool is(ValueId value, Kind kind) { return value.valid() && facts(value).kind.kind == kind; }
  const std::string& name(ValueId value) const { return graph_.value(value).name; }

  void setSources(const WantedValues& wanted, const std::vector<BatchInput>& inputs) {
    facts_.resize(graph_.values.size());
    // A total over parameters would leave out their gradient.
    const std::vector<InitializerRole> roles = initializerRoles(graph_);
    for (const auto& [id, initializer] : graph_.initializers)
      facts_[id.index()].batch_only = roles[id.index()] != InitializerRole::kParameter;
    for (const ValueId constant : wanted.constants) facts_[constant.index()].batch_only = true;
    for (const BatchInput& input : inputs) {
      TimeFacts& known = facts_[input.value.index()];
      known.batch_only = true;
      if (share_.other == nullptr && graph_.value(input.value).drawn) known.uniform = ~uint64_t{0};
      if (input.axis < 0) continue;
      PIPESHARD_CHECK(input.axis < std::ssize(graph_.shape(input.value)), "batch input '{}' has no axis {}",
                      name(input.value), input.axis);
      known.kind = {Kind::kSplit, input.axis};
      one_example_ = one_example_ || graph_.shape(input.value)[input.axis] == 1;
    }
  }

  // Constants whose size is the batch's are cut with it.
  void setGrowingConstants() {
    for (const auto& [id, initializer] : graph_.initializers) {
      const OtherBatch::Comparison comparison = other_.compare(id);
      const Constant* part = graph_.constant(id);
      const Constant* other = other_.constant(id);
      if (comparison.change != OtherBatch::Change::kGrows || part == nullptr || other == nullptr) continue;
      const size_t axis = comparison.axis;
      if (areEqualExamples(*part, share_.rows, *other, share_.other_rows, axis))
        facts_[id.index()].kind = {Kind::kSplit, comparison.axis};
    }
  }

  // Tells the rule of Reshape which axis of its output the batch is in. Returns the symbols as they were.
  std::vector<std::pair<ValueId, std::vector<std::string>>> nameGrowingAxes() {
    std::vector<std::pair<ValueId, std::vector<std::string>>> before;
    for (const Node& node : graph_.nodes) {
      if (!node.is("Reshape")) continue;
      const OtherBatch::Comparison comparison = other_.compare(node.outputs[0]);
      if (comparison.change != OtherBatch::Change::kGrows) continue;
      Value& value = graph_.value(node.outputs[0]);
      before.emplace_back(node.outputs[0], value.symbols);
      value.symbols.assign(value.shape->size(), "");
      value.symbols[comparison.axis] = "batch";
    }
    return before;
  }

  // Reads the whole batch's content where that of a constant depends on the batch size.
  void takeConstantsOfTheWhole(Node& node) {
    if (share_.other_rows != share_.batch) return;
    for (size_t position = 0; position < node.inputs.size(); ++position) {
      ValueId& input = node.inputs[position];
      if (!input.valid() || isShapeArgument(node, position)) continue;
      const Constant* part = graph_.constant(input);
      const Constant* whole = other_.constant(input);
      if (part == nullptr || whole == nullptr || is(input, Kind::kSplit) || *part == *whole) continue;
      if (part->shape != whole->shape && numbersExamples(*whole, share_.batch)) {
        refuseTimeCut(
            node,
            fmt::format("'{}' numbers the examples of the batch (as torch.arange(batch) does), as an "
                        "index beside others",
                        name(input)),
            "take what is each example's own by torch.gather, torch.take_along_dim or "
            "torch.scatter along another axis");
      }
      if (part->shape != whole->shape) {
        refuseTimeCut(
            node,
            fmt::format(
                "'{}' is a constant of shape {} for the whole batch, but not the same for every microbatch",
                name(input), shapeToString(whole->shape)));
      }
      ValueId& replacement = constants_of_whole_[input];
      if (!replacement.valid()) {
        replacement = builder_.addConstant(name(input) + ".whole", *whole);
        // it is no more a parameter than the other
        graph_.value(replacement).metadata = graph_.value(input).metadata;
      }
      input = replacement;
    }
  }

  // The kind that the analysis has found must be the one that the shapes of the other size show.
  void compareWithOther(const Node& node, ValueId output) {
    const OtherBatch::Comparison comparison = other_.compare(output);
    TimeFacts& known = facts(output);
    if (comparison.change == OtherBatch::Change::kUnknown) return;
    const bool repeats = comparison.change == OtherBatch::Change::kGrows && comparison.axis < 64 &&
                         (known.uniform >> comparison.axis & 1) != 0;
    if (known.kind.kind == Kind::kInvariant && repeats) known.kind = {Kind::kSplit, comparison.axis};
    const bool split = known.kind.kind == Kind::kSplit;
    const bool agrees =
        split ? comparison.change == OtherBatch::Change::kGrows && comparison.axis == known.kind.axis
              : comparison.change == OtherBatch::Change::kNone;
    if (agrees) return;
    refuseTimeCut(node, fmt::format("'{}' has shape {} for {} of the batch and {} for {}, but its parts {}",
                                    name(output), shapeToString(graph_.shape(output)), share_.rows,
                                    shapeToString(other_.shape(output)), share_.other_rows,
                                    split ? fmt::format("follow each other along axis {}", known.kind.axis)
                                          : "have the shape of the whole"));
  }

  bool anyInput(const Node& node, Kind kind) {
    return std::any_of(node.inputs.begin(), node.inputs.end(),
                       [&](ValueId input) { return is(input, kind); });
  }

  void process(Node node) {
    for (ValueId input : node.inputs) {
      if (input.valid() && facts(input).own)
        refuseTimeCut(node, fmt::format("'{}' is another in every microbatch", name(input)));
    }
    takeConstantsOfTheWhole(node);
    if (anyInput(node, Kind::kSplit)) {
      std::vector<Node> expanded = expandMeanLoss(builder_, node);
      if (!expanded.empty() && !is(node.inputs[1], Kind::kSplit)) {
        refuseTimeCut(node,
                      fmt::format("its labels '{}' are not cut with the batch, so they cannot be counted",
                                  name(node.inputs[1])));
      }
      for (Node& part : expanded) process(std::move(part));
      if (!expanded.empty()) return;
    }
    if (anyInput(node, Kind::kSum) && passSums(node)) return emit(std::move(node), {Kind::kSum, -1});
    if (anyInput(node, Kind::kSplit)) return emitCut(std::move(node));
    emit(std::move(node), {});
  }

  // Adds the node; all its outputs are of one kind.
  void emit(Node node, TimeKind kind) {
    const bool batch_only = isBatchOnly(node);
    for (size_t output = 0; output < node.outputs.size(); ++output) {
      if (!node.outputs[output].valid()) continue;
      const uint64_t uniform = kind.kind == Kind::kInvariant ? uniformAxes(graph_, facts_, node, output) : 0;
      facts(node.outputs[output]) = {kind, batch_only, false, uniform};
      compareWithOther(node, node.outputs[output]);
    }
    graph_.nodes.push_back(std::move(node));
  }

  bool isBatchOnly(const Node& node) {
    return std::all_of(node.inputs.begin(), node.inputs.end(),
                       [&](ValueId input) { return !input.valid() || facts(input).batch_only; });
  }

  // Where nothing but axes of one lies before the batch, behind those that stay as they are, a part is a run
  // of the whole's elements, whatever axes they are reshaped to: as [2,16,8] to [1,32,8], two rows to a
  // group, for parts of one group; or [5,3,2] to [5,1,3,2], three heads of a row. -1: it is not that, or no
  // other size shows it.
  int axisOfRun(const Node& node) {
    if (!node.is("Reshape") || !is(node.inputs[0], Kind::kSplit)) return -1;
    const OtherBatch::Comparison comparison = other_.compare(node.outputs[0]);
    if (comparison.change != OtherBatch::Change::kGrows) return -1;
    const Shape &from = graph_.shape(node.inputs[0]), &to = graph_.shape(node.outputs[0]);
    const int from_axis = facts(node.inputs[0]).kind.axis, to_axis = comparison.axis;
    int kept = 0;
    while (kept < std::min(from_axis, to_axis) && from[kept] == to[kept]) ++kept;
    const auto startsAt = [kept](const Shape& shape, int axis) {
      return std::all_of(shape.begin() + kept, shape.begin() + axis,
                         [](int64_t extent) { return extent == 1; });
    };
    return startsAt(from, from_axis) && startsAt(to, to_axis) ? to_axis : -1;
  }

  // Some inputs are split, none is a sum.
  void emitCut(Node node) {
    coverValues();
    const int run = axisOfRun(node);
    one_example_ = one_example_ || (run >= 0 && graph_.shape(node.outputs[0])[run] == 1);
    const std::vector<OutputKind> kinds = run >= 0 ? std::vector<OutputKind>{{OutputChange::kSplit, run}}
                                                   : cutNode(graph_, facts_, node, one_example_, share_);
    const bool batch_only = isBatchOnly(node);
    std::vector<std::pair<ValueId, ValueId>> means;  // part, scaled part
    for (size_t output = 0; output < node.outputs.size(); ++output) {
      ValueId& value = node.outputs[output];
      if (!value.valid()) continue;
      const bool split = kinds[output].change == OutputChange::kSplit;
      const bool own = kinds[output].change == OutputChange::kOwn;
      facts(value) = {{split ? Kind::kSplit
                       : own ? Kind::kInvariant
                             : Kind::kSum,
                       kinds[output].axis},
                      batch_only,
                      own,
                      0};
      compareWithOther(node, value);
      if (kinds[output].change != OutputChange::kMean) continue;
      if (!isFloatingPoint(graph_.dataType(value)))
        refuseTimeCut(node, fmt::format("'{}' is a mean of integers", name(value)));
      const ValueId part =
          builder_.addValue(name(value) + ".part", graph_.dataType(value), graph_.shape(value));
      facts(part) = {{Kind::kSum, -1}, batch_only, false, 0};
      means.emplace_back(part, value);
      value = part;
    }
    const Node origin = node;
    graph_.nodes.push_back(std::move(node));
    for (const auto& [part, scaled] : means) graph_.nodes.push_back(scaling(origin, part, scaled));
  }

  // scaled = value * rows / batch
  Node scaling(const Node& origin, ValueId value, ValueId scaled) {
    Node node;
    node.op_type = "Mul";
    const auto imported = graph_.opset_imports.find("");
    node.opset_version = imported != graph_.opset_imports.end() ? imported->second : origin.opset_version;
    node.inputs = {value, share(graph_.dataType(value))};
    node.outputs = {scaled};
    node.name = origin.name + "/microbatch_share";
    node.metadata = origin.metadata;
    return node;
  }

  ValueId share(DataType type) {
    ValueId& constant = shares_[type];
    if (!constant.valid()) {
      const double part = static_cast<double>(share_.rows) / static_cast<double>(share_.batch);
      constant = builder_.addConstant("microbatch_share", makeScalar(type, part));
    }
    return constant;
  }

  // Some inputs are sums. True: the outputs are sums. False: no input is a sum any more (totals took their
  // place).
  bool passSums(Node& node) {
    const auto sums = [&] {
      std::vector<bool> result;
      for (ValueId input : node.inputs) result.push_back(is(input, Kind::kSum));
      return result;
    };
    if (!anyInput(node, Kind::kSplit) && passesSums(graph_, node, sums())) return true;
    for (ValueId& input : node.inputs) {
      if (is(input, Kind::kSum) && facts(input).batch_only) input = total(input);
    }
    const auto left = std::find_if(node.inputs.begin(), node.inputs.end(),
                                   [&](ValueId input) { return is(input, Kind::kSum); });
    if (left == node.inputs.end()) return false;
    const std::string sum = fmt::format(
        "'{}', a sum over the whole batch that no prologue can compute (it depends on parameters, or on "
        "another such sum)",
        name(*left));
    if (anyInput(node, Kind::kSplit)) refuseMeeting(node, fmt::format("for every example it needs {}", sum));
    if (passesSums(graph_, node, sums()) || shareInvariants(node)) return true;
    refuseMeeting(node, fmt::format("it is not linear in {}", sum));
  }

  // sum + c == sum of (part + c rows/batch): gives every part its share of what does not depend on the batch.
  bool shareInvariants(Node& node) {
    const std::vector<int> additive = additiveInputs(node);
    if (additive.empty() || node.is("Where") || !isFloatingPoint(graph_.dataType(node.outputs[0])))
      return false;
    for (int position : additive) {
      ValueId& input = node.inputs[position];
      if (is(input, Kind::kSum)) continue;
      const ValueId scaled =
          builder_.addValue(name(input) + ".share", graph_.dataType(input), graph_.shape(input));
      facts(scaled) = {{Kind::kSum, -1}, facts(input).batch_only, false, 0};
      graph_.nodes.push_back(scaling(node, input, scaled));
      input = scaled;
    }
    return true;
  }

  // The new graph input that holds the total of a sum. A total is known only after the prologue, so no
  // prologue may need one.
  ValueId total(ValueId part) {
    const auto known = total_of_.find(part);
    if (known != total_of_.end()) return known->second;
    const ValueId total = builder_.addValue(name(part) + ".total", graph_.dataType(part), graph_.shape(part));
    graph_.inputs.push_back(total);
    facts(total) = {{Kind::kInvariant, -1}, false, false, 0};
    totals_.push_back({part, total});
    total_of_[part] = total;
    return total;
  }

  void checkLoss(ValueId loss) {
    if (is(loss, Kind::kSum)) return;
    if (is(loss, Kind::kSplit)) {
      fail(ErrorCode::kBadModel,
           "the loss '{}' still has one value per example (axis {}): it must be a sum or mean over the batch",
           name(loss), facts(loss).kind.axis);
    }
    fail(ErrorCode::kBadModel, "the loss '{}' does not depend on the batch: no microbatch has a share of it",
         name(loss));
  }

  void checkOutput(ValueId output) {
    if (!is(output, Kind::kSum) && !facts(output).own) return;
    fail(ErrorCode::kBadModel,
         "the output '{}' needs the whole batch (it is a {}), and a microbatch has a part of it; take "
         "--microbatches 1 on stages of one device, or export the model without that output",
         name(output), facts(output).own ? "statistic of a batch" : "sum or mean over it");
  }

  Graph& graph_;
  GraphBuilder builder_;
  const BatchShare share_;
  bool one_example_ = false;  // a microbatch is one example: its axis has size 1
  OtherBatch other_;
  std::map<ValueId, ValueId> constants_of_whole_;
  TimeFactsTable facts_;
  std::vector<PrologueTotal> totals_;
  std::map<ValueId, ValueId> total_of_;
  std::map<DataType, ValueId> shares_;
};

}  // namespace

BatchCutError::BatchCutError(std::string cause, std::string way_out)
    : Error(ErrorCode::kBadModel,
            fmt::format("{}. Use one microbatch (--microbatches 1), or {}", cause, way_out)),
      cause_(std::move(cause)),
      way_out_(std::move(way_out)) {}

TimeAxisResult splitTimeAxis(Graph& graph, const WantedValues& wanted, const std::vector<BatchInput>& inputs,
                             const BatchShare& share) {
  PIPESHARD_CHECK(share.rows >= 1 && share.other_rows != share.rows, "{} rows of {}, compared with {}",
                  share.rows, share.batch, share.other_rows);
  if (share.rows == share.batch && share.other == nullptr) {
    TimeAxisResult result;
    result.kinds.resize(graph.values.size());  // the one part is the whole
    result.loss = wanted.loss;
    return result;
  }
  try {
    return TimeAxisPass(graph, share).run(wanted, inputs);
  } catch (BatchCutError& error) {
    error.setRows(share.rows);
    throw;
  }
}

}  // namespace pipeshard
