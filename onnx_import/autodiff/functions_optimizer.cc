// The optimizers' functions: docs/operators.md.
#include <algorithm>
#include <cmath>
#include <map>

#include "ir/plan/learning_rate.h"
#include "onnx_import/autodiff/function_builder.h"

namespace pipeshard {
namespace {

using Builder = FunctionBuilder;
using Schedule = LearningRateSchedule;

constexpr int kMostIterations = 20;  // of Orthogonalized: as --optimizer muon:ns_steps takes

// What every update reads, in the inputs' order: Param, Grad, the states, Step, LearningRate, numbers of the
// optimizer, those of the schedule.
struct Update {
  ValueId parameter, gradient;
  std::vector<ValueId> states;
  ValueId step;  // invalid: neither the optimizer nor a schedule counts
  ValueId rate;  // of this step
  std::map<std::string_view, ValueId> numbers;
};

// scheduledRate in double, as the kernels compute it.
class RateBody {
 public:
  RateBody(Builder& f, Schedule::Kind kind, ValueId rate, ValueId step) : f_(f), kind_(kind) {
    for (double Schedule::*number : numbersOf(kind)) {
      numbers_.push_back(number);
      inputs_.push_back(f.input(numberName(number)));
    }
    rate_ = toDouble(rate);
    n_ = sub(toDouble(step), one());
  }

  ValueId build() {
    if (kind_ == Schedule::Kind::kOneCycle) return oneCycle();
    const ValueId warmup = of(&Schedule::warmup);
    const ValueId from = of(&Schedule::start_factor);
    const ValueId share = f_.op("Div", {mul(sub(one(), from), n_), f_.op("Max", {warmup, one()})});
    const ValueId rising = mul(rate_, f_.op("Add", {from, share}));
    return f_.op("Where", {f_.op("Less", {n_, warmup}), rising, behind(sub(n_, warmup))});
  }

 private:
  ValueId toDouble(ValueId x) {
    return f_.op("Cast", {x}, {{"to", int64_t{11}}});  // onnx.TensorProto.DOUBLE
  }
  ValueId constant(double value) {
    return f_.op("Constant", {}, {{"value", makeScalar(DataType::kFloat64, value)}});
  }
  ValueId one() { return constant(1); }
  ValueId mul(ValueId a, ValueId b) { return f_.op("Mul", {a, b}); }
  ValueId sub(ValueId a, ValueId b) { return f_.op("Sub", {a, b}); }
  ValueId of(double Schedule::*number) const {
    return inputs_[std::find(numbers_.begin(), numbers_.end(), number) - numbers_.begin()];
  }
  ValueId atMostOne(ValueId x) { return f_.op("Min", {x, one()}); }

  // The cosine as a sine, which ONNX Runtime has in float64.
  ValueId annealed(ValueId start, ValueId end, ValueId share) {
    const ValueId cosine = f_.op("Sin", {mul(constant(M_PI), f_.op("Add", {share, constant(0.5)}))});
    const ValueId wave = f_.op("Add", {cosine, one()});
    return f_.op("Add", {end, mul(f_.op("Div", {sub(start, end), constant(2)}), wave)});
  }

  // `later`: steps since the warm-up; below 0 in it, where the result is not taken.
  ValueId behind(ValueId later) {
    if (kind_ == Schedule::Kind::kConstant) return rate_;
    if (kind_ == Schedule::Kind::kStep) {
      const ValueId drops = f_.op("Floor", {f_.op("Div", {later, of(&Schedule::step_size)})});
      return mul(rate_, f_.op("Pow", {of(&Schedule::gamma), drops}));
    }
    const ValueId length = sub(of(&Schedule::steps), of(&Schedule::warmup));
    const ValueId share = atMostOne(f_.op("Div", {later, length}));
    const ValueId last = of(&Schedule::final_rate);
    if (kind_ == Schedule::Kind::kCosine) return annealed(rate_, last, share);
    return f_.op("Add", {last, mul(sub(rate_, last), sub(one(), share))});
  }

  ValueId oneCycle() {
    const ValueId steps = of(&Schedule::steps);
    const ValueId peak = sub(mul(of(&Schedule::pct_start), steps), one());
    const ValueId first = f_.op("Div", {rate_, of(&Schedule::div_factor)});
    const ValueId last = f_.op("Div", {first, of(&Schedule::final_div_factor)});
    const ValueId rising = annealed(first, rate_, f_.op("Div", {n_, peak}));
    const ValueId left = sub(sub(steps, one()), peak);
    const ValueId falling = annealed(rate_, last, atMostOne(f_.op("Div", {sub(n_, peak), left})));
    return f_.op("Where", {f_.op("LessOrEqual", {n_, peak}), rising, falling});
  }

