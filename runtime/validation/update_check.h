// The update of one step, alone, on given gradients: what an adaptive optimizer is judged by (validate.h).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ir/program/program.h"
#include "runtime/execute/local_program.h"
#include "runtime/execute/rank_image.h"

namespace pipeshard {

// The update instructions of a single-device program, with nothing else: gradients become inputs that the
// caller fills.
//
//   UpdateOnly update(loadRank("gpt2.plan/reference", RankId(0)));
//   // parameters hold the model's initial weights, states zeros
//   for each result that is a gradient: fill update.content(result)
//   update.run(step);                      // contents of parameters and states are now those after the step
class UpdateOnly {
 public:
  // Errors: kConfiguration when the program has more than one rank.
  // `seed`: of weights that no file has.
  explicit UpdateOnly(RankImage image, uint64_t seed = 0);

  const std::vector<Result>& results() const;  // of the program: loss, gradients, parameters, states
  const Buffer& buffer(const Result& result) const;
  std::span<std::byte> content(const Result& result);
  // `before` is called before each update of the step with its number: the place to fill in its gradients
  // where a step makes several.
  void run(int64_t step, const std::function<void(int update)>& before = {});

 private:
  LocalProgram program_;
};

}  // namespace pipeshard
