#include "onnx_import/forms/optimizer_fit.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

namespace pipeshard {
namespace {

using Kind = OptimizerSpec::Kind;
using Arrays = ElementFunction::Arrays;

constexpr double kRate = 0.25;        // where the learning rate is an input
constexpr double kRounding = 4e-6;    // relative: numbers of the file are float32
constexpr double kSameUpdate = 2e-4;  // relative to the update
constexpr int kSteps[] = {1, 2, 7};   // updates are compared at these

// The decimal number with fewest digits within `tolerance`, relative: 0.10000000149 is 0.1.
double plainNumber(double number, double tolerance = kRounding) {
  for (int digits = 1; digits < 9; ++digits) {
    const double rounded = std::strtod(fmt::format("{:.{}e}", number, digits - 1).c_str(), nullptr);
    if (std::abs(rounded - number) <= tolerance * std::abs(number)) return rounded;
  }
  return number;
}

bool near(double a, double b, double tolerance = kRounding) {
  return std::abs(a - b) <= tolerance * std::max({std::abs(a), std::abs(b), 1e-6});
}

// Deterministic numbers in [-1, 1), never near 0.
std::vector<double> someNumbers(size_t count, size_t seed, double scale = 1) {
  std::vector<double> numbers;
  for (size_t i = 0; i < count; ++i) {
    const double phase = std::fmod(static_cast<double>(i * 7 + seed * 13 + 1) * 0.6180339887498949, 1.0);
    numbers.push_back(scale * (phase < 0.5 ? phase - 0.6 : phase));
  }
  return numbers;
}

class UpdateFitter {
 public:
  UpdateFitter(const ElementFunction& update, const UpdateInputs& inputs)
      : update_(update), inputs_(inputs) {}

  FittedUpdate fit() {
    FittedUpdate result;
    if (at(1, {0}, {0}, Arrays(inputs_.states, {0})).empty()) {
      result.reason = "it has operators that do not work element by element, or are not known here";
      return result;
    }
    if (inputs_.states == 0) return fitSgd();
    if (inputs_.states == 1) return fitMomentum();
    if (inputs_.states == 2) return fitAdam();
    result.reason = fmt::format("it keeps {} states of each weight", inputs_.states);
    return result;
  }

 private:
  // The update's outputs at one step for arrays of one length; empty: it cannot be evaluated.
  Arrays at(int step, std::vector<double> parameter, std::vector<double> gradient, Arrays states) const {
    Arrays inputs = {std::move(parameter), std::move(gradient)};
    inputs.insert(inputs.end(), states.begin(), states.end());
    if (inputs_.step) inputs.push_back({static_cast<double>(step - step_offset_)});
    if (inputs_.learning_rate) inputs.push_back({kRate});
    return update_.evaluate(inputs).value_or(Arrays());
  }
  // One output at one point.
  double value(size_t output, double parameter, double gradient, const std::vector<double>& states,
               int step = 1) const {
    Arrays columns;
    for (double state : states) columns.push_back({state});
    return at(step, {parameter}, {gradient}, columns).at(output).front();
  }

  // Does the spec give the file's results? States of ours are `scale` times those of the file; `order`: the
  // file's state that is ours.
  bool gives(const OptimizerSpec& spec, const std::vector<size_t>& order, double scale) const {
    constexpr size_t kPoints = 24;
    for (const int step : kSteps) {
      for (const double size : {1.0, 1e-6, 1e4}) {  // the last one shows limits of a gradient
        const std::vector<double> parameter = someNumbers(kPoints, 1),
                                  gradient = someNumbers(kPoints, 2, size);
        Arrays theirs(inputs_.states), ours;
        for (size_t k = 0; k < order.size(); ++k) {
          std::vector<double> state = someNumbers(kPoints, 3 + k, size);
          if (k == 1)  // an average of squares
            std::transform(state.begin(), state.end(), state.begin(), [](double x) { return x * x; });
          ours.push_back(state);
          std::transform(state.begin(), state.end(), state.begin(), [&](double x) { return x / scale; });
          theirs[order[k]] = state;
        }
        Arrays arguments = {parameter, gradient};
        arguments.insert(arguments.end(), ours.begin(), ours.end());
        if (isAdaptive(spec)) arguments.push_back({static_cast<double>(step)});
        const Arrays want = evaluateUpdate(spec, arguments), got = at(step, parameter, gradient, theirs);
        for (size_t i = 0; i < kPoints; ++i) {
          const double moved = want[0][i] - parameter[i];
          const bool same = near(moved, got[0][i] - parameter[i], kSameUpdate) ||
                            std::abs(want[0][i] - got[0][i]) <= 1e-12;  // not so for what is no number
          if (!same) return false;
          for (size_t k = 0; k < order.size(); ++k) {
            if (!near(want[1 + k][i], scale * got[1 + order[k]][i], kSameUpdate)) return false;
          }
        }
      }
    }
    return true;
  }