  Builder& f_;
  const Schedule::Kind kind_;
  std::vector<double Schedule::*> numbers_;
  std::vector<ValueId> inputs_;
  ValueId rate_, n_;
};

// `counts`: the optimizer reads Step in any case.
Update updateInputs(Builder& f, const std::vector<std::string_view>& states, bool counts,
                    const std::vector<std::string_view>& numbers) {
  Update update;
  update.parameter = f.input("Param");
  update.gradient = f.input("Grad");
  for (const std::string_view state : states) update.states.push_back(f.input(state));
  if (counts || !f.overload().empty()) update.step = f.input("Step");
  update.rate = f.input("LearningRate");
  for (const std::string_view number : numbers) update.numbers[number] = f.input(number);
  if (f.overload().empty()) return update;
  const auto kind =
      std::find(kScheduleNames.begin(), kScheduleNames.end(), f.overload()) - kScheduleNames.begin();
  f.attribute("schedule", f.overload());
  const ValueId rate = RateBody(f, static_cast<Schedule::Kind>(kind), update.rate, update.step).build();
  update.rate = f.op("CastLike", {rate, update.parameter});
  return update;
}

ValueId decayedGradient(Builder& f, const Update& update) {
  return f.op("Add", {update.gradient, f.op("Mul", {update.numbers.at("WeightDecay"), update.parameter})});
}

// The parameter times 1 - rate decay.
ValueId shrunkParameter(Builder& f, const Update& update, ValueId one) {
  const ValueId loss = f.op("Mul", {update.rate, update.numbers.at("WeightDecay")});
  return f.op("Mul", {update.parameter, f.op("Sub", {one, loss})});
}

// beta old + (1 - beta) sample
ValueId average(Builder& f, ValueId one, ValueId beta, ValueId old, ValueId sample) {
  return f.op("Add", {f.op("Mul", {beta, old}), f.op("Mul", {f.op("Sub", {one, beta}), sample})});
}

ValueId moved(Builder& f, ValueId parameter, ValueId rate, ValueId direction) {
  return f.op("Sub", {parameter, f.op("Mul", {rate, direction})});
}

void sgd(Builder& f) {
  const Update u = updateInputs(f, {}, false, {"WeightDecay"});
  f.output("NewParam", moved(f, u.parameter, u.rate, decayedGradient(f, u)));
}

void sgdMomentum(Builder& f) {
  f.attribute("nesterov", int64_t{0});
  const Update u = updateInputs(f, {"Velocity"}, false, {"Momentum", "WeightDecay"});
  const ValueId momentum = u.numbers.at("Momentum");
  const ValueId g = decayedGradient(f, u);
  const ValueId velocity = f.op("Add", {f.op("Mul", {momentum, u.states[0]}), g});
  const ValueId ahead = f.op("Add", {g, f.op("Mul", {momentum, velocity})});
  const ValueId nesterov = f.op("Equal", {f.integerAttribute("nesterov"), f.integer(1)});
  const ValueId direction = f.op("Where", {nesterov, ahead, velocity});
  f.output("NewParam", moved(f, u.parameter, u.rate, direction));
  f.output("NewVelocity", velocity);
}

void adamLike(Builder& f, bool decoupled_decay) {
  const Update u = updateInputs(f, {"M", "V"}, true, {"Beta1", "Beta2", "Epsilon", "WeightDecay"});
  const ValueId one = f.number(1, u.parameter);
  const ValueId parameter = decoupled_decay ? shrunkParameter(f, u, one) : u.parameter;
  const ValueId g = decoupled_decay ? u.gradient : decayedGradient(f, u);
  const ValueId new_m = average(f, one, u.numbers.at("Beta1"), u.states[0], g);
  const ValueId new_v = average(f, one, u.numbers.at("Beta2"), u.states[1], f.op("Mul", {g, g}));
  const ValueId t = f.op("CastLike", {u.step, one});
  const auto correction = [&](const char* beta) {
    return f.op("Sub", {one, f.op("Pow", {u.numbers.at(beta), t})});
  };
  const ValueId deviation = f.op("Div", {f.op("Sqrt", {new_v}), f.op("Sqrt", {correction("Beta2")})});
  const ValueId direction = f.op("Div", {new_m, f.op("Add", {deviation, u.numbers.at("Epsilon")})});
  f.output("NewParam", moved(f, parameter, f.op("Div", {u.rate, correction("Beta1")}), direction));
  f.output("NewM", new_m);
  f.output("NewV", new_v);
}

void adam(Builder& f) { adamLike(f, false); }
void adamW(Builder& f) { adamLike(f, true); }

void rmsPropLike(Builder& f, bool with_momentum) {
  std::vector<std::string_view> states = {"V"}, numbers = {"Alpha", "Epsilon", "WeightDecay"};
  if (with_momentum) {
    states.emplace_back("Velocity");
    numbers.emplace_back("Momentum");
  }
  const Update u = updateInputs(f, states, false, numbers);
  const ValueId g = decayedGradient(f, u);
  const ValueId one = f.number(1, u.parameter);
  const ValueId v = average(f, one, u.numbers.at("Alpha"), u.states[0], f.op("Mul", {g, g}));
  ValueId direction = f.op("Div", {g, f.op("Add", {f.op("Sqrt", {v}), u.numbers.at("Epsilon")})});
  if (with_momentum)
    direction = f.op("Add", {f.op("Mul", {u.numbers.at("Momentum"), u.states[1]}), direction});
  f.output("NewParam", moved(f, u.parameter, u.rate, direction));
  f.output("NewV", v);
  if (with_momentum) f.output("NewVelocity", direction);
}

void rmsProp(Builder& f) { rmsPropLike(f, false); }
void rmsPropMomentum(Builder& f) { rmsPropLike(f, true); }

void adagrad(Builder& f) {
  const Update u = updateInputs(f, {"Sum"}, true, {"RateDecay", "Epsilon", "WeightDecay"});
  const ValueId g = decayedGradient(f, u);
  const ValueId sum = f.op("Add", {u.states[0], f.op("Mul", {g, g})});
  const ValueId one = f.number(1, u.parameter);
  const ValueId before = f.op("Sub", {f.op("CastLike", {u.step, one}), one});
  const ValueId slower = f.op("Add", {one, f.op("Mul", {before, u.numbers.at("RateDecay")})});
  const ValueId direction = f.op("Div", {g, f.op("Add", {f.op("Sqrt", {sum}), u.numbers.at("Epsilon")})});
  f.output("NewParam", moved(f, u.parameter, f.op("Div", {u.rate, slower}), direction));
  f.output("NewSum", sum);
}

void lion(Builder& f) {
  const Update u = updateInputs(f, {"M"}, false, {"Beta1", "Beta2", "WeightDecay"});
  const ValueId one = f.number(1, u.parameter);
  const ValueId direction = f.op("Sign", {average(f, one, u.numbers.at("Beta1"), u.states[0], u.gradient)});
  f.output("NewParam", moved(f, shrunkParameter(f, u, one), u.rate, direction));
  f.output("NewM", average(f, one, u.numbers.at("Beta2"), u.states[0], u.gradient));
}

// Adam's direction, with the decay added.
void lambDirection(Builder& f) {
  const ValueId parameter = f.input("Param"), g = f.input("Grad"), m = f.input("M"), v = f.input("V");
  const ValueId step = f.input("Step"), beta1 = f.input("Beta1"), beta2 = f.input("Beta2");
  const ValueId epsilon = f.input("Epsilon"), decay = f.input("WeightDecay");
  const ValueId one = f.number(1, parameter);
  const ValueId new_m = average(f, one, beta1, m, g);
  const ValueId new_v = average(f, one, beta2, v, f.op("Mul", {g, g}));
  const ValueId t = f.op("CastLike", {step, one});
  const auto corrected = [&](ValueId mean, ValueId beta) {
    return f.op("Div", {mean, f.op("Sub", {one, f.op("Pow", {beta, t})})});
  };
  const ValueId deviation = f.op("Add", {f.op("Sqrt", {corrected(new_v, beta2)}), epsilon});
  const ValueId adam = f.op("Div", {corrected(new_m, beta1), deviation});
  f.output("Direction", f.op("Add", {adam, f.op("Mul", {decay, parameter})}));
  f.output("NewM", new_m);
  f.output("NewV", new_v);
}

void movingAverage(Builder& f) {
  const ValueId old = f.input("Average"), sample = f.input("Value"), decay = f.input("Decay");
  f.output("NewAverage", average(f, f.number(1, old), decay, old, sample));
}

void scheduledRateBody(Builder& f) {
  const ValueId step = f.input("Step"), rate = f.input("LearningRate");
  f.attribute("schedule", f.overload());
  const auto kind =
      std::find(kScheduleNames.begin(), kScheduleNames.end(), f.overload()) - kScheduleNames.begin();
  const ValueId scheduled = RateBody(f, static_cast<Schedule::Kind>(kind), rate, step).build();
  f.output("Rate", f.op("CastLike", {scheduled, rate}));
}

// As many steps of Newton and Schulz as the overload says, of the quintic of Jordan et al., Muon. "_tall":
// the matrix has more rows than columns.
void orthogonalizedBody(Builder& f) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  const ValueId matrix = f.input("X"), epsilon = f.input("Epsilon");
  const bool tall = f.overload().ends_with("_tall");
  const auto scaled = [&](ValueId x, double factor) { return f.op("Mul", {x, f.number(factor, matrix)}); };
  const ValueId sum = f.op("ReduceSum", {f.op("Mul", {matrix, matrix})}, {{"keepdims", int64_t{0}}});
  ValueId x = f.op("Div", {matrix, f.op("Max", {f.op("Sqrt", {sum}), epsilon})});
  for (int step = std::stoi(f.overload()); step > 0; --step) {
    const ValueId gram = f.op("Gemm", {x, x}, {{"transA", int64_t{tall}}, {"transB", int64_t{!tall}}});
    const ValueId square = f.op("MatMul", {gram, gram});
    const ValueId quintic = f.op("Add", {scaled(gram, b), scaled(square, c)});
    const ValueId product = tall ? f.op("MatMul", {x, quintic}) : f.op("MatMul", {quintic, x});
    x = f.op("Add", {scaled(x, a), product});
  }
  f.output("Y", x);
}

// Of elements [size Part / parts, size (Part + 1) / parts) of X, in the order of memory. All shapes are
// static: the others count as zeros.
void squareSum(Builder& f) {
  f.attribute("parts", int64_t{1});
  const ValueId x = f.input("X");
  const ValueId minus_one = f.integers({-1});
  const ValueId part = f.op("Reshape", {f.input("Part"), minus_one});
  const ValueId flat = f.op("Reshape", {x, minus_one});
  const ValueId size = f.op("Size", {x});
  const ValueId places = f.op("Range", {f.integer(0), size, f.integer(1)});
  const auto before = [&](ValueId number) {
    return f.op("Less", {places, f.op("Div", {f.op("Mul", {size, number}), f.integerAttribute("parts")})});
  };
  const ValueId zero = f.number(0, x);
  const ValueId end = f.op("Add", {part, f.integers({1})});
  const ValueId share = f.op("Where", {before(part), zero, f.op("Where", {before(end), flat, zero})});
  const ValueId wide = f.op("Cast", {share}, {{"to", int64_t{11}}});  // onnx.TensorProto.DOUBLE
  f.output("Sum",
           f.op("ReduceSum", {f.op("Mul", {wide, wide}), f.integers({0})}, {{"keepdims", int64_t{0}}}));
}

}  // namespace

