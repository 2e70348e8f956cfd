// LSTM, GRU and RNN, unrolled: one group of nodes per step.
//
// The input's part of the gates is one product for all steps, biases included; a step adds the part of the
// state before it, applies the gates, and gives the state after it.
//
// The batch is axis 0 of all that is emitted in between, and stays an axis of its own: its rows may be cut
// apart later. Axes of size 1 come and go by Squeeze and Unsqueeze, which say which axis they mean; with one
// row of the batch a Reshape does not.
//
// Where the standard is silent, ONNX Runtime decides: `clip` bounds what goes into the gates, and not the
// cell; the last state of an empty sequence is zero; alphas and betas are consumed by those activations alone
// that have one.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/base/error.h"
#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {
namespace {

// What an activation takes: its alpha and beta are absent, given, or the default.
struct RecurrentActivationKind {
  std::string_view name;
  bool has_alpha = false;
  bool has_beta = false;
  std::optional<float> alpha = std::nullopt;
  std::optional<float> beta = std::nullopt;
};

// The defaults of the operators of these names, as the standard says (ONNX Runtime takes 0 for
// ThresholdedRelu). Affine and ScaledTanh are no operators any more: what they need has to be given.
constexpr std::array kRecurrentActivations{
    RecurrentActivationKind{.name = "Sigmoid"},
    RecurrentActivationKind{.name = "Tanh"},
    RecurrentActivationKind{.name = "Relu"},
    RecurrentActivationKind{.name = "Softsign"},
    RecurrentActivationKind{.name = "Softplus"},
    RecurrentActivationKind{.name = "LeakyRelu", .has_alpha = true, .alpha = 0.01f},
    RecurrentActivationKind{.name = "ThresholdedRelu", .has_alpha = true, .alpha = 1.0f},
    RecurrentActivationKind{.name = "Elu", .has_alpha = true, .alpha = 1.0f},
    RecurrentActivationKind{
        .name = "HardSigmoid", .has_alpha = true, .has_beta = true, .alpha = 0.2f, .beta = 0.5f},
    RecurrentActivationKind{.name = "Affine", .has_alpha = true, .has_beta = true, .beta = 0.0f},
    RecurrentActivationKind{.name = "ScaledTanh", .has_alpha = true, .has_beta = true},
};

struct RecurrentActivation {
  const RecurrentActivationKind* kind = nullptr;
  float alpha = 0;
  float beta = 0;
};

// The whole node. N: batch, L: steps, H: hidden size, G: gates.
struct RecurrentLayer {
  int64_t gates = 0;
  int64_t steps = 0;
  int64_t hidden = 0;
  int64_t directions = 1;
  bool batch_first = false;  // of the node's inputs and outputs
  bool input_forget = false;
  bool reset_after = false;  // GRU: linear_before_reset
  std::optional<float> clip;
  std::vector<RecurrentActivation> activations;  // of one direction behind the other
  ValueId lengths;                               // int32 [N, 1]; invalid: all sequences have L steps
  int64_t shortest = 0;                          // no sequence has fewer steps
};

// One direction. Values that are absent are invalid.
struct RecurrentDirection {
  std::vector<ValueId> inputs;            // per step the input's part of the gates [N, G*H], with biases
  ValueId recurrent;                      // transposed R [H, G*H]
  ValueId candidate;                      // GRU that resets first: R's part for the candidate [H, H]
  ValueId candidate_bias;                 // GRU that resets after the product: what is added to that [H]
  std::array<ValueId, 3> peepholes = {};  // LSTM: of input, output and forget gate [H]
  const RecurrentActivation* activations = nullptr;
};

// [N, H] each; invalid: zero. Only an LSTM has a cell.
struct RecurrentState {
  ValueId hidden;
  ValueId cell;
};

using RecurrentStep = RecurrentState (*)(LoweringContext&, const RecurrentLayer&, const RecurrentDirection&,
                                         ValueId input, const RecurrentState& before);

// ---- attributes

template <typename T>
std::vector<T> recurrentList(const LoweringContext& c, const std::string& name) {
  const auto found = c.node().attributes.find(name);
  if (found == c.node().attributes.end()) return {};
  const auto* list = std::get_if<std::vector<T>>(&found->second);
  if (list == nullptr) c.refuse(fmt::format("attribute {} has the wrong type", name));
  return *list;
}

// The next number of the list, or the default; both may be absent.
float takeRecurrentNumber(const LoweringContext& c, const std::string& activation, const std::string& list,
                          const std::vector<float>& given, size_t& taken, std::optional<float> otherwise) {
  if (taken < given.size()) return given[taken++];
  if (!otherwise) c.refuse(fmt::format("{} lacks a number for {}", list, activation));
  return *otherwise;
}

std::vector<RecurrentActivation> recurrentActivations(const LoweringContext& c,
                                                      std::vector<std::string> defaults, int64_t directions) {
  std::vector<std::string> names = recurrentList<std::string>(c, "activations");
  const size_t wanted = defaults.size() * directions;
  if (names.empty()) {
    for (int64_t i = 0; i < directions; ++i) names.insert(names.end(), defaults.begin(), defaults.end());
  }
  if (names.size() != wanted)
    c.refuse(fmt::format("it has {} activations where {} are needed", names.size(), wanted));
  const std::vector<float> alphas = recurrentList<float>(c, "activation_alpha");
  const std::vector<float> betas = recurrentList<float>(c, "activation_beta");
  size_t alphas_taken = 0;
  size_t betas_taken = 0;
  std::vector<RecurrentActivation> result;
  for (const std::string& name : names) {
    const auto* kind = std::find_if(kRecurrentActivations.begin(), kRecurrentActivations.end(),
                                    [&](const RecurrentActivationKind& known) { return known.name == name; });
    if (kind == kRecurrentActivations.end()) c.refuse(fmt::format("activation '{}' is not known", name));
    RecurrentActivation& made = result.emplace_back(RecurrentActivation{.kind = kind});
    if (kind->has_alpha)
      made.alpha = takeRecurrentNumber(c, name, "activation_alpha", alphas, alphas_taken, kind->alpha);
    if (kind->has_beta)
      made.beta = takeRecurrentNumber(c, name, "activation_beta", betas, betas_taken, kind->beta);
  }
  // With none taken the list says nothing; with some, it is not clear whom the others are meant for.
  if (alphas_taken > 0 && alphas_taken < alphas.size())
    c.refuse("activation_alpha has more numbers than there are activations with an alpha");
  if (betas_taken > 0 && betas_taken < betas.size())
    c.refuse("activation_beta has more numbers than there are activations with a beta");
  return result;
}

// ---- small things

// Element `index` of an axis, without that axis.
ValueId recurrentPart(LoweringContext& c, ValueId x, int64_t axis, int64_t index) {
  return c.squeeze(c.slice(x, axis, index, index + 1), axis);
}

// Gate `gate` of `count` gates from there on, along the last axis.
ValueId recurrentGates(LoweringContext& c, const RecurrentLayer& layer, ValueId x, int64_t gate,
                       int64_t count = 1) {
  return c.slice(x, c.rank(x) - 1, gate * layer.hidden, (gate + count) * layer.hidden);
}

ValueId addRecurrent(LoweringContext& c, ValueId a, ValueId b) {
  return a.valid() && b.valid() ? c.binary("Add", a, b) : a.valid() ? a : b;
}

ValueId oneMinus(LoweringContext& c, ValueId x) { return c.binary("Sub", c.scalar(c.type(x), 1), x); }

ValueId activateRecurrent(LoweringContext& c, const RecurrentActivation& activation, ValueId x) {
  const auto times = [&](ValueId factor, float number) {
    return c.binary("Mul", factor, c.scalar(c.type(x), number));
  };
  const RecurrentActivationKind& kind = *activation.kind;
  if (kind.name == "Affine") return c.addNumber(times(x, activation.alpha), activation.beta);
  if (kind.name == "ScaledTanh") return times(c.unary("Tanh", times(x, activation.beta)), activation.alpha);
  OpEmitter::Attributes attributes;
  if (kind.has_alpha) attributes["alpha"] = activation.alpha;
  if (kind.has_beta) attributes["beta"] = activation.beta;
  return c.op(kind.name, {x}, c.type(x), c.shape(x), std::move(attributes));
}

ValueId activateRecurrentGate(LoweringContext& c, const RecurrentLayer& layer,
                              const RecurrentActivation& activation, ValueId x) {
  if (layer.clip) x = c.clip(x, -*layer.clip, *layer.clip);
  return activateRecurrent(c, activation, x);
}

// ---- the three cells

RecurrentState rnnStep(LoweringContext& c, const RecurrentLayer& layer, const RecurrentDirection& way,
                       ValueId input, const RecurrentState& before) {
  ValueId sum = input;
  if (before.hidden.valid()) sum = c.binary("Add", sum, c.matMul(before.hidden, way.recurrent));
  return {.hidden = activateRecurrentGate(c, layer, way.activations[0], sum), .cell = {}};
}

// Gates: input, output, forget, cell.
RecurrentState lstmStep(LoweringContext& c, const RecurrentLayer& layer, const RecurrentDirection& way,
                        ValueId input, const RecurrentState& before) {
  ValueId sum = input;
  if (before.hidden.valid()) sum = c.binary("Add", sum, c.matMul(before.hidden, way.recurrent));
  const auto gate = [&](int64_t which, ValueId cell) {
    ValueId x = recurrentGates(c, layer, sum, which);
    if (way.peepholes[which].valid() && cell.valid())
      x = c.binary("Add", x, c.binary("Mul", cell, way.peepholes[which]));
    return activateRecurrentGate(c, layer, way.activations[0], x);
  };
  const ValueId let_in = gate(0, before.cell);
  const ValueId candidate =
      activateRecurrentGate(c, layer, way.activations[1], recurrentGates(c, layer, sum, 3));
  ValueId cell = c.binary("Mul", let_in, candidate);
  if (before.cell.valid()) {
    const ValueId keep = layer.input_forget ? oneMinus(c, let_in) : gate(2, before.cell);
    cell = c.binary("Add", c.binary("Mul", keep, before.cell), cell);
  }
  const ValueId seen = activateRecurrent(c, way.activations[2], cell);
  return {.hidden = c.binary("Mul", gate(1, cell), seen), .cell = cell};
}

// Gates: update, reset, candidate ("hidden"). The next state is update * state + (1 - update) * candidate.
RecurrentState gruStep(LoweringContext& c, const RecurrentLayer& layer, const RecurrentDirection& way,
                       ValueId input, const RecurrentState& before) {
  const ValueId state = before.hidden;
  ValueId gates = recurrentGates(c, layer, input, 0, 2);
  ValueId candidate = recurrentGates(c, layer, input, 2);
  ValueId product;  // [N, 2H], or [N, 3H] if the reset comes after it
  if (state.valid()) {
    product = c.matMul(state, way.recurrent);
    gates = c.binary("Add", gates, recurrentGates(c, layer, product, 0, 2));
  }
  const auto gate = [&](int64_t which) {
    return activateRecurrentGate(c, layer, way.activations[0], recurrentGates(c, layer, gates, which));
  };
  if (layer.reset_after) {
    const ValueId of_state = state.valid() ? recurrentGates(c, layer, product, 2) : ValueId();
    const ValueId with_bias = addRecurrent(c, of_state, way.candidate_bias);
    if (with_bias.valid()) candidate = c.binary("Add", candidate, c.binary("Mul", gate(1), with_bias));
  } else if (state.valid()) {
    const ValueId kept = c.binary("Mul", gate(1), state);
    candidate = c.binary("Add", candidate, c.matMul(kept, way.candidate));
  }
  candidate = activateRecurrentGate(c, layer, way.activations[1], candidate);
  const ValueId update = gate(0);
  if (!state.valid()) return {.hidden = c.binary("Mul", oneMinus(c, update), candidate), .cell = {}};
  const ValueId moved = c.binary("Mul", update, c.binary("Sub", state, candidate));
  return {.hidden = c.binary("Add", candidate, moved), .cell = {}};
}

// ---- directions

// [N, L, G*H] as L values [N, G*H]. By halves: the gradient of a slice is as large as what it is cut from, so
// that the gradients of L slices of the whole would be L times as large as the whole; here it is log L times.
void cutRecurrentSteps(LoweringContext& c, ValueId x, std::vector<ValueId>& steps) {
  const int64_t length = c.shape(x)[1];
  if (length == 1) return steps.push_back(c.squeeze(x, 1));
  cutRecurrentSteps(c, c.slice(x, 1, 0, length / 2), steps);
  cutRecurrentSteps(c, c.slice(x, 1, length / 2, length), steps);
}

// The biases that can be added once, to the input's part: all but that of a candidate which is reset after
// the product. Sets that one in `way`. Invalid if there are none.
ValueId recurrentBias(LoweringContext& c, const RecurrentLayer& layer, int64_t direction,
                      RecurrentDirection& way) {
  if (!c.hasInput(3)) return {};
  const ValueId both = recurrentPart(c, c.input(3), 0, direction);
  const ValueId of_input = recurrentGates(c, layer, both, 0, layer.gates);
  const ValueId of_state = recurrentGates(c, layer, both, layer.gates, layer.gates);
  if (!layer.reset_after) return c.binary("Add", of_input, of_state);
  way.candidate_bias = recurrentGates(c, layer, of_state, 2);
  const ValueId gates =
      c.binary("Add", recurrentGates(c, layer, of_input, 0, 2), recurrentGates(c, layer, of_state, 0, 2));
  return c.concat({gates, recurrentGates(c, layer, of_input, 2)}, 0);
}

// `x`: [N, L, I].
RecurrentDirection makeRecurrentDirection(LoweringContext& c, const RecurrentLayer& layer, ValueId x,
                                          int64_t direction) {
  RecurrentDirection way;
  way.activations = layer.activations.data() + layer.activations.size() / layer.directions * direction;
  const ValueId weights = c.transpose(recurrentPart(c, c.input(1), 0, direction), {1, 0});
  way.recurrent = c.transpose(recurrentPart(c, c.input(2), 0, direction), {1, 0});
  const ValueId bias = recurrentBias(c, layer, direction, way);
  cutRecurrentSteps(c, addRecurrent(c, c.matMul(x, weights), bias), way.inputs);
  if (layer.gates == 3 && !layer.reset_after) {
    way.candidate = recurrentGates(c, layer, way.recurrent, 2);
    way.recurrent = recurrentGates(c, layer, way.recurrent, 0, 2);
  }
  if (c.hasInput(7) && layer.gates == 4) {
    const ValueId peepholes = recurrentPart(c, c.input(7), 0, direction);
    for (int64_t i = 0; i < std::ssize(way.peepholes); ++i)
      way.peepholes[i] = recurrentGates(c, layer, peepholes, i);
  }
  return way;
}

// Which sequences have a step `step`: bool [N, 1]. Invalid: all of them.
ValueId recurrentMask(LoweringContext& c, const RecurrentLayer& layer, int64_t step) {
  if (!layer.lengths.valid() || step < layer.shortest) return {};
  return c.compare("Less", c.scalar(DataType::kInt32, static_cast<double>(step)), layer.lengths);
}

// `x` where the mask is set, elsewhere `otherwise` or zero.
ValueId recurrentChoice(LoweringContext& c, ValueId mask, ValueId x, ValueId otherwise = {}) {
  if (!mask.valid()) return x;
  return c.where(mask, x, otherwise.valid() ? otherwise : c.scalar(c.type(x), 0));
}

// Goes through the steps of a direction, and gives the last state and what every step puts out. A sequence
// that has no such step keeps its state: backwards, its state is the initial one until its own last step.
RecurrentState runRecurrentDirection(LoweringContext& c, const RecurrentLayer& layer,
                                     const RecurrentDirection& way, RecurrentStep step, bool backwards,
                                     RecurrentState state, std::vector<ValueId>& outputs) {
  const bool initial = state.hidden.valid() || state.cell.valid();
  outputs.assign(layer.steps, {});
  for (int64_t i = 0; i < layer.steps; ++i) {
    const int64_t at = backwards ? layer.steps - 1 - i : i;
    const ValueId mask = recurrentMask(c, layer, at);
    const RecurrentState made = step(c, layer, way, way.inputs[at], state);
    if (c.hasOutput(0)) outputs[at] = recurrentChoice(c, mask, made.hidden);
    state.hidden = recurrentChoice(c, mask, made.hidden, state.hidden);
    if (made.cell.valid()) state.cell = recurrentChoice(c, mask, made.cell, state.cell);
  }
  const ValueId not_empty = initial ? recurrentMask(c, layer, 0) : ValueId();
  state.hidden = recurrentChoice(c, not_empty, state.hidden);
  if (state.cell.valid()) state.cell = recurrentChoice(c, not_empty, state.cell);
  return state;
}

// ---- the whole node

// Constant lengths that are all L need no masks.
void setRecurrentLengths(LoweringContext& c, RecurrentLayer& layer) {
  if (!c.hasInput(4)) return;
  if (c.isKnown(4)) {
    const std::vector<int64_t> lengths = c.constantIntegers(4).value();
    layer.shortest = layer.steps;
    for (int64_t length : lengths) {
      if (length < 0 || length > layer.steps)
        c.refuse(fmt::format("sequence_lens has {} where there are {} steps", length, layer.steps));
      layer.shortest = std::min(layer.shortest, length);
    }
    if (layer.shortest == layer.steps) return;
  }
  layer.lengths = c.unsqueeze(c.cast(c.input(4), DataType::kInt32), {1});
}

// Files contradict themselves (PyTorch's exporter forgets proj_size of an LSTM), or a size that is given for
// the batch of a state is another than that of the sequences.
void requireRecurrentShapes(LoweringContext& c, const RecurrentLayer& layer) {
  const Shape x = c.shape(c.input(0));
  const int64_t rows = layer.gates * layer.hidden;
  const auto require = [&](size_t position, const char* name, const Shape& expected) {
    if (!c.hasInput(position) || c.shape(c.input(position)) == expected) return;
    c.refuse(fmt::format("{} has the shape {}, but R and X make it {}; file and sizes contradict each other",
                         name, shapeToString(c.shape(c.input(position))), shapeToString(expected)));
  };
  require(1, "W", {layer.directions, rows, x[2]});
  require(3, "B", {layer.directions, 2 * rows});
  const int64_t batch = x[layer.batch_first ? 0 : 1];
  const Shape state = layer.batch_first ? Shape{batch, layer.directions, layer.hidden}
                                        : Shape{layer.directions, batch, layer.hidden};
  require(5, "initial_h", state);
  if (layer.gates == 4) require(6, "initial_c", state);
}

RecurrentLayer makeRecurrentLayer(LoweringContext& c, int64_t gates, std::vector<std::string> activations) {
  const Node& node = c.node();
  RecurrentLayer layer;
  layer.gates = gates;
  layer.batch_first = node.intAttribute("layout", 0) != 0;
  layer.input_forget = node.intAttribute("input_forget", 0) != 0;
  layer.reset_after = node.intAttribute("linear_before_reset", 0) != 0;
  const Shape x = c.shape(c.input(0));
  const Shape recurrent = c.shape(c.input(2));
  if (x.size() != 3 || recurrent.size() != 3 || recurrent[1] != gates * recurrent[2])
    c.refuse(fmt::format("X and R have the shapes {} and {}", shapeToString(x), shapeToString(recurrent)));
  layer.steps = x[layer.batch_first ? 1 : 0];
  layer.hidden = recurrent[2];
  const std::string direction = node.stringAttribute("direction", "forward");
  if (direction != "forward" && direction != "reverse" && direction != "bidirectional")
    c.refuse(fmt::format("direction is '{}'", direction));
  layer.directions = direction == "bidirectional" ? 2 : 1;
  if (recurrent[0] != layer.directions)
    c.refuse(fmt::format("R is for {} directions, direction is '{}'", recurrent[0], direction));
  if (node.intAttribute("hidden_size", layer.hidden) != layer.hidden)
    c.refuse(fmt::format("hidden_size is not that of R, {}", layer.hidden));
  requireRecurrentShapes(c, layer);
  if (layer.steps == 0) c.refuse("its sequences have no steps");
  if (node.hasAttribute("clip")) {
    layer.clip = node.floatAttribute("clip", 0);
    if (!(*layer.clip > 0)) c.refuse(fmt::format("clip is {}; it must be positive", *layer.clip));
  }
  layer.activations = recurrentActivations(c, std::move(activations), layer.directions);
  setRecurrentLengths(c, layer);
  return layer;
}

// States [directions, N, H], or [N, directions, H] with the batch first.
void giveRecurrentStates(LoweringContext& c, const RecurrentLayer& layer, size_t output,
                         const std::vector<ValueId>& states) {
  if (!c.hasOutput(output)) return;
  const int64_t axis = layer.batch_first ? 1 : 0;
  std::vector<ValueId> parts;
  for (ValueId state : states) parts.push_back(c.unsqueeze(state, {axis}));
  c.give(output, c.concat(parts, axis));
}

// Outputs [L, directions, N, H], or [N, L, directions, H].
void giveRecurrentOutputs(LoweringContext& c, const RecurrentLayer& layer,
                          const std::vector<std::vector<ValueId>>& outputs) {
  if (!c.hasOutput(0)) return;
  const int64_t time = layer.batch_first ? 1 : 0;
  std::vector<ValueId> directions;
  for (const std::vector<ValueId>& steps : outputs) {
    std::vector<ValueId> parts;
    for (ValueId step : steps) parts.push_back(c.unsqueeze(step, {time, time + 1}));
    directions.push_back(c.concat(parts, time));
  }
  c.give(0, c.concat(directions, time + 1));
}

void lowerRecurrent(LoweringContext& c, const RecurrentLayer& layer, RecurrentStep step) {
  const ValueId x = layer.batch_first ? c.input(0) : c.transpose(c.input(0), {1, 0, 2});
  const bool reverse = c.node().stringAttribute("direction", "forward") == "reverse";
  std::vector<std::vector<ValueId>> outputs(layer.directions);
  std::vector<ValueId> hidden;
  std::vector<ValueId> cells;
  for (int64_t i = 0; i < layer.directions; ++i) {
    const RecurrentDirection way = makeRecurrentDirection(c, layer, x, i);
    const int64_t axis = layer.batch_first ? 1 : 0;
    RecurrentState state;
    if (c.hasInput(5)) state.hidden = recurrentPart(c, c.input(5), axis, i);
    if (c.hasInput(6) && layer.gates == 4) state.cell = recurrentPart(c, c.input(6), axis, i);
    state = runRecurrentDirection(c, layer, way, step, reverse || i == 1, state, outputs[i]);
    hidden.push_back(state.hidden);
    cells.push_back(state.cell);
  }
  giveRecurrentOutputs(c, layer, outputs);
  giveRecurrentStates(c, layer, 1, hidden);
  if (layer.gates == 4) giveRecurrentStates(c, layer, 2, cells);
}

void lowerLstm(LoweringContext& c) {
  lowerRecurrent(c, makeRecurrentLayer(c, 4, {"Sigmoid", "Tanh", "Tanh"}), lstmStep);
}

void lowerGru(LoweringContext& c) {
  lowerRecurrent(c, makeRecurrentLayer(c, 3, {"Sigmoid", "Tanh"}), gruStep);
}

void lowerRnn(LoweringContext& c) { lowerRecurrent(c, makeRecurrentLayer(c, 1, {"Tanh"}), rnnStep); }

}  // namespace

void addRecurrentLowerings(LoweringRules& rules) {
  rules[{"", "LSTM"}] = lowerLstm;
  rules[{"", "GRU"}] = lowerGru;
  rules[{"", "RNN"}] = lowerRnn;
}

}  // namespace pipeshard