  // The spec as a user would write it, if it still gives the file's results.
  FittedUpdate accepted(OptimizerSpec spec, std::vector<size_t> order, double scale,
                        const std::string& otherwise) const {
    FittedUpdate result;
    if (!std::isfinite(spec.learning_rate) || spec.learning_rate < 0 || spec.weight_decay < 0 ||
        !gives(spec, order, scale)) {
      result.reason = otherwise;
      return result;
    }
    spec.momentum = plainNumber(spec.momentum);
    spec.beta1 = plainNumber(spec.beta1);
    spec.beta2 = plainNumber(spec.beta2);
    spec.epsilon = plainNumber(spec.epsilon, 1e-4);
    const double float32 = spec.learning_rate > 0 ? 1.2e-7 / spec.learning_rate : 0;
    spec.weight_decay =
        plainNumber(spec.weight_decay, kRounding + (spec.weight_decay > 0 ? float32 / spec.weight_decay : 0));
    spec.learning_rate =
        inputs_.learning_rate ? OptimizerSpec().learning_rate : plainNumber(spec.learning_rate);
    result.spec = spec;
    result.moments = std::move(order);
    return result;
  }

  // p' = A p + B g
  FittedUpdate fitSgd() {
    OptimizerSpec spec;
    spec.learning_rate = -value(0, 0, 1, {});
    spec.weight_decay = decayOf(value(0, 1, 0, {}), spec.learning_rate);
    return accepted(spec, {}, 1, "without states it could be SGD, but it is not p - lr * (g + decay * p)");
  }

  static double decayOf(double kept, double rate) {
    const double decay = rate == 0 ? 0 : (1 - kept) / rate;
    return std::abs(1 - kept) < 1e-9 ? 0 : decay;
  }

  // v' = M v + C g + D p, p' = A p + B g + E v. Ours of v is v / C.
  FittedUpdate fitMomentum() {
    const std::string reason =
        "with one state it could be SGD with momentum, but it is not v' = momentum * v + g + decay * p, p' = "
        "p - lr "
        "* v' or p - lr * (g + decay * p + momentum * v')";
    OptimizerSpec spec;
    const double c = value(1, 0, 1, {0}), d = value(1, 1, 0, {0});
    const double b = value(0, 0, 1, {0}), e = value(0, 0, 0, {1});
    spec.momentum = value(1, 0, 0, {1});
    FittedUpdate result;
    result.reason = reason;
    if (c == 0 || b == 0 || !(spec.momentum > 0 && spec.momentum < 1)) return result;
    spec.nesterov = !near(e * c / b, spec.momentum, 1e-4);
    spec.learning_rate = spec.nesterov ? -b / (1 + spec.momentum) : -b;
    spec.weight_decay = std::abs(d / c) < 1e-9 ? 0 : d / c;
    result = accepted(spec, {0}, 1 / c, reason);
    result.gradient_weight = c;
    return result;
  }