void addOptimizerBodies(FunctionBodies& bodies) {
  const std::pair<const char*, void (*)(Builder&)> functions[] = {
      {"SGD", sgd},         {"SGDMomentum", sgdMomentum},         {"Adam", adam},       {"AdamW", adamW},
      {"RMSProp", rmsProp}, {"RMSPropMomentum", rmsPropMomentum}, {"Adagrad", adagrad}, {"Lion", lion}};
  for (const auto& [name, body] : functions) {
    bodies[{name, ""}] = body;
    for (const std::string_view schedule : kScheduleNames) bodies[{name, std::string(schedule)}] = body;
  }
  bodies[{"SquareSum", ""}] = squareSum;
  bodies[{"LAMBDirection", ""}] = lambDirection;
  bodies[{"MovingAverage", ""}] = movingAverage;
  for (int steps = 1; steps <= kMostIterations; ++steps) {
    bodies[{"Orthogonalized", std::to_string(steps)}] = orthogonalizedBody;
    bodies[{"Orthogonalized", std::to_string(steps) + "_tall"}] = orthogonalizedBody;
  }
  for (const std::string_view schedule : kScheduleNames)
    bodies[{"ScheduledRate", std::string(schedule)}] = scheduledRateBody;
}

}  // namespace pipeshard