  FittedUpdate fitAdam() {
    FittedUpdate result;
    // The first moment changes its sign with the gradient.
    const size_t first = near(value(1, 0, 1, {0, 0}), -value(1, 0, -1, {0, 0})) ? 0 : 1;
    const std::vector<size_t> order = {first, 1 - first};
    std::string reasons[2];
    for (const int offset : {1, 0}) {
      step_offset_ = offset;
      result = fitAdamAt(order);
      result.first_step = 1 - offset;
      if (result.spec || !inputs_.step) return result;
      reasons[offset] = result.reason;
    }
    result.reason = reasons[1];
    return result;
  }

  FittedUpdate fitAdamAt(const std::vector<size_t>& order) const {
    const size_t m = order[0], v = order[1];
    const auto states = [&](double of_m, double of_v) {
      std::vector<double> both(2);
      both[m] = of_m;
      both[v] = of_v;
      return both;
    };
    FittedUpdate result;
    OptimizerSpec spec;
    spec.beta1 = value(1 + m, 0, 0, states(1, 0));
    spec.beta2 = value(1 + v, 0, 0, states(0, 1));
    const double of_g = value(1 + m, 0, 1, states(0, 0)), of_square = value(1 + v, 0, 1, states(0, 0));
    if (!near(of_g, 1 - spec.beta1, 1e-4) || !near(of_square, 1 - spec.beta2, 1e-3)) {
      result.reason = fmt::format(
          "with two states it could be Adam, but they are no averages of gradients and their squares "
          "(weights {:.4g} "
          "and {:.4g} for the old ones, {:.4g} and {:.4g} for the new)",
          spec.beta1, spec.beta2, of_g, of_square);
      return result;
    }
    const double decay_in_gradient = value(1 + m, 1, 0, states(0, 0)) / of_g;
    // |p'| = lr / (1 - beta1) * beta1 / (sqrt(beta2 * v / (1 - beta2)) + epsilon) at m = 1, for v = 0 and 1
    const double at_zero = -value(0, 0, 0, states(1, 0)), at_one = -value(0, 0, 0, states(1, 1));
    const double deviation = std::sqrt(spec.beta2 / (1 - spec.beta2));
    const double strength = at_one * deviation / (1 - at_one / at_zero);
    spec.epsilon = std::isfinite(at_zero) ? strength / at_zero : 0;
    spec.learning_rate = strength * (1 - spec.beta1) / spec.beta1;
    spec.kind = std::abs(decay_in_gradient) > 1e-9 ? Kind::kAdam : Kind::kAdamW;
    if (inputs_.learning_rate) spec.learning_rate = kRate;
    const double kept = value(0, 1, 1, states(0, 0)) - value(0, 0, 1, states(0, 0));
    spec.weight_decay = spec.kind == Kind::kAdam ? decay_in_gradient : decayOf(kept, spec.learning_rate);
    if (spec.kind == Kind::kAdamW && spec.weight_decay == 0) spec.kind = Kind::kAdam;
    return accepted(spec, order, 1, whyNotAdam(spec, states(1, 1)));
  }

  std::string whyNotAdam(const OptimizerSpec& spec, const std::vector<double>& states) const {
    const double first = value(0, 0, 0, states, kSteps[1]), later = value(0, 0, 0, states, kSteps[2]);
    if (near(first, later)) {
      return inputs_.step
                 ? "it is Adam without the correction of the moments by the step"
                 : "it is Adam, but no step counts: the correction of the moments is that of one step, "
                   "or there is none (take the step as an input of the file, and as an output plus 1)";
    }
    return fmt::format(
        "with two states it could be Adam (beta1 {:.4g}, beta2 {:.4g}), but its result is another; "
        "pipeshard's "
        "divides by sqrt(v) / sqrt(1 - beta2^step) + epsilon",
        spec.beta1, spec.beta2);
  }

  const ElementFunction& update_;
  UpdateInputs inputs_;
  int step_offset_ = 1;  // what the file's first step is before our 1
};

}  // namespace

FittedUpdate fitUpdate(const ElementFunction& update, const UpdateInputs& inputs) {
  return UpdateFitter(update, inputs).fit();
}

}  // namespace pipeshard
